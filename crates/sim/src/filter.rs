//! Scripted faults: rules that apply to packets before random faults do.
//!
//! ```text
//! let lost = world.rule(Rule::on(is_ack).nth(3).drop());
//! world.rule(Rule::on(request(7)).first().hold_until(request(9)));
//! ...
//! assert_eq!(lost.hits(), 1);
//! ```
//! A rule counts its hits, so that a test can check that its fault happened.

use crate::journal::NodeId;
use ferroce_proto::wire::{NakCode, Operation, Packet, Syndrome};
use ferroce_proto::{Psn, Time};
use std::cell::Cell;
use std::rc::Rc;

/// A packet as a rule sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Number among all packets of the run, from 0.
    pub index: u64,
    /// When it was sent.
    pub time: Time,
    /// Sender.
    pub from: NodeId,
    /// Receiver, `None` for a group or an unknown address.
    pub to: Option<NodeId>,
    /// The packet.
    pub packet: Packet<'a>,
}

impl Seen<'_> {
    /// Its operation.
    pub fn operation(&self) -> Operation {
        self.packet.headers.bth.opcode.operation
    }
    /// Its PSN.
    pub fn psn(&self) -> Psn {
        self.packet.headers.bth.psn
    }
    /// The syndrome of its AETH.
    pub fn syndrome(&self) -> Option<Syndrome> {
        self.packet.headers.aeth.map(|a| a.syndrome)
    }
}

/// Any packet.
pub fn any(_: &Seen<'_>) -> bool {
    true
}
/// A packet of a requester.
pub fn is_request(seen: &Seen<'_>) -> bool {
    seen.operation().is_request()
}
/// A packet of a responder.
pub fn is_response(seen: &Seen<'_>) -> bool {
    seen.operation().is_response()
}
/// A positive ACK packet.
pub fn is_ack(seen: &Seen<'_>) -> bool {
    seen.operation() == Operation::Acknowledge && matches!(seen.syndrome(), Some(Syndrome::Ack { .. }))
}
/// A sequence NAK.
pub fn is_sequence_nak(seen: &Seen<'_>) -> bool {
    seen.syndrome() == Some(Syndrome::Nak(NakCode::PsnSequence))
}
/// Any NAK except RNR.
pub fn is_nak(seen: &Seen<'_>) -> bool {
    matches!(seen.syndrome(), Some(Syndrome::Nak(_)))
}
/// An RNR NAK.
pub fn is_rnr_nak(seen: &Seen<'_>) -> bool {
    matches!(seen.syndrome(), Some(Syndrome::RnrNak { .. }))
}
/// Packets with this operation.
pub fn op(operation: Operation) -> impl Fn(&Seen<'_>) -> bool + Copy {
    move |seen| seen.operation() == operation
}
/// Requests with this PSN.
pub fn request(psn: u32) -> impl Fn(&Seen<'_>) -> bool + Copy {
    move |seen| is_request(seen) && seen.psn() == Psn::new(psn)
}
/// Responses with this PSN.
pub fn response(psn: u32) -> impl Fn(&Seen<'_>) -> bool + Copy {
    move |seen| is_response(seen) && seen.psn() == Psn::new(psn)
}

type Predicate = Box<dyn FnMut(&Seen<'_>) -> bool>;
type Change = Box<dyn FnMut(&mut Vec<u8>)>;
pub(crate) type Release = Rc<dyn Fn(&Seen<'_>) -> bool>;

/// What a rule does to its packets.
pub(crate) enum Action {
    Pass,
    Drop,
    Duplicate(u64),
    Delay(u64),
    HoldUntil(Release),
    Damage,
    ChangePayload,
    Mark,
    Rewrite(Change),
}

/// One rule of the network. The first rule that matches a packet applies.
pub struct Rule {
    when: Predicate,
    nth: Option<u32>,
    at_most: u32,
    matched: u32,
    hits: Rc<Cell<u32>>,
    pub(crate) action: Action,
}

impl Rule {
    /// Matches every packet that satisfies `when`. Without an action it only counts.
    pub fn on(when: impl FnMut(&Seen<'_>) -> bool + 'static) -> Rule {
        let when = Box::new(when);
        Rule { when, nth: None, at_most: u32::MAX, matched: 0, hits: Rc::default(), action: Action::Pass }
    }
    /// Only for the n-th of them, counted from 1.
    pub fn nth(self, n: u32) -> Rule {
        Rule { nth: Some(n), ..self }
    }
    /// Only for the first of them.
    pub fn first(self) -> Rule {
        self.nth(1)
    }
    /// Only for the first `at_most` of them.
    pub fn times(self, at_most: u32) -> Rule {
        Rule { at_most, ..self }
    }
    /// Drops them.
    pub fn drop(self) -> Rule {
        Rule { action: Action::Drop, ..self }
    }
    /// Delivers them twice, the copy right after.
    pub fn duplicate(self) -> Rule {
        self.copy_after(1)
    }
    /// Delivers them twice, the copy `ns` nanoseconds later.
    pub fn copy_after(self, ns: u64) -> Rule {
        Rule { action: Action::Duplicate(ns), ..self }
    }
    /// Delays them by `ns` nanoseconds.
    pub fn delay(self, ns: u64) -> Rule {
        Rule { action: Action::Delay(ns), ..self }
    }
    /// Delivers them right after the next packet that satisfies `release`.
    pub fn hold_until(self, release: impl Fn(&Seen<'_>) -> bool + 'static) -> Rule {
        Rule { action: Action::HoldUntil(Rc::new(release)), ..self }
    }
    /// Flips bits, so that the ICRC is wrong.
    pub fn damage(self) -> Rule {
        Rule { action: Action::Damage, ..self }
    }
    /// Changes the last word of the payload and leaves the ICRC as it is.
    pub fn change_payload(self) -> Rule {
        Rule { action: Action::ChangePayload, ..self }
    }
    /// Marks them as a congested switch does (ECN).
    pub fn mark(self) -> Rule {
        Rule { action: Action::Mark, ..self }
    }
    /// Changes their bytes and updates the ICRC: a forged packet, or a peer with a bug.
    pub fn rewrite(self, change: impl FnMut(&mut Vec<u8>) + 'static) -> Rule {
        Rule { action: Action::Rewrite(Box::new(change)), ..self }
    }

    pub(crate) fn applies(&mut self, seen: &Seen<'_>) -> bool {
        if !(self.when)(seen) {
            return false;
        }
        self.matched += 1;
        let hit = self.nth.is_none_or(|n| n == self.matched) && self.matched <= self.at_most;
        if hit {
            self.hits.set(self.hits.get() + 1);
        }
        hit
    }

    pub(crate) fn counter(&self) -> Hits {
        Hits(self.hits.clone())
    }
}

/// How often a rule has hit.
#[derive(Clone, Debug)]
pub struct Hits(Rc<Cell<u32>>);

impl Hits {
    /// Number of hits.
    pub fn hits(&self) -> u32 {
        self.0.get()
    }
    /// Panics unless the rule has hit exactly once.
    #[track_caller]
    pub fn once(&self) {
        assert_eq!(self.hits(), 1, "the rule should have hit one packet");
    }
}
