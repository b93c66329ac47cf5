//! The members of multicast groups among the NICs of this host.
//!
//! A NIC publishes its memberships in its segment. There is a descriptor per group and interface, because a packet to a group is received on
//! the interface that it leaves by. A file that all NICs map counts the changes and shows which slots may publish a group. So a sender that
//! has cached the members of a group checks with one word that they are unchanged, and need not open the segments of other slots.

use super::mapping::{MappedBytes, Mapping};
use super::segment::{ECHOES, GROUP_DESCRIPTORS, SLOTS, ShmSegment, allocate, load_gid, store_gid};
use crate::registry::Registry;
use ferroce_os::lock::{Mutex, RwLock};
use ferroce_os::sync::{AtomicU32, AtomicU64, Ordering};
use ferroce_proto::Gid;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

const FILE: &str = "groups";
const FILE_LEN: usize = 4096;
const CHANGES_AT: usize = 0;
const SLOTS_AT: usize = 64;
/// Marks a valid descriptor; the low bits are the interface.
const PUBLISHED: u64 = 1 << 63;

/// This NIC's memberships, and the list of slots that may publish a group.
#[derive(Debug)]
pub struct GroupDescriptors {
    segment: Arc<ShmSegment>,
    /// The file that all NICs map.
    shared: Mapping,
    slot: u8,
    /// The number of joins of each group. Locked during a join or leave, so that the published memberships match the kernel's.
    joins: Mutex<HashMap<Gid, u32>>,
    published: RwLock<Vec<Gid>>,
    /// Locked while a socket is added to the list of echo sockets.
    publishing: Mutex<()>,
}

impl GroupDescriptors {
    pub(crate) fn open(registry: &Registry, segment: Arc<ShmSegment>) -> io::Result<GroupDescriptors> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(registry.directory().join(FILE))?;
        // Also extends the file to this length, and never shortens it.
        allocate(&file, 0, FILE_LEN)?;
        let shared = Mapping::new(&file, 0, FILE_LEN, true)?;
        let (joins, published, publishing) = Default::default();
        let table = GroupDescriptors { segment, shared, slot: registry.slot(), joins, published, publishing };
        // Clears the groups of an earlier owner of the slot.
        table.notify();
        Ok(table)
    }

    fn change_count(&self) -> &AtomicU64 {
        self.shared.long(CHANGES_AT)
    }

    /// Has a bit for each group that a slot publishes; several groups may share a bit. The bits stay when the slot's owner dies, until a new
    /// owner clears them.
    fn groups_of(&self, slot: u8) -> &AtomicU32 {
        self.shared.word(SLOTS_AT + usize::from(slot) * 4)
    }

    fn notify(&self) {
        let bits = self.published.read().iter().fold(0, |bits, group| bits | bit_of(*group));
        self.groups_of(self.slot).store(bits, Ordering::SeqCst);
        self.change_count().fetch_add(1, Ordering::SeqCst);
    }

    /// A counter that increases with every change of a membership of any NIC.
    pub fn changes(&self) -> u64 {
        self.change_count().load(Ordering::SeqCst)
    }

    /// Slots of NICs that may publish the group, including this NIC. Some of the NICs may be dead.
    pub fn slots(&self, group: Gid) -> impl Iterator<Item = u8> {
        let may_show = move |slot: &u8| self.groups_of(*slot).load(Ordering::SeqCst) & bit_of(group) != 0;
        (0..SLOTS as u16).map(|slot| slot as u8).filter(may_show)
    }

    /// Whether this NIC publishes any membership.
    #[inline]
    pub fn publishes_any(&self) -> bool {
        self.groups_of(self.slot).load(Ordering::Relaxed) > 0
    }

    /// Whether this NIC publishes that it listens to the group. As long as it does, senders with a ring to this NIC put packets of the
    /// group into the ring.
    pub fn is_published(&self, group: Gid) -> bool {
        self.published.read().contains(&group)
    }

    /// Joins a group with `join`, on these interfaces. The membership is published as long as the kernel may have packets of the group for this
    /// NIC: receivers use that to recognise duplicates.
    pub fn join(
        &self,
        group: Gid,
        interfaces: &[u32],
        join: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut joins = self.joins.lock();
        let is_first = !joins.contains_key(&group);
        if is_first {
            self.publish(group, interfaces);
        }
        let joined = join();
        match joined {
            Ok(()) => *joins.entry(group).or_default() += 1,
            Err(_) if is_first => self.withdraw(group),
            Err(_) => {}
        }
        joined
    }

    /// Reverts one `join`, with `leave`.
    pub fn leave(&self, group: Gid, leave: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut joins = self.joins.lock();
        leave()?;
        if let Some(count) = joins.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                joins.remove(&group);
                self.withdraw(group);
            }
        }
        Ok(())
    }

    /// Publishes the address and port of a socket that sends echoes. Returns `false` if the list is full.
    pub fn publish_echo_socket(&self, socket: (Gid, u16)) -> bool {
        if echo_sockets(&self.segment).any(|published| published == socket) {
            return true;
        }
        let _publishing = self.publishing.lock();
        let published: Vec<(Gid, u16)> = echo_sockets(&self.segment).collect();
        if published.contains(&socket) || published.len() == ECHOES {
            return published.contains(&socket);
        }
        let (port, gid) = self.segment.echo(published.len());
        store_gid(gid, socket.0);
        port.store(socket.1.into(), Ordering::SeqCst);
        true
    }

    /// Publishes all descriptors or none: if they do not fit, packets of the group arrive by UDP.
    fn publish(&self, group: Gid, interfaces: &[u32]) {
        let is_free = |&index: &usize| self.segment.group_descriptor(index).0.load(Ordering::Relaxed) == 0;
        let free: Vec<usize> = (0..GROUP_DESCRIPTORS).filter(is_free).take(interfaces.len()).collect();
        if free.len() < interfaces.len() {
            return;
        }
        for (&index, &interface) in free.iter().zip(interfaces) {
            let (word, gid) = self.segment.group_descriptor(index);
            store_gid(gid, group);
            word.store(PUBLISHED | u64::from(interface), Ordering::SeqCst);
        }
        self.published.write().push(group);
        self.notify();
    }

    fn withdraw(&self, group: Gid) {
        for index in 0..GROUP_DESCRIPTORS {
            let (word, gid) = self.segment.group_descriptor(index);
            if word.load(Ordering::Relaxed) != 0 && load_gid(gid) == group {
                word.store(0, Ordering::SeqCst);
            }
        }
        self.published.write().retain(|published| *published != group);
        self.notify();
    }
}

