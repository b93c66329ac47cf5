//! The UDP ports that a NIC sends from. Only processes of the same user can read or change the list, and the kernel binds a port for one user
//! only. So if a local peer receives a packet of a connection from another port, another user has sent it.

use super::segment::ShmSegment;
use ferroce_os::sync::Ordering;
use std::sync::Arc;

/// The owner's side of the list.
#[derive(Debug)]
pub struct SourcePorts {
    segment: Arc<ShmSegment>,
}

impl SourcePorts {
    pub(crate) fn new(segment: Arc<ShmSegment>) -> SourcePorts {
        SourcePorts { segment }
    }

    /// Adds a port. The caller does this before it sends the first packet from it. The port stays in the list as long as the NIC is open.
    pub fn publish(&self, port: u16) {
        self.segment.source_ports(port).fetch_or(bit(port), Ordering::Release);
    }
}

/// Whether the owner of a segment sends from this port.
pub(crate) fn is_published(segment: &ShmSegment, port: u16) -> bool {
    segment.source_ports(port).load(Ordering::Acquire) & bit(port) != 0
}

fn bit(port: u16) -> u64 {
    1 << (port % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn only_ports_that_were_added_are_found() {
        let base = std::env::temp_dir().join(format!("ferroce-ports-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registry = Arc::new(Registry::open(&base).unwrap());
        let segment = Arc::new(ShmSegment::create(&registry, &[], None).unwrap());
        let ports = SourcePorts::new(segment.clone());
        let theirs = ShmSegment::open(registry.directory(), registry.slot()).unwrap();
        let added = [0, 63, 64, 0xC000, 0xFFFF];
        added.iter().for_each(|&port| ports.publish(port));
        assert!((0..=u16::MAX).all(|port| is_published(&theirs, port) == added.contains(&port)));
        drop((ports, segment, registry));
        std::fs::remove_dir_all(base).unwrap();
    }
}
