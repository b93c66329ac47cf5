//! What processes of this host see of a queue pair, and how it reaches them.

use super::Engine;
use crate::local::{Path, QpCard};
use crate::objects::QpCore;
use ferroce_proto::qp::Qp;
use std::sync::atomic::Ordering;

impl Engine {
    /// Finds out whether the peer's memory is within reach. Called with the queue pair's lock held, when it was modified.
    pub(super) fn choose_path(&self, qp: &QpCore, machine: &Qp) {
        let Some(fabric) = &self.fabric else { return };
        let neighbour =
            machine.peer().and_then(|peer| Some((fabric.neighbour(machine.route().dgid, peer)?, peer)));
        *qp.path.lock() =
            neighbour.map(|(neighbour, peer)| Path::new(fabric.clone(), neighbour, peer, qp.qpn));
    }

    /// Shows neighbours what they may do to this queue pair, if that has changed. Called with its lock held.
    pub(super) fn show(&self, qp: &QpCore, machine: &Qp) {
        let Some(fabric) = &self.fabric else { return };
        let takes_large = qp.path.lock().is_some();
        let card = machine.terms().map(|(access, pd, peer)| QpCard { access, pd, peer, takes_large });
        let mut shown = qp.shown.lock();
        // Asked under this lock, so that whoever shuts it and then hides it is not overtaken.
        let card = card.filter(|_| !qp.is_shut.load(Ordering::Relaxed));
        if *shown != card {
            *shown = card;
            fabric.show_qp(qp.qpn, card);
        }
    }

    /// Hides a queue pair that was shut after it had been shown. It is shown again when something happens to it after
    /// it was opened.
    pub(crate) fn hide_shut(&self, qp: &QpCore) {
        let Some(fabric) = &self.fabric else { return };
        if qp.is_shut.load(Ordering::Relaxed) {
            let mut shown = qp.shown.lock();
            *shown = None;
            fabric.show_qp(qp.qpn, None);
        }
    }
}
