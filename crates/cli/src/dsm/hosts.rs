//! Lists of hosts: one per line, `NAME[:PORT] [PROCESSES]`, `#` begins a comment.
//!
//! JIAJIA's own list is accepted, too: `ADDRESS USER PASSWORD`. Passwords are ignored, since ssh uses keys. Settings
//! of a `.jiaconf` in the same folder are used where ours have the same meaning.

use crate::failure::Failure;
use ferroce_dsm::MAX_SIZE;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::path::Path;

/// A host to start processes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its name or address.
    pub(crate) name: String,
    /// The user there; `None`: the same as here.
    pub(crate) user: Option<String>,
    /// Port of its ssh.
    pub(crate) port: Option<u16>,
    /// Processes to start there, in each round.
    pub(crate) processes: u32,
}

/// The content of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// The hosts, in order.
    pub(crate) hosts: Vec<Host>,
    /// Whether any line had a password.
    pub(crate) passwords: bool,
}

/// Reads a list of hosts.
pub(crate) fn read(path: &Path) -> Result<Hosts, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::io(format!("cannot read the list of hosts {}", path.display()), error))?;
    parse(&text).map_err(|(line, why)| {
        Failure::usage(format!("{}, line {line}: {why}", path.display()))
            .advise("One host per line: NAME[:PORT] [PROCESSES]")
    })
}

fn parse(text: &str) -> Result<Hosts, (usize, String)> {
    let mut list = Hosts { hosts: Vec::new(), passwords: false };
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let host = host(&words).map_err(|why| (at + 1, why))?;
        list.passwords |= words.len() > 2 && host.user.is_some();
        list.hosts.push(host);
    }
    match list.hosts.is_empty() {
        true => Err((1, "no machine is named".to_owned())),
        false => Ok(list),
    }
}

fn host(words: &[&str]) -> Result<Host, String> {
    let (name, port) = name_and_port(words[0])?;
    let (user, name) = match name.split_once('@') {
        Some((user, name)) => (Some(user.to_owned()), name.to_owned()),
        None => (None, name),
    };
    if !is_host(&name) || !user.as_deref().is_none_or(is_word) {
        return Err(format!("{:?} is not the name of a host", words[0]));
    }
    let Some(second) = words.get(1) else {
        return Ok(Host { name, user, port, processes: 1 });
    };
    let count = second.strip_prefix("slots=").unwrap_or(second);
    match count.parse::<u32>() {
        Ok(_) if words.len() > 2 => Err(format!("{:?} follows the number of processes", words[2])),
        Ok(0) => Err("0 processes on a machine".to_owned()),
        Ok(many) if many > MAX_SIZE => {
            Err(format!("{many} processes on a host exceed the maximum of a job, {MAX_SIZE}"))
        }
        Ok(processes) => Ok(Host { name, user, port, processes }),
        Err(_) if !is_word(second) => Err(format!("{second:?} is not a number of processes")),
        Err(_) if words.len() > 3 => {
            Err(format!("{:?} is not a host, with a number of processes or a user", words.join(" ")))
        }
        // JIAJIA's form: the second word is the user, the third the password.
        Err(_) => Ok(Host { name, user: Some((*second).to_owned()), port, processes: 1 }),
    }
}

/// Whether it can be a host: a name of DNS or of ssh's configuration, or an address, with a zone or without.
fn is_host(name: &str) -> bool {
    let address = name.split('%').next().unwrap_or_default();
    is_word(name) || address.parse::<Ipv6Addr>().is_ok()
}

/// Whether it has the characters of a name. One that begins with a dash would be an option of ssh.
fn is_word(text: &str) -> bool {
    let is_named = |letter: char| letter.is_alphanumeric() || "._-+$\\".contains(letter);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_named)
}

/// `name`, `name:2222`, `[fd00::1]:2222`, `fd00::1`.
fn name_and_port(word: &str) -> Result<(String, Option<u16>), String> {
    let port = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a port"));
    if let Some(rest) = word.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').ok_or_else(|| format!("{word:?}: a ] is missing"))?;
        return match rest.strip_prefix(':') {
            Some(text) => Ok((name.to_owned(), Some(port(text)?))),
            None if rest.is_empty() => Ok((name.to_owned(), None)),
            None => Err(format!("{word:?} is not the name of a host")),
        };
    }
    match word.split_once(':') {
        Some((name, text)) if !text.contains(':') => Ok((name.to_owned(), Some(port(text)?))),
        _ => Ok((word.to_owned(), None)),
    }
}

