//! Which sockets a receiver polls, and how often.
//!
//! Each poll of a socket costs a system call. A spinning receiver polls the socket that had traffic last, and the others
//! only while they are busy too.

use super::single_rx::SingleRx;
use crate::link::batch::RX_BUFFERS;
use ferroce_proto::Gid;
use std::os::fd::RawFd;

/// A source without traffic in this many polls is idle...
const IDLE_AFTER: u32 = 64;
/// ...and is polled only every so many calls.
const IDLE_EVERY: u32 = 32;

/// After this many polls without a packet, each call polls several times: the path from the application to the socket and back
/// takes nearly as long as a poll.
const WAITING_AFTER: u32 = 4;
const POLLS_WHILE_WAITING: u64 = 4;

/// A datagram of more bytes than this is a GRO batch of many packets.
pub(super) const LONG_GRO_BATCH: usize = 16 * 1024;

/// Consecutive single packets after which GRO is switched off. A socket with GRO takes nearly 0.2 µs longer per packet.
const CALM: u32 = 256;

/// The kind of datagrams that a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceKind {
    /// Packets to the address with this number.
    Address(usize),
    /// Packets that another process received for this one.
    Forwarded,
    /// Packets to a multicast group.
    Group(Gid),
}

/// A socket to receive from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) kind: SourceKind,
    pub(super) fd: RawFd,
    /// Consecutive polls without a packet.
    misses: u32,
    /// Buffers to offer to the next poll. One for single-packet RX, because each further one costs the kernel a check of an
    /// empty queue; more for a stream.
    pub(super) offer: usize,
    /// The last poll filled all offered buffers.
    was_full: bool,
    /// Whether GRO is on; `None` if it was never enabled.
    merges: Option<bool>,
    /// Consecutive single packets.
    singles: u32,
    pub(super) single_rx: SingleRx,
}

impl Source {
    pub(super) fn new(kind: SourceKind, fd: RawFd) -> Source {
        Source {
            kind,
            fd,
            misses: IDLE_AFTER,
            offer: 1,
            was_full: false,
            merges: None,
            singles: 0,
            single_rx: SingleRx::default(),
        }
    }

    /// The same for a socket with GRO.
    pub(super) fn merging(self) -> Source {
        Source { merges: Some(true), ..self }
    }

    /// How often to poll before the call returns without a packet.
    pub(super) fn polls_per_call(&self) -> u64 {
        if self.misses >= WAITING_AFTER { POLLS_WHILE_WAITING } else { 1 }
    }

    /// Updates the state after a call that polled `polls` times, offered `offered` buffers and filled `filled` of them with
    /// `bytes`. At most two full GRO batches are received at a time: the sender waits for their ACK, and the cache holds no more.
    pub(super) fn on_poll(&mut self, polls: u64, offered: usize, filled: usize, bytes: usize) {
        if filled == 0 {
            // Most polls: this takes 20 instructions fewer than the rules for the others.
            (self.misses, self.offer, self.was_full) = (self.misses.saturating_add(1), 1, false);
            return;
        }
        self.misses = 0;
        let most = if bytes > filled * LONG_GRO_BATCH { 2 } else { RX_BUFFERS };
        let is_full = filled == offered && polls == 1;
        // One full poll is a message. A second one immediately after it is the beginning of a stream.
        self.offer = match is_full && (self.was_full || offered > 1) {
            true => (self.offer * 2).min(most),
            false => filled.min(most),
        };
        self.was_full = is_full;
        match filled {
            1 if self.offer == 1 => self.singles = self.singles.saturating_add(1),
            _ => self.singles = 0,
        }
    }

    /// Whether to switch GRO on or off; `None` for no change. GRO is switched off only after a poll that found the socket empty,
    /// because single-packet RX does not get the segment length of datagrams that are merged already.
    pub(super) fn change_of_gro(&mut self) -> Option<bool> {
        let wanted = match self.merges? {
            true => self.singles < CALM || self.misses == 0 || self.single_rx.expected().is_none(),
            false => self.singles == 0 || self.single_rx.expected().is_none(),
        };
        let changes = self.merges != Some(wanted);
        self.merges = Some(wanted);
        changes.then_some(wanted)
    }
}

/// Decides which sources a call polls.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    calls: u32,
    favourite: usize,
}

impl PollSchedule {
    /// A call to `receive` begins.
    pub(super) fn begin(&mut self) {
        self.calls = self.calls.wrapping_add(1);
    }

    /// Whether this call polls source `index`.
    pub(super) fn includes(&self, index: usize, source: &Source) -> bool {
        index == self.favourite
            || source.misses < IDLE_AFTER
            || self.calls.wrapping_add(index as u32).is_multiple_of(IDLE_EVERY)
    }

    /// Source `index` had a packet.
    pub(super) fn on_hit(&mut self, index: usize) {
        self.favourite = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_link_costs_about_one_poll_per_call() {
        let mut sources: Vec<_> = (0..4).map(|i| Source::new(SourceKind::Address(i), 0)).collect();
        let mut schedule = PollSchedule::default();
        let mut polls = [0; 4];
        for call in 0..3200 {
            schedule.begin();
            for (i, source) in sources.iter_mut().enumerate() {
                if schedule.includes(i, source) {
                    polls[i] += 1;
                    let hit = call == 0 && i == 0;
                    source.on_poll(1, 1, hit.into(), 100);
                    if hit {
                        schedule.on_hit(i);
                    }
                }
            }
        }
        assert_eq!(polls, [3200, 100, 100, 100]);
    }

    #[test]
    fn single_packets_are_not_merged_and_a_stream_is() {
        let here = Gid::from_ip([127, 0, 0, 1].into());
        let mut source = Source::new(SourceKind::Address(0), 0).merging();
        let ping = |source: &mut Source| {
            source.on_poll(1, 1, 1, 24);
            source.single_rx.on_datagram(here, true, Some(0));
            assert_eq!(source.change_of_gro(), None, "something may wait behind it");
            source.on_poll(1, 1, 0, 0);
            source.change_of_gro()
        };
        let changes: Vec<_> = (0..2 * CALM).filter_map(|n| ping(&mut source).map(|to| (n, to))).collect();
        assert_eq!(changes, [(CALM - 1, false)]);
        source.on_poll(1, 1, 1, 4112);
        assert_eq!(source.change_of_gro(), None, "one packet is no stream");
        source.on_poll(1, 1, 1, 4112);
        assert_eq!(source.change_of_gro(), Some(true));
        assert_eq!(source.change_of_gro(), None);

        assert_eq!((0..2 * CALM).filter_map(|_| ping(&mut source)).collect::<Vec<_>>(), [false]);
        assert_eq!(source.merges, Some(false));
        source.single_rx.on_mismatch();
        assert_eq!(source.change_of_gro(), Some(true), "a merged datagram must be known for what it is");
        let mut plain = Source::new(SourceKind::Address(0), 0);
        assert_eq!((0..2 * CALM).find_map(|_| ping(&mut plain)), None, "nobody asked for merging");
    }

    #[test]
    fn the_offer_follows_the_traffic() {
        let mut source = Source::new(SourceKind::Forwarded, 0);
        let mut offers = Vec::new();
        for filled in [1, 0, 1, 1, 2, 4, 8, 8, 3, 1, 0] {
            offers.push(source.offer);
            source.on_poll(1, source.offer, filled, 100 * filled);
        }
        assert_eq!(offers, [1, 1, 1, 1, 2, 4, 8, 8, 8, 3, 1]);
        source.on_poll(1, 8, 8, 8 * 60_000);
        assert_eq!(source.offer, 2);
    }
}
