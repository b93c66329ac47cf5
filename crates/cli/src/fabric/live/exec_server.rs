//! Starts the commands of `ferroce fabric exec` on their hosts.
//!
//! A command has the caller's standard input, output, error and current directory, and the environment of the fabric. It
//! ends with its caller, and with the fabric.

use super::exec::{MAX_REQUEST, NAME, STREAMS, outer_name};
use super::launch::{Starter, exit_status};
use crate::child;
use crate::failure::Failure;
use crate::http::is_transient;
use crate::program;
use crate::sockopt::peer_uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::OsString;
use std::io::{IoSliceMut, PipeReader, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Duration;

/// Most commands at a time.
const MAX_COMMANDS: usize = 256;
/// How long a caller may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection that could not be accepted.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How long a command may take to end after its caller.
const TERM_TIMEOUT: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };

/// Serves callers until the other end of `stop` is closed.
pub(super) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    starter: &'env Starter<'env>,
    stop: &'env PipeReader,
    running: &'env AtomicUsize,
) {
    let listen = |name: String| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    let outside = outer_name(rustix::process::geteuid().as_raw(), std::process::id());
    let mut listeners = vec![listen(outside)];
    listeners.extend(starter.hosts.iter().filter_map(|host| host.run(move || listen(NAME.into()))));
    let (listeners, failed): (Vec<_>, Vec<_>) = listeners.into_iter().partition(Result::is_ok);
    if let Some(Err(error)) = failed.into_iter().next() {
        eprintln!("ferroce fabric: `ferroce fabric exec` does not work everywhere: {error}.");
    }
    let listeners: Vec<UnixListener> = listeners.into_iter().flatten().collect();
    scope.spawn(move || {
        loop {
            let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
            fds.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            if poll(&mut fds, None).is_err() {
                continue;
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            for (listener, _) in listeners.iter().zip(&fds[1..]).filter(|(_, fd)| !fd.revents().is_empty()) {
                let caller = match listener.accept() {
                    Ok((caller, _)) => caller,
                    Err(error) => {
                        // Without descriptors the caller stays in the queue, and `poll` would return immediately each time.
                        if is_transient(&error) {
                            std::thread::sleep(RETRY_AFTER);
                        }
                        continue;
                    }
                };
                if running.fetch_add(1, Ordering::Relaxed) >= MAX_COMMANDS {
                    running.fetch_sub(1, Ordering::Relaxed);
                    answer(
                        &caller,
                        1,
                        &format!("{MAX_COMMANDS} commands of `ferroce fabric exec` run already"),
                    );
                    continue;
                }
                scope.spawn(move || {
                    serve(&caller, starter, stop);
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    });
}

fn serve(caller: &UnixStream, starter: &Starter<'_>, stop: &PipeReader) {
    // Only the user of this fabric is served. Abstract socket names have no other protection.
    if peer_uid(caller).ok() != Some(rustix::process::geteuid().as_raw()) {
        return;
    }
    let Some(request) = receive(caller) else { return };
    match request.start(starter) {
        Ok(child) => {
            let code = watch(child, caller, stop);
            let _ = (&mut &*caller).write_all(&[code]);
        }
        Err(failure) => answer(caller, program::CANNOT_RUN, failure.what()),
    }
}

fn answer(mut caller: &UnixStream, code: u8, text: &str) {
    // The caller may be gone.
    let _ = caller.write_all(&[&[code], text.as_bytes()].concat());
}

struct Request {
    host: u32,
    folder: OsString,
    words: Vec<OsString>,
    streams: [OwnedFd; STREAMS],
}

/// Reads a request; none if it is malformed or late.
fn receive(mut caller: &UnixStream) -> Option<Request> {
    caller.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut len = [0; 4];
    let got =
        recvmsg(caller, &mut [IoSliceMut::new(&mut len)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let messages = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let streams: Vec<OwnedFd> = messages.flatten().collect();
    let len = u32::from_ne_bytes(len) as usize;
    if got.bytes != 4 || len > MAX_REQUEST {
        return None;
    }
    let mut bytes = vec![0; len];
    caller.read_exact(&mut bytes).ok()?;
    parse(&bytes, streams.try_into().ok()?)
}

fn parse(bytes: &[u8], streams: [OwnedFd; STREAMS]) -> Option<Request> {
    let mut fields = bytes.split(|byte| *byte == 0);
    let host = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let folder = OsString::from_vec(fields.next()?.to_vec());
    let words: Vec<OsString> = fields.map(|word| OsString::from_vec(word.to_vec())).collect();
    (!words.is_empty()).then_some(Request { host, folder, words, streams })
}

impl Request {
    fn start(self, starter: &Starter<'_>) -> Result<Child, Failure> {
        if self.host as usize >= starter.hosts.len() {
            return Err(Failure::new(format!(
                "host h{} does not exist; hosts are h0 to h{}",
                self.host,
                starter.hosts.len() - 1
            )));
        }
        let mut command = starter.command(self.host, &self.words)?;
        let [input, output, error] = self.streams.map(Stdio::from);
        command.current_dir(self.folder).stdin(input).stdout(output).stderr(error);
        // The caller's terminal is not that of the command, which has no job control.
        child::in_new_session(&mut command);
        starter.spawn(self.host, command)
    }
}

/// Waits for the end of a command; returns its exit status. The command is ended when its caller or the fabric ends.
fn watch(mut child: Child, caller: &UnixStream, stop: &PipeReader) -> u8 {
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return 1 };
    if let Ok(ends) = pidfd_open(pid, PidfdFlags::empty()) {
        let mut fds = [
            PollFd::new(&ends, PollFlags::IN),
            PollFd::new(caller, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        let (ended, left) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if !ended && left {
            let _ = kill_process_group(pid, Signal::TERM);
            let mut fds = [PollFd::new(&ends, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&TERM_TIMEOUT));
        }
    }
    // The command has ended, or must end now. It is not reaped yet, so its ID still names its group.
    if exit_status(&child).is_none() {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    child.wait().map_or(1, program::exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> [OwnedFd; STREAMS] {
        [(); STREAMS].map(|()| std::io::pipe().expect("a pipe").0.into())
    }

    #[test]
    fn a_request_has_a_host_a_folder_and_words() {
        let request = parse(b"3\0/tmp\0sh\0-c\0a b", streams()).expect("a request");
        assert_eq!((request.host, request.folder), (3, "/tmp".into()));
        assert_eq!(request.words, ["sh", "-c", "a b"]);
        for wrong in [&b""[..], b"3", b"3\0/tmp", b"h3\0/tmp\0sh", b"\xff\0/\0sh"] {
            assert!(parse(wrong, streams()).is_none(), "{wrong:?}");
        }
    }
}
