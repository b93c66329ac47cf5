//! Starts a process on another host: by ssh, in the same folder, with the same arguments.
//!
//! The key of the job is not on the command line, where every user of that host could read it. It is the first line
//! of standard input, which the shell reads before it executes the program.

use super::hosts::Host;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

/// The variable that comes by standard input.
pub(crate) const SECRET: &str = "FERROCE_DSM_KEY";
/// Exit status of ssh if it failed itself.
pub(crate) const SSH_FAILED: i32 = 255;
/// Without a timeout, a host that drops our packets would stall the start for minutes. The options of `--ssh` come
/// first and have priority.
const CONNECT_TIMEOUT: &str = "ConnectTimeout=10";

/// Quotes a word for the shell of the other host.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut text = vec![b'\''];
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            byte => text.push(byte),
        }
    }
    text.push(b'\'');
    text
}

/// The command line for the other host's shell.
fn line(folder: &Path, variables: &[(OsString, OsString)], command: &[OsString]) -> OsString {
    let mut line = b"cd ".to_vec();
    line.extend(quoted(folder.as_os_str()));
    line.extend(format!(" && IFS= read -r {SECRET} && export {SECRET} && exec env").bytes());
    for (name, value) in variables {
        line.push(b' ');
        // The name is quoted too: only shells restrict the characters of a name.
        line.extend(quoted(name));
        line.push(b'=');
        line.extend(quoted(value));
    }
    for word in command {
        line.push(b' ');
        line.extend(quoted(word));
    }
    OsString::from_vec(line)
}

/// The command that starts it.
pub(crate) fn command(
    ssh: &str,
    host: &Host,
    folder: &Path,
    variables: &[(OsString, OsString)],
    program: &[OsString],
) -> Command {
    let mut words = ssh.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("ssh"));
    command.args(words).args(["-o", "BatchMode=yes", "-o", CONNECT_TIMEOUT, "-T"]);
    if let Some(port) = host.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &host.user {
        command.args(["-l", user]);
    }
    command.arg(&host.name).arg(line(folder, variables, program));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_are() {
        let words: Vec<OsString> =
            ["printf", "%s|", "a b", "it's", "$HOME", "", "*;\n"].map(Into::into).into();
        let variables = [("X_OF_TEST".into(), "1 '2'".into()), ("X_$(echo OF);'TEST".into(), "3".into())];
        let mut all = words.clone();
        all[0] = "sh".into();
        all[1] = "-c".into();
        all[2] = "printf '%s|' \"$X_OF_TEST\" \"$FERROCE_DSM_KEY\" \"$@\"; tr '\\0' '\\n' </proc/$$/environ | grep -c '^X_.(echo OF);.TEST=3$'; cat".into();
        let mut shell = Command::new("sh")
            .arg("-c")
            .arg(line(Path::new("/"), &variables, &all))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("sh starts");
        use std::io::Write;
        shell.stdin.take().expect("a pipe").write_all(b"secret\nand the rest").expect("sh reads");
        let output = shell.wait_with_output().expect("sh ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1 '2'|secret|$HOME||*;\n|1\nand the rest");
    }

    #[test]
    fn ssh_gets_user_and_port() {
        let host = Host { name: "far".into(), user: Some("ann".into()), port: Some(2222), processes: 1 };
        let command = command("ssh -4", &host, Path::new("/tmp"), &[], &["./x".into()]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        // The options of --ssh come first: ssh uses the first of two values.
        assert_eq!(words[..5], ["-4", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        assert_eq!(words[5..11], ["-T", "-p", "2222", "-l", "ann", "far"]);
    }
}
