//! What processes of this host see of a queue pair, and how it reaches them.

use super::{Engine, QpCore};
use crate::local::Path;
use ferroce_proto::qp::Qp;
use ferroce_proto::verbs::Transport;
use ferroce_shm::{Partner, QpDescriptor, QpDomain};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Engine {
    /// Finds out whether the peer's memory is within reach, and forgets how packets left. Called with the queue pair's lock held, when
    /// it was modified.
    pub(super) fn choose_path(&self, qp: &Arc<QpCore>, machine: &Qp) {
        // SAFETY: called with the lock held; the host uses it only while something is posted.
        unsafe { qp.short.get() }.clear_tx_cache();
        let Some(local_peers) = &self.local_peers else { return };
        let local_peer =
            machine.peer().and_then(|peer| Some((local_peers.find(machine.route().dgid, peer)?, peer)));
        // Only between two reliable connections are packets anything but those of the wire.
        let is_reliable = machine.transport() == Transport::Rc;
        qp.takes_large.store(is_reliable && local_peer.is_some(), Ordering::Relaxed);
        let path = local_peer.map(|(local_peer, peer)| {
            let owner: Weak<QpCore> = Arc::downgrade(qp);
            let cached_regions = [(); 2].map(|()| self.regions.cache(owner.clone()));
            let own = Partner::new(machine.service(), qp.qpn);
            Path::new(local_peers.clone(), local_peer, peer, own, cached_regions)
        });
        let fetches = is_reliable && path.as_ref().is_some_and(Path::can_fetch);
        qp.fetches.store(fetches, Ordering::Relaxed);
        // SAFETY: called with the lock held, and the host of the call has let go of it.
        *unsafe { qp.path.get() } = path;
    }

    /// Whether a plain message leaves nothing to be said about a queue pair: local peers have its descriptor, and no completion was lost.
    #[inline]
    pub(super) fn is_settled(&self, qp: &QpCore) -> bool {
        let is_published =
            self.local_peers.is_none() || qp.published_word.load(Ordering::Relaxed) != word_of(None);
        is_published && !qp.overrun.load(Ordering::Relaxed)
    }

    /// Publishes to local peers what they may do to this queue pair, if that has changed. Called with its lock held.
    pub(super) fn publish_qp(&self, qp: &QpCore, machine: &Qp) {
        let Some(local_peers) = &self.local_peers else { return };
        let (takes_large, fetches) =
            (qp.takes_large.load(Ordering::Relaxed), qp.fetches.load(Ordering::Relaxed));
        let descriptor = machine.terms().map(|(access, pd, peer)| {
            let domain = qp.xrc_domain.map_or(QpDomain::Pd(pd), QpDomain::Xrc);
            let partner = Partner::new(machine.service(), peer);
            QpDescriptor { access, domain, partner, takes_large, fetches }
        });
        // Nearly always nothing has changed. A change takes the lock and looks again.
        if qp.published_word.load(Ordering::Relaxed) == word_of(descriptor) {
            return;
        }
        let mut published = qp.published.lock();
        // Asked under this lock, so that whoever shuts it and then withdraws it is not overtaken.
        let descriptor = descriptor.filter(|_| !qp.is_shut.load(Ordering::Relaxed));
        if *published != descriptor {
            *published = descriptor;
            qp.published_word.store(word_of(descriptor), Ordering::Relaxed);
            local_peers.publish_qp(qp.qpn, descriptor);
        }
    }

    /// Withdraws a queue pair that was shut after it had been published. It is published again when something happens to it after
    /// it was opened.
    pub(crate) fn withdraw_if_shut(&self, qp: &QpCore) {
        if qp.is_shut.load(Ordering::Relaxed) {
            self.withdraw_qp(qp);
        }
    }

    /// Withdraws a queue pair that gives its requests up, before anybody hears of it: from then on their memory may be used for something
    /// else, and no message that it named must be taken any more. Called with its lock held.
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

/// A descriptor in one word, different for descriptors that differ; zero for none. Domain and service of a queue pair never change, so they
/// have no part in it.
fn word_of(descriptor: Option<QpDescriptor>) -> u64 {
    descriptor.map_or(0, |descriptor| {
        let large = u64::from(descriptor.takes_large) << 62 | u64::from(descriptor.fetches) << 61;
        1 << 63
            | large
            | u64::from(descriptor.access.bits() & 0xffff) << 24
            | u64::from(descriptor.partner.qpn().value())
    })
}
