//! The GID table follows the machine's addresses, and so do the ids of connections.

use crate::addresses::AddressTable;
use crate::cm::CmService;
use crate::engine::Chore;
use crate::queues::EventSource;
use ferroce_os::watch;
use ferroce_proto::verbs::EventKind;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Keeps the GID table up to date, and notifies the ids of connections.
pub(crate) struct FollowAddresses {
    table: Arc<AddressTable>,
    cm: Arc<CmService>,
    /// The interfaces that had the device's addresses when it last had any.
    interfaces: Vec<u32>,
}

impl FollowAddresses {
    pub(crate) fn new(table: Arc<AddressTable>, cm: Arc<CmService>) -> Self {
        let interfaces = table.interfaces();
        FollowAddresses { table, cm, interfaces }
    }

    /// Whether the device has gone with its interfaces, as a kernel's RoCE device does. Returns `true` once.
    fn is_device_gone(&mut self) -> bool {
        let now = self.table.interfaces();
        if !now.is_empty() {
            self.interfaces = now;
            return false;
        }
        let is_gone =
            !self.interfaces.is_empty() && !self.interfaces.iter().any(|i| watch::has_interface(*i));
        if is_gone {
            self.interfaces.clear();
        }
        is_gone
    }
}

impl Chore for FollowAddresses {
    fn descriptor(&self) -> std::os::fd::RawFd {
        self.table.watch.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
    fn attend(&mut self) {
        let changed = self.table.refresh();
        // The addresses leave first, the interface a moment later.
        if self.is_device_gone() {
            self.table.events.raise(EventKind::DeviceFatal, EventSource::Device);
            self.cm.remove_device();
        } else if let Some((old, new)) = changed {
            self.cm.follow_addresses(&old, &new);
        }
    }
}
