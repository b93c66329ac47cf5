//! `FERROCE_OPERATIONS`: the posts and completions of a program, one JSON object per line, for `ferroce timeline`.
//!
//! The data path does not contain it. The C library puts functions that record in front of the usual ones when a program opens the
//! device, and only if the variable is set.

use ferroce_os::clock::wall_clock_ns;
use ferroce_os::log;
use ferroce_proto::{Gid, Qpn};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

static LOG: OnceLock<Option<OperationLog>> = OnceLock::new();

/// The record of this process. All processes append to the same file, each entry with one call.
#[derive(Debug)]
pub struct OperationLog(File);

/// What a program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedCall {
    /// It connected a queue pair.
    Connect {
        /// The remote queue pair.
        dest_qpn: Qpn,
        /// The local address.
        sgid: Gid,
        /// The remote address.
        dgid: Gid,
    },
    /// It posted a request.
    Post {
        /// Name of the operation; a receive is `RECV`.
        name: &'static str,
        /// Number of the work request.
        wr_id: u64,
        /// Bytes of its scatter/gather list.
        bytes: u64,
        /// Whether it has a completion if it succeeds; each receive has.
        is_signaled: bool,
    },
    /// It polled a completion.
    Completion {
        /// Name of the operation.
        name: &'static str,
        /// Number of the work request.
        wr_id: u64,
        /// Bytes that were received or read.
        bytes: u64,
        /// Status as number of the verbs; 0 is success.
        status: u32,
    },
}

impl OperationLog {
    /// The record, if `FERROCE_OPERATIONS` names a regular file that can be written. Otherwise a warning reports why there is none.
    pub fn of_process() -> Option<&'static OperationLog> {
        LOG.get_or_init(|| {
            let path = ferroce_os::env::var_os("FERROCE_OPERATIONS").filter(|path| !path.is_empty())?;
            let path = Path::new(&path);
            let warn = |error| {
                log::warning(format_args!(
                    "operations are not recorded: FERROCE_OPERATIONS={}: {error}; name a regular file",
                    path.display()
                ));
            };
            open(path).map_err(warn).ok().map(OperationLog)
        })
        .as_ref()
    }

    /// The time for [`OperationLog::record`].
    pub fn now_ns() -> u64 {
        wall_clock_ns()
    }

    /// Adds operations with the same time stamp. If the disk is full, only these records are lost.
    pub fn record(&self, time_ns: u64, operations: impl Iterator<Item = (Qpn, LoggedCall)>) {
        let mut text = String::new();
        let pid = std::process::id();
        for (qpn, operation) in operations {
            let _ = write!(text, "{{\"t\":{time_ns},\"pid\":{pid},\"qp\":{}", qpn.value());
            let _ = match operation {
                LoggedCall::Connect { dest_qpn, sgid, dgid } => write!(
                    text,
                    ",\"op\":\"connect\",\"peer\":{},\"src\":\"{}\",\"dst\":\"{}\"",
                    dest_qpn.value(),
                    sgid.to_ip(),
                    dgid.to_ip()
                ),
                LoggedCall::Post { name, wr_id, bytes, is_signaled } => write!(
                    text,
                    ",\"op\":\"post\",\"name\":\"{name}\",\"wr_id\":{wr_id},\"bytes\":{bytes},\"signaled\":{is_signaled}"
                ),
                LoggedCall::Completion { name, wr_id, bytes, status } => write!(
                    text,
                    ",\"op\":\"completion\",\"name\":\"{name}\",\"wr_id\":{wr_id},\"bytes\":{bytes},\"status\":{status}"
                ),
            };
            text.push_str("}\n");
        }
        if !text.is_empty() {
            let _ = (&self.0).write_all(text.as_bytes());
        }
    }
}

/// Opens the record. Whoever may write to its folder can neither redirect it with a symbolic link nor block the process with a FIFO.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.append(true).create(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_a_record() {
        let folder = std::env::temp_dir().join(format!("ferroce-operation-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder of ours");
        let [file, link, fifo] = ["file", "link", "fifo"].map(|name| folder.join(name));
        open(&file).expect("a new file");
        open(&file).expect("the same file");
        std::os::unix::fs::symlink(&file, &link).expect("a symbolic link");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo of coreutils");
        assert!(made.success());
        open(&link).expect_err("a symbolic link");
        open(&fifo).expect_err("a FIFO that nobody reads");
        let _reader =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).expect("a reader");
        assert_eq!(open(&fifo).expect_err("a FIFO").to_string(), "it is no regular file");
        std::fs::remove_dir_all(folder).expect("our own folder");
    }
}
