//! Messages that name the sender's memory, from which the receiver copies them.
//!
//! A message through the ring is copied twice, one that is named once, by the kernel, on the receiver's processor. The receiver says on its card
//! whether it may read the sender's memory; it has tried. The sender's memory is in use until it hears of the copy. Should it give the message up
//! before, it hides its card before it says so to its program; so a receiver that finds the card in its place when it has copied has
//! copied what was sent.

use super::boards::find_qp;
use super::link::meta_of;
use super::reach::Path;
use crate::memory::Grip;
use ferroce_proto::PdId;
use ferroce_proto::qp::TxPayload;
use ferroce_proto::verbs::{Route, Sge};
use ferroce_proto::wire::{Names, SendNamed};
use std::sync::atomic::{Ordering, fence};

impl Path {
    /// Whether the peer may be told to fetch messages.
    pub(crate) fn may_name(&self) -> bool {
        let terms = find_qp(&self.neighbour.place, self.peer);
        terms.is_some_and(|terms| terms.fetches && terms.partner == self.own)
            && self.fabric.adopts
            && !self.neighbour.is_gone()
    }

    /// Puts a message that names memory into the ring, and says how long the record is. Nothing: nothing was sent.
    pub(crate) fn name(
        &mut self,
        grip: &mut Grip<'_>,
        route: &Route,
        head: &SendNamed,
        payload: TxPayload<'_>,
    ) -> Option<usize> {
        let (record, len) = head.to_bytes(&grip.name(payload)?);
        let is_sent = self.neighbour.push_bytes_now(self.fabric.slot(), &meta_of(route), &record[..len]);
        is_sent.then_some(len)
    }

    /// Whether messages of the peer can be fetched.
    pub(crate) fn can_fetch(&self) -> bool {
        self.fabric.adopts && self.neighbour.is_readable()
    }

    /// Whether the peer is a queue pair of the neighbour that has this slot.
    pub(crate) fn leads_to(&self, slot: u8) -> bool {
        self.neighbour.slot == slot
    }

    /// Copies a message that the peer named to the entries. False: what is in them now does not count.
    pub(crate) fn fetch(&mut self, grip: &mut Grip<'_>, pd: PdId, sges: &[Sge], names: &Names) -> bool {
        let place = &self.neighbour.place;
        let is_copied = place.owner().is_some_and(|owner| grip.fetch(pd, sges, &owner, names));
        // The bytes were read before the card is.
        fence(Ordering::Acquire);
        is_copied && find_qp(place, self.peer).is_some_and(|terms| terms.partner == self.own)
    }
}

#[cfg(test)]
mod tests;
