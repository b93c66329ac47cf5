//! Inspection of running processes: every NIC reports its counters to other processes of its user.
//!
//! There is no daemon. Each NIC listens on a Unix socket in the registry directory, which only its user may enter. The background thread
//! answers, so the threads of the application are not disturbed. A client connects and gets one JSON document, then the end of the
//! stream. The name of the client's socket may request more than the default document.
//!
//! | file | question |
//! |---|---|
//! | `answer` | how a NIC answers without waiting for its clients |
//! | `ask` | how a client finds and queries all NICs of a user, and why one did not answer |
//! | `process` | which process listens on a socket, and its state |
//! | `question` | the possible requests and their encoding |
//! | `snapshot` | the document |

mod answer;
mod ask;
mod process;
mod question;
mod snapshot;

pub(crate) use answer::{Answerer, Subject};
pub use ask::{InspectError, all, all_within, whole};
pub use snapshot::Snapshot;

use std::path::{Path, PathBuf};

/// The socket on which the NIC in `slot` listens.
fn socket_path(directory: &Path, slot: u8) -> PathBuf {
    directory.join(format!("nic-{slot}.sock"))
}

/// The slot whose socket has this file name.
fn slot_of(name: &str) -> Option<u8> {
    let slot = name.strip_prefix("nic-")?.strip_suffix(".sock")?.parse().ok()?;
    (socket_path(Path::new(""), slot).as_os_str() == name).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_and_slots() {
        assert_eq!(slot_of("nic-254.sock"), Some(254));
        for name in
            ["nic-.sock", "nic-300.sock", "nic-+1.sock", "nic-01.sock", "slot-1.sock", "nic-1.sock.old"]
        {
            assert_eq!(slot_of(name), None, "{name}");
        }
    }
}
