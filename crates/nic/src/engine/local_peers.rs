//! The descriptor of a queue pair that processes of this host read, and its path to them.

use super::{Engine, QpCore};
use crate::link::RxPacket;
use crate::local::Path;
use ferroce_os::log;
use ferroce_proto::Qpn;
use ferroce_proto::qp::{DropReason, Qp};
use ferroce_proto::verbs::{Access, Transport};
use ferroce_shm::{Partner, QpDescriptor, QpDomain, StoppedPeer};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Engine {
    /// Determines whether the peer's memory can be accessed directly, and clears the TX cache. Called with the queue pair's lock held, after
    /// it was modified.
    pub(super) fn choose_path(&self, qp: &Arc<QpCore>, machine: &Qp) {
        // SAFETY: the caller holds the lock; the host uses the packet only while something is posted.
        unsafe { qp.short.get() }.clear_tx_cache();
        let Some(local_peers) = &self.local_peers else { return };
        let local_peer =
            machine.peer().and_then(|peer| Some((local_peers.find(machine.route().dgid, peer)?, peer)));
        // Only reliable connections use packets on this host that differ from those of the wire.
        let is_reliable = machine.transport() == Transport::Rc && !self.device.is_strict;
        qp.takes_large.store(is_reliable && local_peer.is_some(), Ordering::Relaxed);
        let path = local_peer.map(|(local_peer, peer)| {
            let owner: Weak<QpCore> = Arc::downgrade(qp);
            let cached_regions = [(); 2].map(|()| self.device.regions.cache(owner.clone()));
            // In strict mode every direct operation is declined and travels as packets.
            let is_direct = !self.device.is_strict;
            let own = if is_direct { Partner::new(machine.service(), qp.qpn) } else { Partner::NONE };
            Path::new(local_peers.clone(), local_peer, peer, own, cached_regions)
        });
        let fetches = is_reliable && path.as_ref().is_some_and(Path::can_fetch);
        qp.fetches.store(fetches, Ordering::Relaxed);
        qp.fetches_gpu.store(fetches, Ordering::Relaxed);
        // SAFETY: the caller holds the lock, and the host of the call has released the path.
        *unsafe { qp.path.get() } = path;
    }

    /// Whether a process other than the local peer's sent this UDP packet: any user of the host can send from the peer's address. Counts and
    /// logs such a packet.
    #[cold]
    pub(super) fn is_from_stranger(&self, path: &Path, qpn: Qpn, packet: &RxPacket<'_>) -> bool {
        let (from, sport) = (packet.arrival.sgid.to_ip(), packet.sport);
        let is_stranger = !path.is_from_peer(sport);
        if is_stranger {
            self.device.counters.dropped(DropReason::WrongPort);
            log::drop(format_args!(
                "the process of this host that QP {qpn} is connected to does not send from UDP port {sport} (from {from}): another program \
                 forges its packets. `ss -uanp 'sport = {sport}'` shows it while its socket is open"
            ));
        }
        is_stranger
    }

    /// Whether a plain message needs no further steps: local peers have the queue pair's descriptor, and no completion was lost.
    #[inline]
    pub(super) fn is_settled(&self, qp: &QpCore) -> bool {
        let is_published =
            self.local_peers.is_none() || qp.published_word.load(Ordering::Relaxed) != word_of(None);
        is_published && !qp.overrun.load(Ordering::Relaxed)
    }

    /// Publishes to local peers what they may do to this queue pair, if that has changed. Called with its lock held.
    pub(super) fn publish_qp(&self, qp: &QpCore, machine: &Qp) {
        let Some(local_peers) = &self.local_peers else { return };
        let [takes_large, fetches, fetches_gpu] =
            [&qp.takes_large, &qp.fetches, &qp.fetches_gpu].map(|is_so| is_so.load(Ordering::Relaxed));
        let descriptor = machine.terms().map(|(access, pd, peer)| {
            let access = if self.device.is_strict { Access::empty() } else { access };
            let domain = qp.xrc_domain.map_or(QpDomain::Pd(pd), QpDomain::Xrc);
            let partner = Partner::new(machine.service(), peer);
            QpDescriptor { access, domain, partner, takes_large, fetches, fetches_gpu }
        });
        // Nearly always nothing has changed. After a change, compare again with the lock held.
        if qp.published_word.load(Ordering::Relaxed) == word_of(descriptor) {
            return;
        }
        let mut published = qp.published.lock();
        // Checked under this lock, so that a thread that shuts the queue pair and then withdraws it is not overtaken.
        let descriptor = descriptor.filter(|_| !qp.is_shut.load(Ordering::Relaxed));
        if *published != descriptor {
            *published = descriptor;
            qp.published_word.store(word_of(descriptor), Ordering::Relaxed);
            qp.was_published.fetch_or(descriptor.is_some(), Ordering::Relaxed);
            local_peers.publish_qp(qp.qpn, descriptor);
        }
    }

    /// Waits until no local peer accesses memory through a queue pair that was stopped and withdrawn. Called without its lock.
    pub(super) fn wait_for_accesses(&self, qp: &QpCore) {
        let Some(local_peers) = &self.local_peers else { return };
        if !qp.was_published.load(Ordering::Relaxed) {
            return;
        }
        if let Err(StoppedPeer { process }) = local_peers.wait_for_qp(qp.qpn) {
            let process =
                process.map_or_else(|| "a process".to_owned(), |process| format!("process {process}"));
            log::choice(format_args!(
                "{process} is stopped in the middle of an access through QP {}, which has ended: the access ends when the process \
                 continues. Deregistration of the memory waits for it",
                qp.qpn
            ));
        }
    }

    /// Withdraws a queue pair that was shut after it had been published. The first event after it was opened publishes it again.
    pub(crate) fn withdraw_if_shut(&self, qp: &QpCore) {
        if qp.is_shut.load(Ordering::Relaxed) {
            self.withdraw_qp(qp);
        }
    }

    /// Withdraws a queue pair whose requests fail, before any completion reports it: from then on the program may reuse their memory,
    /// and the peer must not fetch its rendezvous sends any more. Called with its lock held.
    #[cold]
    pub(super) fn withdraw_failed(&self, qp: &QpCore) {
        if qp.published_word.load(Ordering::Relaxed) != word_of(None) {
            self.withdraw_qp(qp);
        }
    }

    fn withdraw_qp(&self, qp: &QpCore) {
        let Some(local_peers) = &self.local_peers else { return };
        let mut published = qp.published.lock();
        *published = None;
        qp.published_word.store(word_of(None), Ordering::Relaxed);
        local_peers.publish_qp(qp.qpn, None);
    }
}

/// A descriptor in one word, different for descriptors that differ; zero for none. It leaves out domain and service, which never change
/// for a queue pair.
fn word_of(descriptor: Option<QpDescriptor>) -> u64 {
    descriptor.map_or(0, |descriptor| {
        let large = u64::from(descriptor.takes_large) << 62 | u64::from(descriptor.fetches) << 61;
        1 << 63
            | large
            | u64::from(descriptor.fetches_gpu) << 60
            | u64::from(descriptor.access.bits() & 0xffff) << 24
            | u64::from(descriptor.partner.qpn().value())
    })
}
