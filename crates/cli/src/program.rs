//! Runs a foreign program as a shell would: forwards signals, and returns its exit status.

use crate::child;
use crate::failure::Failure;
use crate::signals;
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Exit status of a shell for a command that it cannot find.
pub(crate) const NOT_FOUND: u8 = 127;
/// Exit status of a shell for a command that it found and cannot run.
pub(crate) const CANNOT_RUN: u8 = 126;

/// The file that a shell would start for this name. In `PATH` it skips files that may not be executed, as `execvp` does, unless there
/// is no other; then the error names the first.
pub(crate) fn search(name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    search_in(&std::env::var_os("PATH").unwrap_or_default(), name)
}

fn search_in(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| access(file.as_path(), Access::EXEC_OK).is_ok();
    let files = || std::env::split_paths(path).map(|folder| folder.join(name)).filter(|file| file.is_file());
    files().find(is_executable).or_else(|| files().next())
}

/// Runs the program to its end. The program receives the signals that are sent to this process, and dies with it.
pub(crate) fn run_to_end(mut command: Command) -> Result<ExitStatus, Failure> {
    child::die_with_parent(&mut command, libc::SIGTERM);
    let blocked = signals::Blocked::new();
    blocked.release_in(&mut command);
    let child = command.spawn().map_err(|error| cannot_start(&command, &error))?;
    blocked.wait(child).map_err(|error| Failure::io("cannot wait for the program", error))
}

/// Executes the program in this process; returns only if that fails.
pub(crate) fn exec(mut command: Command) -> Failure {
    let error = command.exec();
    cannot_start(&command, &error)
}

/// As the shell reports it: 128 + the signal that killed the program.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Explains why a program did not start, with the exit status of a shell.
pub(crate) fn cannot_start(command: &Command, error: &io::Error) -> Failure {
    let program = Path::new(command.get_program());
    let failure = Failure::io(format!("cannot start {}", program.display()), error);
    match error.kind() {
        // A script whose interpreter is missing gives the same error.
        ErrorKind::NotFound if program.is_file() => failure
            .exit_with(CANNOT_RUN)
            .advise("The file is there, so its interpreter or loader is missing: check its first line"),
        ErrorKind::NotFound => failure.exit_with(NOT_FOUND).advise("Check the name, or give its path"),
        ErrorKind::PermissionDenied => {
            failure.exit_with(CANNOT_RUN).advise("Is it executable? See: ls -l, chmod +x")
        }
        _ => failure.exit_with(CANNOT_RUN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_executed_is_skipped() {
        use std::os::unix::fs::PermissionsExt;
        let base = std::env::temp_dir().join(format!("ferroce-search-{}", std::process::id()));
        let [first, second] = ["first", "second"].map(|name| base.join(name));
        for (folder, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir_all(folder).expect("a folder");
            std::fs::write(folder.join("x"), "").expect("our own folder");
            std::fs::set_permissions(folder.join("x"), PermissionsExt::from_mode(mode))
                .expect("our own file");
        }
        let path = std::env::join_paths([&first, &second]).expect("a path");
        assert_eq!(search_in(&path, OsStr::new("x")), Some(second.join("x")));
        assert_eq!(search_in(first.as_os_str(), OsStr::new("x")), Some(first.join("x")), "the only one");
        assert_eq!(search_in(&path, OsStr::new("y")), None);
        std::fs::remove_dir_all(base).expect("our own folder");
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGKILL)), 137);
    }
}
