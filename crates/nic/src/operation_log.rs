//! `FERROCE_OPERATIONS`: the posts and completions of a program, one JSON object per line, for `ferroce timeline`.
//!
//! The data path knows nothing of it. The C library puts functions that record in front of the usual ones when a program opens the
//! device, and only if the variable is set.

use ferroce_os::clock::wall_clock_ns;
use ferroce_proto::{Gid, Qpn};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
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
    /// The record, if `FERROCE_OPERATIONS` names a file that can be written.
    pub fn of_process() -> Option<&'static OperationLog> {
        LOG.get_or_init(|| {
            let path = ferroce_os::env::var_os("FERROCE_OPERATIONS").filter(|path| !path.is_empty())?;
            OpenOptions::new().append(true).create(true).open(path).ok().map(OperationLog)
        })
        .as_ref()
    }

    /// The time for [`OperationLog::record`].
    pub fn now_ns() -> u64 {
        wall_clock_ns()
    }

    /// Adds operations of one time. A full disk loses them, and nothing else.
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
                LoggedCall::Post { name, wr_id, bytes } => {
                    write!(text, ",\"op\":\"post\",\"name\":\"{name}\",\"wr_id\":{wr_id},\"bytes\":{bytes}")
                }
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
