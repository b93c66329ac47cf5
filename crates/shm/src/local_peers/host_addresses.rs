//! The addresses of this host.

use ferroce_os::clock::now;
use ferroce_os::interfaces::local_addresses;
use ferroce_os::lock::RwLock;
use ferroce_proto::Gid;

/// How long the list is cached.
const CACHED_FOR_NS: u64 = 1_000_000_000;

#[derive(Default)]
struct List {
    read_ns: u64,
    gids: Vec<Gid>,
}

impl List {
    fn is_recent(&self) -> bool {
        self.read_ns > 0 && now().0.wrapping_sub(self.read_ns) < CACHED_FOR_NS
    }
}

pub(super) struct HostAddresses(RwLock<List>);

impl HostAddresses {
    pub(super) fn new() -> HostAddresses {
        HostAddresses(RwLock::new(List::default()))
    }

    /// Whether an address belongs to this host, as of the last second.
    pub(super) fn contains(&self, gid: Gid) -> bool {
        {
            let list = self.0.read();
            if list.is_recent() {
                return list.gids.contains(&gid);
            }
        }
        let mut list = self.0.write();
        if !list.is_recent() {
            let found = local_addresses().unwrap_or_default();
            list.gids = found.into_iter().map(|local| Gid::from_ip(local.addr)).collect();
            list.read_ns = now().0;
        }
        list.gids.contains(&gid)
    }
}
