//! Looking into running processes: every NIC answers whoever of its user asks for its counters.
//!
//! There is no daemon, so each NIC listens itself, on a socket in the registry directory that only its user may enter.
//! The background thread answers; threads of the application, and so the data path, never notice. Asking is connecting:
//! whoever connects gets one JSON document and the end of the stream. The name of the connecting socket may ask for more.
//!
//! | file | question |
//! |---|---|
//! | `answer` | how a NIC answers without ever waiting for whoever asked |
//! | `ask` | how all NICs of a user are found and asked, and why one did not answer |
//! | `process` | which process is behind a socket, and what it is doing |
//! | `question` | what may be asked, and how |
//! | `snapshot` | what the document says |

mod answer;
mod ask;
mod process;
mod question;
mod snapshot;

pub(crate) use answer::{Answerer, Subject};
pub use ask::{InspectError, all, all_within, whole};
pub use snapshot::Snapshot;

use std::path::{Path, PathBuf};

/// Where the NIC in `slot` listens.
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