/// The variables for the settings of the `.jiaconf` next to the list.
pub(crate) fn settings_next_to(list: &Path) -> Result<Vec<Variable>, Failure> {
    let path = list.with_file_name(".jiaconf");
    match std::fs::read_to_string(&path) {
        Ok(text) => settings(&text)
            .map_err(|(line, why)| Failure::usage(format!("{}, line {line}: {why}", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Failure::io(format!("cannot read {}", path.display()), error)),
    }
}

/// Name and value.
type Variable = (&'static str, String);

fn settings(text: &str) -> Result<Vec<Variable>, (usize, String)> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let named = (1..).zip(lines).filter_map(|(at, line)| Some((at, line.split_once('=')?)));
    let variables =
        named.map(|(at, (key, value))| setting(key.trim(), value.trim()).map_err(|why| (at, why)));
    variables.filter_map(Result::transpose).collect()
}

/// `None` for settings without a counterpart here, such as buffers and modes.
fn setting(key: &str, value: &str) -> Result<Option<Variable>, String> {
    let wanted = |what: &str| Err(format!("{key} is {value:?}; set it to {what}"));
    let number = |variable| match value.parse::<u32>() {
        Ok(number) => Ok(Some((variable, number.to_string()))),
        Err(_) => wanted("a whole number"),
    };
    match (key, value) {
        ("comm_type", "udp" | "rdma") => Ok(Some(("FERROCE_DSM_TRANSPORT", value.to_owned()))),
        ("comm_type", _) => wanted("udp or rdma"),
        ("prefetch", "on") => Ok(Some(("FERROCE_DSM_PREFETCH", "1".to_owned()))),
        ("prefetch", "off") => Ok(Some(("FERROCE_DSM_PREFETCH", "0".to_owned()))),
        ("prefetch", _) => wanted("on or off"),
        ("prefetch_pages", _) => number("FERROCE_DSM_PREFETCH_PAGES"),
        ("max_checking_pages", _) => number("FERROCE_DSM_MAX_CHECKING_PAGES"),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(name: &str, processes: u32) -> Host {
        Host { name: name.into(), user: None, port: None, processes }
    }

    #[test]
    fn our_own_form() {
        let list =
            parse("# mine\n\na\nb:2222 4\nme@c slots=2 # three\n[fd00::1]:22\nfd00::2 3\n").expect("a list");
        let user = Host { user: Some("me".into()), ..plain("c", 2) };
        let six = Host { port: Some(22), ..plain("fd00::1", 1) };
        let two = Host { port: Some(2222), ..plain("b", 4) };
        assert_eq!(list.hosts, [plain("a", 1), two, user, six, plain("fd00::2", 3)]);
        assert!(!list.passwords);
    }

    #[test]
    fn the_form_of_jiajia() {
        let list = parse("192.0.2.1 ann secret\n192.0.2.2 ann secret\n").expect("a list");
        assert_eq!(list.hosts[1], Host { user: Some("ann".into()), ..plain("192.0.2.2", 1) });
        assert!(list.passwords);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, line) in [
            ("", 1),
            ("a\nb:x\n", 2),
            ("a 0", 1),
            ("-oProxyCommand=x", 1),
            ("a -x", 1),
            ("a cores=2", 1),
            ("a\nb 1025", 2),
            ("a 2 b", 1),
        ] {
            assert_eq!(parse(text).expect_err(text).0, line, "{text}");
        }
    }

    #[test]
    fn lines_that_are_no_hosts_are_refused_as_such() {
        for text in ["root:x:0:0:root:/root:/bin/sh", "../machines", "{", "a;b", "me@", "[::1]x", "a,b"] {
            let why = format!("{text:?} is not the name of a host");
            assert_eq!(parse(&format!("a\n{text} 2\n")), Err((2, why)));
        }
        let (_, why) = parse("this is no host").expect_err("a sentence");
        assert_eq!(why, "\"this is no host\" is not a host, with a number of processes or a user");
        for text in ["node-1.example_2", "fe80::1%eth0", "DOM\\ann@a", "[fe80::1%eth0]:22 3", "größe.test"]
        {
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn settings_are_translated() {
        let text = "# x\ncomm_type = rdma\nprefetch = off\nprefetch_pages = 4 # four\nmsg_buffer_size = 16\n";
        let wanted = [
            ("FERROCE_DSM_TRANSPORT", "rdma".to_owned()),
            ("FERROCE_DSM_PREFETCH", "0".to_owned()),
            ("FERROCE_DSM_PREFETCH_PAGES", "4".to_owned()),
        ];
        assert_eq!(settings(text), Ok(wanted.into()));
    }

    #[test]
    fn settings_that_mean_nothing_are_named_with_their_line() {
        for (text, why) in [
            ("prefetch = yes", "prefetch is \"yes\"; set it to on or off"),
            ("prefetch_pages = many", "prefetch_pages is \"many\"; set it to a whole number"),
            ("max_checking_pages =", "max_checking_pages is \"\"; set it to a whole number"),
            ("comm_type = tcp", "comm_type is \"tcp\"; set it to udp or rdma"),
        ] {
            assert_eq!(settings(&format!("# x\nmode = 3\n{text}\n")), Err((3, why.to_owned())));
        }
    }
}