/// The sockets from which a NIC sends echoes.
pub(crate) fn echo_sockets(segment: &ShmSegment) -> impl Iterator<Item = (Gid, u16)> {
    (0..ECHOES).map_while(|index| {
        let (port, gid) = segment.echo(index);
        let port = port.load(Ordering::SeqCst) as u16;
        (port != 0).then(|| (load_gid(gid), port))
    })
}

fn bit_of(group: Gid) -> u32 {
    let both = u128::from_be_bytes(group.0);
    let folded = (both >> 64) as u64 ^ both as u64;
    1 << (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59)
}

/// Whether the owner of a segment listens to a group on an interface. Valid only if the change counter is the same before and after.
pub(crate) fn listens(segment: &ShmSegment, group: Gid, interface: u32) -> bool {
    (0..GROUP_DESCRIPTORS).any(|index| {
        let (word, gid) = segment.group_descriptor(index);
        word.load(Ordering::SeqCst) == PUBLISHED | u64::from(interface) && load_gid(gid) == group
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(number: u8) -> Gid {
        Gid::from_ip([239, 1, 2, number].into())
    }

    #[test]
    fn memberships_are_seen_by_all_until_they_end() {
        let base = std::env::temp_dir().join(format!("ferroce-groups-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registries = [(); 2].map(|()| Registry::open(&base).unwrap());
        let segments = registries.each_ref().map(|r| Arc::new(ShmSegment::create(r, &[], None).unwrap()));
        let [here, there] =
            [0, 1].map(|n| GroupDescriptors::open(&registries[n], segments[n].clone()).unwrap());
        let seen = ShmSegment::open(registries[0].directory(), registries[0].slot()).unwrap();
        let before = there.changes();
        assert_eq!(there.slots(group(1)).count(), 0);

        here.join(group(1), &[1, 7], || Ok(())).unwrap();
        here.join(group(1), &[9], || Ok(())).unwrap();
        assert_ne!(there.changes(), before);
        assert_eq!(there.slots(group(1)).collect::<Vec<_>>(), [registries[0].slot()]);
        assert_eq!([1, 7, 9].map(|n| listens(&seen, group(1), n)), [true, true, false]);
        assert!(!listens(&seen, group(2), 1) && here.is_published(group(1)) && !there.is_published(group(1)));

        let refused = || Err(io::Error::other("no such luck"));
        here.join(group(2), &[1], refused).unwrap_err();
        assert!(!here.is_published(group(2)), "not joined, not published");
        let too_many: Vec<u32> = (0..GROUP_DESCRIPTORS as u32).collect();
        here.join(group(3), &too_many, || Ok(())).unwrap();
        assert!(!here.is_published(group(3)) && !listens(&seen, group(3), 1), "no room for all of it");
        here.leave(group(3), || Ok(())).unwrap();

        here.leave(group(1), || Ok(())).unwrap();
        assert!(listens(&seen, group(1), 1), "joined twice");
        here.leave(group(1), || Ok(())).unwrap();
        assert!(!listens(&seen, group(1), 1) && there.slots(group(1)).count() == 0);
        here.join(group(4), &too_many, || Ok(())).unwrap();
        assert!(here.is_published(group(4)), "descriptors are used again");
        drop((here, there, segments, registries));
        std::fs::remove_dir_all(base).unwrap();
    }
}
