//! One case, run inside the network namespace: start, watch, judge, clean up.
//!
//! Output goes to files, so that the output of a killed program is kept.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::process::kill_tree;

const TICK: Duration = Duration::from_millis(5);
/// Time limit for a server to end after its client.
const LINGER: Duration = Duration::from_secs(10);

/// A program under `ferroce run`.
pub struct Program {
    child: Child,
    log: PathBuf,
    title: String,
}

/// How a program is started.
pub(crate) struct Launcher {
    pub(crate) ferroce: PathBuf,
    /// Options of `ferroce run`.
    pub(crate) options: Vec<String>,
    pub(crate) logs: PathBuf,
}

impl Launcher {
    /// Starts `words`; its output goes to a file that is named after `name`.
    pub(crate) fn start(&self, name: &str, words: &[String]) -> Result<Program, String> {
        let mut command = Command::new(&self.ferroce);
        command.arg("run").args(&self.options).arg("--").args(words);
        Program::of(command, &self.logs, name)
    }

    /// The same with other options of `ferroce run`.
    pub(crate) fn with(&self, options: &[&str]) -> Launcher {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Launcher { ferroce: self.ferroce.clone(), options, logs: self.logs.clone() }
    }

    /// Runs a server and, once it is ready, a client. Both must succeed. Returns their outputs, and appends their last lines to `tails`.
    pub(crate) fn pair(
        &self,
        name: &str,
        [server, client]: [&[String]; 2],
        ready: impl Fn(&Program) -> bool,
        limit: Duration,
        tails: &mut Vec<String>,
    ) -> Result<[String; 2], String> {
        let mut server = self.start(&format!("{name} server"), server)?;
        let started = server
            .wait_until(limit, "listening", ready)
            .and_then(|()| self.start(&format!("{name} client"), client));
        let mut client = started.inspect_err(|_| tails.extend(server.tail()))?;
        let outcome = client.finish(limit).and_then(|()| server.finish_soon());
        tails.extend(server.tail().into_iter().chain(client.tail()));
        outcome.map(|()| [server.output(), client.output()])
    }
}

fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' }).collect()
}

impl Program {
    /// Starts a command; its output goes to a file in `logs` that is named after `name`.
    pub fn of(mut command: Command, logs: &Path, name: &str) -> Result<Program, String> {
        let log = logs.join(format!("{}.log", file_name(name)));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let title = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let out = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let again = out.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(out).stderr(again).current_dir(logs);
        let child = command.spawn().map_err(|error| format!("`{title}` did not start: {error}"))?;
        Ok(Program { child, log, title })
    }

    /// Its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its last lines, under its name.
    pub(crate) fn tail(&self) -> Vec<String> {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let shown = lines[lines.len().saturating_sub(25)..].iter().map(|line| format!("    {line}"));
        std::iter::once(format!("  $ {}", self.title)).chain(shown).collect()
    }

    /// Waits until `ready` returns `true`. Fails if the program ends first.
    pub fn wait_until(
        &mut self,
        limit: Duration,
        what: &str,
        ready: impl Fn(&Program) -> bool,
    ) -> Result<(), String> {
        let started = Instant::now();
        while !ready(self) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("`{}` ended ({status}) before {what}", self.title));
            }
            if started.elapsed() > limit {
                return Err(format!("`{}` was not {what} within {} s", self.title, limit.as_secs()));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Waits for its end, which must be a success.
    pub fn finish(&mut self, limit: Duration) -> Result<(), String> {
        match self.status(limit)? {
            status if status.success() => Ok(()),
            status => Err(format!("`{}`: {status}", self.title)),
        }
    }

    /// Waits for the end of a server whose client has ended.
    pub fn finish_soon(&mut self) -> Result<(), String> {
        self.finish(LINGER)
    }

    /// Waits for its end.
    pub(crate) fn status(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let started = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if started.elapsed() > limit => {
                    return Err(format!("`{}` ran past its limit of {} s", self.title, limit.as_secs()));
                }
                Ok(None) => std::thread::sleep(TICK),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            kill_tree(self.child.id());
            let _ = self.child.wait();
        }
    }
}

/// Whether this TCP port of our network namespace has a listener.
pub fn is_listening(port: u16) -> bool {
    sockets("tcp").any(|table| has_socket(&table, port, Some("0A")))
}

/// Whether a UDP socket of our network namespace has this port.
pub(crate) fn is_bound(port: u16) -> bool {
    sockets("udp").any(|table| has_socket(&table, port, None))
}

fn sockets(protocol: &str) -> impl Iterator<Item = String> {
    let tables = [format!("/proc/self/net/{protocol}"), format!("/proc/self/net/{protocol}6")];
    tables.into_iter().map(|table| std::fs::read_to_string(table).unwrap_or_default())
}

fn has_socket(table: &str, port: u16, state: Option<&str>) -> bool {
    let wanted = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_there = words.get(1).is_some_and(|local| local.ends_with(&wanted));
        is_there && state.is_none_or(|state| words.get(3) == Some(&state))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_seen() {
        let table = "  sl  local_address rem_address   st\n   0: 00000000:4853 00000000:0000 0A 0\n   1: 0100007F:1234 00000000:0000 01 0\n";
        assert!(has_socket(table, 0x4853, Some("0A")));
        assert!(!has_socket(table, 0x1234, Some("0A")), "connected, not listening");
        assert!(has_socket(table, 0x1234, None));
    }

    #[test]
    fn file_names_keep_to_themselves() {
        assert_eq!(file_name("ib_send_bw -c UD {v6}/x"), "ib_send_bw_-c_UD__v6__x");
    }
}
