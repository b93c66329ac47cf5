//! `ferroce fabric exec` and `ferroce fabric ssh`: a command on a host of a running live fabric.
//!
//! The fabric has an abstract Unix socket in the network of every host, and one outside. Such a socket is no file, so it
//! disappears with its process. The caller sends its standard input, output and error; [`super::exec_server`] starts the command.

use super::ip;
use crate::failure::Failure;
use crate::program::CANNOT_RUN;
use crate::sockopt::peer_uid;
use clap::{ArgAction, Args};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::ExitCode;

/// Name of the socket in the network of a host, and beginning of the name outside.
pub(super) const NAME: &str = "ferroce-fabric";
/// Longest request in bytes.
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// Standard input, output and error.
pub(super) const STREAMS: usize = 3;

/// Name of the socket outside of the hosts, for the fabric of this process.
pub(super) fn outer_name(uid: u32, process: u32) -> String {
    format!("{NAME}-{uid}-{process}")
}

#[derive(Args)]
pub(crate) struct ExecArgs {
    /// The fabric: the process ID of its `ferroce fabric live`. Needed only outside of its hosts, if several run.
    #[arg(long, value_name = "PID")]
    fabric: Option<u32>,
    /// The host: h0, h1, …, or its address.
    host: String,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct SshArgs {
    /// Options of ssh with a value (-o, -p, -l, -i, -F) are accepted without effect.
    #[arg(short = 'o', short_aliases = ['p', 'l', 'i', 'F'], value_name = "OPTION")]
    ignored: Vec<OsString>,
    /// Flags of ssh (-T, -t, -q, -x, -X, -a, -A, -C, -4, -6) are accepted without effect.
    #[arg(short = 'T', short_aliases = ['t', 'q', 'x', 'X', 'a', 'A', 'C', '4', '6'], action = ArgAction::Count)]
    flags: u8,
    /// The command reads nothing from standard input.
    #[arg(short = 'n')]
    no_input: bool,
    /// The host: h0, h1, …, or its address; a user in front of it (USER@h1) is ignored.
    host: String,
    /// The line for the shell of the host. Several words are joined by spaces, as by ssh.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    line: Vec<OsString>,
}

pub(in crate::fabric) const EXEC_EXAMPLES: &str = "\
Examples:
  ferroce fabric exec h1 ferroce counters          on a host, or in another terminal
  ferroce fabric exec h0 sh -c 'ip -s link'";

pub(in crate::fabric) const SSH_EXAMPLES: &str = "\
Examples, on a host of a live fabric:
  ferroce fabric ssh h1 'uptime; ip address'
  ferroce dsm run --hosts hosts.txt --ssh 'ferroce fabric ssh' ./prog
  mpirun --mca plm_rsh_agent 'ferroce fabric ssh' -host h0,h1 ./prog";

/// Runs the words of the command line.
pub(in crate::fabric) fn exec(args: &ExecArgs) -> Result<ExitCode, Failure> {
    run(&args.host, &args.command, args.fabric, io::stdin().as_fd())
}

/// Runs a line in a shell.
pub(in crate::fabric) fn ssh(args: &SshArgs) -> Result<ExitCode, Failure> {
    let host = args.host.rsplit('@').next().unwrap_or_default();
    let words = ["sh".into(), "-c".into(), args.line.join(" ".as_ref())];
    match args.no_input {
        false => run(host, &words, None, io::stdin().as_fd()),
        true => {
            let null =
                File::open("/dev/null").map_err(|error| Failure::io("cannot open /dev/null", error))?;
            run(host, &words, None, null.as_fd())
        }
    }
}

fn run(
    host: &str,
    words: &[OsString],
    fabric: Option<u32>,
    input: BorrowedFd<'_>,
) -> Result<ExitCode, Failure> {
    let host = ip::host_named(host).ok_or_else(|| {
        Failure::usage(format!("{host:?} is no host of a live fabric")).advise("Hosts are h0, h1 and so on")
    })?;
    let folder =
        std::env::current_dir().map_err(|error| Failure::io("there is no current directory", error))?;
    let mut request = format!("{host}\0").into_bytes();
    request.extend(folder.as_os_str().as_bytes());
    for word in words {
        request.push(0);
        request.extend(word.as_bytes());
    }
    if request.len() > MAX_REQUEST {
        return Err(Failure::usage(format!(
            "the command has {} bytes; a live fabric takes at most {MAX_REQUEST}",
            request.len()
        )));
    }
    let fabric = connect(fabric)?;
    let streams = [input, io::stdout().as_fd(), io::stderr().as_fd()].map(|fd| fd.try_clone_to_owned());
    let streams = streams.into_iter().collect::<io::Result<Vec<_>>>();
    let streams =
        streams.map_err(|error| Failure::io("standard input, output and error must be open", error))?;
    let answer = exchange(fabric, &streams, &request)
        .map_err(|error| Failure::io("the live fabric has ended", error))?;
    match &answer[..] {
        [code] => Ok(ExitCode::from(*code)),
        [code, text @ ..] => Err(Failure::new(String::from_utf8_lossy(text)).exit_with(*code)),
        [] => Err(Failure::new("the live fabric has ended before the command").exit_with(CANNOT_RUN)),
    }
}

/// Sends the request; returns the answer: the exit status, and a text if the command did not start.
fn exchange(mut fabric: UnixStream, streams: &[std::os::fd::OwnedFd], request: &[u8]) -> io::Result<Vec<u8>> {
    let fds: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let len = (request.len() as u32).to_ne_bytes();
    sendmsg(&fabric, &[IoSlice::new(&len)], &mut control, SendFlags::NOSIGNAL)?;
    fabric.write_all(request)?;
    let mut answer = Vec::new();
    fabric.take(MAX_REQUEST as u64).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Connects to the fabric of this host, or to the only one that this user runs.
fn connect(fabric: Option<u32>) -> Result<UnixStream, Failure> {
    let named = |name: &str| UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?);
    let own = rustix::process::geteuid().as_raw();
    let process = match (fabric, named(NAME)) {
        (Some(process), _) => process,
        (None, Ok(stream)) => return Ok(stream),
        (None, Err(_)) => {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
            match running(&sockets, own)[..] {
                [] => {
                    return Err(Failure::new("no live fabric of this user runs here")
                        .advise("Start one: ferroce fabric live SCENARIO.toml -- COMMAND"));
                }
                [process] => process,
                ref several => {
                    let list: Vec<String> = several.iter().map(u32::to_string).collect();
                    return Err(Failure::usage(format!("{} live fabrics run", several.len()))
                        .advise(format!("Choose one with --fabric: {}", list.join(", "))));
                }
            }
        }
    };
    let refused = |why: String| Failure::new(format!("there is no live fabric of process {process}: {why}"));
    let stream = named(&outer_name(own, process)).map_err(|error| refused(error.to_string()))?;
    match peer_uid(&stream) {
        // Any user may use the name.
        Ok(uid) if uid == own => Ok(stream),
        _ => Err(refused("another user has taken its name".into())),
    }
}

/// The processes of the live fabrics of a user, from /proc/net/unix.
fn running(table: &str, uid: u32) -> Vec<u32> {
    let prefix = format!("@{}", outer_name(uid, 0).trim_end_matches('0'));
    let name = |line: &str| line.split_whitespace().last()?.strip_prefix(&prefix)?.parse().ok();
    let mut processes: Vec<u32> = table.lines().filter_map(name).collect();
    processes.sort_unstable();
    // One line per connection, with the same name.
    processes.dedup();
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_of_this_user_are_found_among_all_sockets() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 @ferroce-fabric-1000-77\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 2 @ferroce-fabric-1000-77\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 3 @ferroce-fabric-1000-9\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4 @ferroce-fabric-10005-8\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 5 /run/ferroce-fabric-1000-6\n";
        assert_eq!(running(table, 1000), [9, 77]);
        assert_eq!(running(table, 100), [0; 0]);
    }
}
