//! Child processes that never outlive this process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Makes the kernel send `signal` to the child when the spawning thread ends. So the main thread must spawn it.
pub(crate) fn die_with_parent(command: &mut Command, signal: libc::c_int) {
    let parent = std::process::id();
    // SAFETY: runs between fork and exec and makes two plain system calls: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                return Err(io::Error::last_os_error());
            }
            // If the parent died before `prctl`, the kernel never sends the signal.
            if libc::getppid() as u32 != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

/// Starts the child in a session of its own, without a controlling terminal.
pub(crate) fn in_new_session(command: &mut Command) {
    // SAFETY: runs between fork and exec and makes one plain system call.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// A helper process, killed when this value is dropped.
pub(crate) struct Helper(pub(crate) Child);

impl Helper {
    /// Starts the helper.
    pub(crate) fn spawn(mut command: Command) -> io::Result<Helper> {
        die_with_parent(&mut command, libc::SIGKILL);
        command.spawn().map(Helper)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn a_dropped_helper_is_gone() {
        let mut command = Command::new("sleep");
        command.arg("600").stdout(Stdio::null());
        let helper = Helper::spawn(command).expect("sleep starts");
        let process = format!("/proc/{}", helper.0.id());
        assert!(std::path::Path::new(&process).exists());
        drop(helper);
        assert!(!std::path::Path::new(&process).exists());
    }
}
