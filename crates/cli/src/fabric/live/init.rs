//! PID 1 of a host. It mounts the host's /proc, and it ends when ferroce ends, in whatever way: then the kernel kills every
//! process of the host, also those that a shell put into the background or a session of its own.

use super::tun::{Refused, Step};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;

/// PID 1 of a host.
pub(super) struct Init {
    /// The write end of a pipe that PID 1 reads. The end of this process closes it as well.
    alive: Option<PipeWriter>,
    process: Pid,
}

impl Init {
    /// Starts it. The thread must have left its PID namespace, and have no child in the new one.
    pub(super) fn start() -> Result<Init, Refused> {
        let refused = |error| (Step::Init, error);
        let (alive_end, alive) = io::pipe().map_err(refused)?;
        let (mut report_end, report) = io::pipe().map_err(refused)?;
        // SAFETY: this process has several threads, so the child may make system calls only, and it does no more than that.
        let process = match unsafe { libc::fork() } {
            0 => be_init(&alive_end, &report),
            process => Pid::from_raw(process).filter(|_| process > 0),
        };
        let Some(process) = process else { return Err(refused(io::Error::last_os_error())) };
        let init = Init { alive: Some(alive), process };
        drop(report);
        let mut code = [0; 4];
        report_end.read_exact(&mut code).map_err(refused)?;
        match i32::from_ne_bytes(code) {
            0 => Ok(init),
            code => Err((Step::Proc, io::Error::from_raw_os_error(code))),
        }
    }
}

impl Drop for Init {
    /// Ends all processes of the host. Those that this process started must have been waited for.
    fn drop(&mut self) {
        self.alive = None;
        let _ = waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// What PID 1 does after the fork: it reports the error of mounting /proc, 0 if there is none, and waits for the end of its parent.
fn be_init(alive: &PipeReader, report: &PipeWriter) -> ! {
    // SAFETY: system calls with constants, with a buffer of this function, and with descriptors that only this process has now.
    // No other code of this process runs, so all other descriptors may be closed.
    unsafe {
        libc::dup2(alive.as_raw_fd(), 0);
        libc::dup2(report.as_raw_fd(), 1);
        libc::syscall(libc::SYS_close_range, 2, libc::c_uint::MAX, 0);
        // The kernel reaps the orphans that PID 1 inherits.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::prctl(libc::PR_SET_NAME, c"fabric-host".as_ptr());
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let proc = c"proc".as_ptr();
        let mounted = libc::mount(proc, c"/proc".as_ptr(), proc, flags, std::ptr::null());
        let code = if mounted == 0 { 0 } else { *libc::__errno_location() };
        libc::write(1, code.to_ne_bytes().as_ptr().cast(), size_of::<libc::c_int>());
        libc::close(1);
        // Nothing is ever written, so only the end of the pipe or a signal ends this call. PID 1 ignores signals by default.
        let mut byte = 0u8;
        while libc::read(0, (&raw mut byte).cast(), 1) == -1 && *libc::__errno_location() == libc::EINTR {}
        libc::_exit(0)
    }
}
