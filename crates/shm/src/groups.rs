//! Which NICs are members of which multicast group.
//!
//! A NIC publishes its memberships in its segment: a descriptor per group and interface, since a packet to a group is received on the
//! interface that it leaves by. A file that all NICs map counts the changes and has a list of the slots that may publish a group. So a sender
//! that has cached the members of a group can tell from one word that they are unchanged, and can skip the segments of all others.

use super::mapping::Mapping;
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
/// With an interface: the descriptor is valid.
const PUBLISHED: u64 = 1 << 63;

/// This NIC's memberships, and where those of others are found.
#[derive(Debug)]
pub struct GroupDescriptors {
    segment: Arc<ShmSegment>,
    /// What all NICs share.
    shared: Mapping,
    slot: u8,
    /// How often each group was joined. Held while one is joined or left, so that what is published follows what is.
    joins: Mutex<HashMap<Gid, u32>>,
    published: RwLock<Vec<Gid>>,
    /// Held while a socket is added to those by which echoes leave.
    publishing: Mutex<()>,
}

impl GroupDescriptors {
    pub(crate) fn open(registry: &Registry, segment: Arc<ShmSegment>) -> io::Result<GroupDescriptors> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(registry.directory().join(FILE))?;
        // Also makes it as long as that, and never shorter.
        allocate(&file, 0, FILE_LEN)?;
        let shared = Mapping::new(&file, 0, FILE_LEN, true)?;
        let (joins, published, publishing) = Default::default();
        let table = GroupDescriptors { segment, shared, slot: registry.slot(), joins, published, publishing };
        // What an earlier owner of the slot left.
        table.notify();
        Ok(table)
    }

    fn change_count(&self) -> &AtomicU64 {
        self.shared.long(CHANGES_AT)
    }

    /// A bit for each group that a slot publishes; some share one. They stay when the slot's owner dies, until it has a new one.
    fn groups_of(&self, slot: u8) -> &AtomicU32 {
        self.shared.word(SLOTS_AT + usize::from(slot) * 4)
    }

    fn notify(&self) {
        let bits = self.published.read().iter().fold(0, |bits, group| bits | bit_of(*group));
        self.groups_of(self.slot).store(bits, Ordering::SeqCst);
        self.change_count().fetch_add(1, Ordering::SeqCst);
    }

    /// Another number whenever somebody's memberships have changed.
    pub fn changes(&self) -> u64 {
        self.change_count().load(Ordering::SeqCst)
    }

    /// Slots of NICs that may publish the group, this one among them. Some may be gone.
    pub fn slots(&self, group: Gid) -> impl Iterator<Item = u8> {
        let may_show = move |slot: &u8| self.groups_of(*slot).load(Ordering::SeqCst) & bit_of(group) != 0;
        (0..SLOTS as u16).map(|slot| slot as u8).filter(may_show)
    }

    /// Whether this NIC publishes any membership.
    #[inline]
    pub fn publishes_any(&self) -> bool {
        self.groups_of(self.slot).load(Ordering::Relaxed) > 0
    }

    /// Whether this NIC publishes that it listens to the group. As long as it does, senders with a ring put what they send there
    /// into it.
    pub fn is_published(&self, group: Gid) -> bool {
        self.published.read().contains(&group)
    }

    /// Joins a group with `join`, on these interfaces. It is published as long as the kernel may have packets for it here:
    /// receivers use that to recognise duplicates.
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

    /// Takes back one `join`, with `leave`.
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

    /// Publishes a socket, its address and port, that echoes leave by. Returns whether there was room.
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

    /// All descriptors or none: where there is no room for them, packets must come by UDP.
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

/// The sockets that a NIC's echoes leave by.
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

/// Whether the owner of a segment listens to a group on an interface. Only good if nothing changes meanwhile.
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
