//! Which process listens on a socket, and its state.

use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// A process, as far as this process may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    command: String,
    pub(super) activity: Activity,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Running or sleeping.
    Normal,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// It has ended; a child may still have its descriptors.
    Gone,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "process {}", self.pid),
            command => write!(f, "process {} ({command})", self.pid),
        }
    }
}

impl Process {
    /// The process that listens at the other end; `None` if it is in another PID namespace that is not visible here.
    pub(super) fn behind(stream: &UnixStream) -> Option<Process> {
        let pid = peer_pid(stream)?;
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let (command, activity) =
            parse_stat(&String::from_utf8_lossy(&stat)).unwrap_or_else(|| (String::new(), Activity::Gone));
        Some(Process { pid, command, activity })
    }
}

/// Name and state in `/proc/PID/stat`. The name may contain spaces and parentheses, so the last parenthesis ends it.
fn parse_stat(stat: &str) -> Option<(String, Activity)> {
    let (front, rest) = stat.rsplit_once(") ")?;
    let (_pid, command) = front.split_once(" (")?;
    let activity = match rest.chars().next()? {
        'T' | 't' => Activity::Stopped,
        'X' | 'x' => Activity::Gone,
        _ => Activity::Normal,
    };
    Some((command.to_owned(), activity))
}

fn peer_pid(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `peer`, and every bit pattern is a valid `ucred`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    // Processes of other PID namespaces have the number 0.
    (result == 0 && peer.pid > 0).then_some(peer.pid.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_behind_its_own_socket() {
        let (a, _b) = UnixStream::pair().unwrap();
        let process = Process::behind(&a).unwrap();
        assert_eq!((process.pid, process.activity), (std::process::id(), Activity::Normal));
        assert!(process.to_string().contains(" ("), "{process}");
    }

    #[test]
    fn odd_names_and_all_states_are_read() {
        let stat = |state: char| parse_stat(&format!("7 (a) T (b) {state} 1 7")).unwrap();
        assert_eq!(stat('T'), ("a) T (b".to_owned(), Activity::Stopped));
        assert_eq!(stat('t').1, Activity::Stopped);
        assert_eq!(stat('S').1, Activity::Normal);
        assert_eq!(stat('X').1, Activity::Gone);
        assert_eq!(parse_stat(""), None);
    }
}
