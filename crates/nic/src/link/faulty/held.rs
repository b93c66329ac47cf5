//! Packets held back by fault injection: delayed packets, and packets that later ones overtake.

use ferroce_proto::Time;
use ferroce_proto::verbs::Route;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Most packets held at a time; bounds the memory. Further packets are lost.
const MAX_HELD: usize = 65_536;

/// A packet held back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) route: Route,
    pub(super) bytes: Vec<u8>,
    pub(super) flip_bit: Option<u32>,
}

/// All packets held back, ordered by time and by the number of packets that must still overtake them.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    packets: BTreeMap<u64, Held>,
    by_time: BinaryHeap<Reverse<(Time, u64)>>,
    /// Number of each reordered packet, and how many packets must still overtake it.
    overtaken: Vec<(u64, u32)>,
    next_number: u64,
}

impl HeldBack {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Holds a packet until `due`. Returns `false` if too many are held.
    pub(super) fn delay(&mut self, held: Held, due: Time) -> bool {
        self.keep(held, due).is_some()
    }

    /// Holds a packet until `places` others have overtaken it, or until `due`. Returns `false` if too many are held.
    pub(super) fn reorder(&mut self, held: Held, places: u32, due: Time) -> bool {
        let number = self.keep(held, due);
        self.overtaken.extend(number.map(|n| (n, places)));
        number.is_some()
    }

    fn keep(&mut self, held: Held, due: Time) -> Option<u64> {
        if self.packets.len() >= MAX_HELD {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.packets.insert(number, held);
        self.by_time.push(Reverse((due, number)));
        Some(number)
    }

    /// A packet was sent and overtook all held ones.
    pub(super) fn on_passed(&mut self) {
        for (_, places) in &mut self.overtaken {
            *places = places.saturating_sub(1);
        }
    }

    /// Takes a packet that enough others have overtaken.
    pub(super) fn next_overtaken(&mut self) -> Option<Held> {
        while let Some(index) = self.overtaken.iter().position(|&(_, places)| places == 0) {
            let (number, _) = self.overtaken.remove(index);
            // It may have been sent when its time came.
            if let Some(held) = self.packets.remove(&number) {
                return Some(held);
            }
        }
        None
    }

    /// Takes a packet whose time has come.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Held> {
        while let Some(&Reverse((due, number))) = self.by_time.peek() {
            if due > now {
                return None;
            }
            self.by_time.pop();
            if let Some(held) = self.packets.remove(&number) {
                self.overtaken.retain(|&(n, _)| n != number);
                return Some(held);
            }
        }
        None
    }

    /// When the next packet must be sent at the latest. May be too early, if that packet was sent after being overtaken.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.packets.is_empty() {
            return None;
        }
        self.by_time.peek().map(|Reverse((due, _))| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(mark: u8) -> Held {
        Held { route: Route::default(), bytes: vec![mark], flip_bit: None }
    }
    fn mark(held: Option<Held>) -> Option<u8> {
        held.map(|h| h.bytes[0])
    }

    #[test]
    fn late_packets_come_in_the_order_of_their_time() {
        let mut back = HeldBack::default();
        back.delay(held(1), Time(30));
        back.delay(held(2), Time(10));
        back.delay(held(3), Time(10));
        assert_eq!(back.deadline(), Some(Time(10)));
        assert_eq!(mark(back.next_due(Time(9))), None);
        assert_eq!(mark(back.next_due(Time(10))), Some(2));
        assert_eq!(mark(back.next_due(Time(10))), Some(3));
        assert_eq!(mark(back.next_due(Time(10))), None);
        assert_eq!(mark(back.next_due(Time(30))), Some(1));
        assert!(back.is_empty() && back.deadline().is_none());
    }

    #[test]
    fn an_overtaken_packet_goes_out_once() {
        let mut back = HeldBack::default();
        back.reorder(held(1), 2, Time(100));
        back.on_passed();
        assert_eq!(mark(back.next_overtaken()), None);
        back.on_passed();
        assert_eq!(mark(back.next_overtaken()), Some(1));
        assert_eq!(mark(back.next_due(Time(200))), None);
        back.reorder(held(2), 2, Time(100));
        assert_eq!(mark(back.next_due(Time(200))), Some(2));
        back.on_passed();
        back.on_passed();
        assert_eq!(mark(back.next_overtaken()), None);
    }
}
