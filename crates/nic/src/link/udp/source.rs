//! Which of its sockets a receiver looks at, and how often.
//!
//! A spinning receiver pays one system call per look, so it looks at the socket that had traffic last, and at the others
//! only as far as they are busy too.

use super::single_rx::SingleRx;
use crate::link::batch::RX_BUFFERS;
use ferroce_proto::Gid;
use std::os::fd::RawFd;

/// A source without traffic in this many looks is idle...
const IDLE_AFTER: u32 = 64;
/// ...and is looked at only every so many calls.
const IDLE_EVERY: u32 = 32;

/// A poller that found nothing so often waits for something, and is better served by several looks per call: the way from
/// the application to the socket and back takes nearly as long as a look.
const WAITING_AFTER: u32 = 4;
const LOOKS_WHILE_WAITING: u64 = 4;

/// A datagram of more bytes than this is a GRO batch of many packets.
pub(super) const LONG_GRO_BATCH: usize = 16 * 1024;

/// Packets on their own, one after the other, after which the kernel is told not to merge any. A socket that merges takes nearly
/// two tenths of a microsecond longer for each packet.
const CALM: u32 = 256;

/// What arrives at a socket.
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
    /// Looks without success since the last one with.
    misses: u32,
    /// Buffers to offer to the next look. One for single-packet RX, as every further one costs the kernel a look at an empty
    /// queue; more for a stream.
    pub(super) offer: usize,
    /// The last look filled all that it was offered.
    was_full: bool,
    /// Whether the kernel merges runs of packets here; `None` where it was not asked to.
    merges: Option<bool>,
    /// Packets on their own, one after the other.
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

    /// The same for a socket that was told to merge.
    pub(super) fn merging(self) -> Source {
        Source { merges: Some(true), ..self }
    }

    /// How often to look before the caller is told that there is nothing.
    pub(super) fn patience(&self) -> u64 {
        if self.misses >= WAITING_AFTER { LOOKS_WHILE_WAITING } else { 1 }
    }

    /// Learns from a call that looked `looks` times, was offered `offered` buffers and filled `filled` with `bytes`. Full GRO batches are taken
    /// two at a time: the sender waits for their acknowledgement, and the cache has room for no more.
    pub(super) fn on_look(&mut self, looks: u64, offered: usize, filled: usize, bytes: usize) {
        self.misses = if filled > 0 { 0 } else { self.misses.saturating_add(1) };
        let most = if bytes > filled * LONG_GRO_BATCH { 2 } else { RX_BUFFERS };
        let is_full = filled == offered && looks == 1;
        // One full look is a message, a second one right behind it the beginning of a stream.
        self.offer = match is_full && (self.was_full || offered > 1) {
            true => (self.offer * 2).min(most),
            false => filled.clamp(1, most),
        };
        self.was_full = is_full;
        match filled {
            0 => {}
            1 if self.offer == 1 => self.singles = self.singles.saturating_add(1),
            _ => self.singles = 0,
        }
    }

    /// Whether the kernel is to be told to merge from now on, or not to. What it has merged already would not be known for what it
    /// is, so it is told not to when the socket was empty a moment ago.
    pub(super) fn change_of_merging(&mut self) -> Option<bool> {
        let wanted = match self.merges? {
            true => self.singles < CALM || self.misses == 0 || self.single_rx.expected().is_none(),
            false => self.singles == 0 || self.single_rx.expected().is_none(),
        };
        let changes = self.merges != Some(wanted);
        self.merges = Some(wanted);
        changes.then_some(wanted)
    }
}

/// Decides which sources a call looks at.
#[derive(Debug, Default)]
pub(super) struct Rota {
    calls: u32,
    favourite: usize,
}

impl Rota {
    /// A call to `receive` begins.
    pub(super) fn begin(&mut self) {
        self.calls = self.calls.wrapping_add(1);
    }

    /// Whether this call looks at source `index`.
    pub(super) fn includes(&self, index: usize, source: &Source) -> bool {
        index == self.favourite
            || source.misses < IDLE_AFTER
            || self.calls.wrapping_add(index as u32).is_multiple_of(IDLE_EVERY)
    }

    /// Source `index` had something.
    pub(super) fn on_hit(&mut self, index: usize) {
        self.favourite = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_link_costs_about_one_look_per_call() {
        let mut sources: Vec<_> = (0..4).map(|i| Source::new(SourceKind::Address(i), 0)).collect();
        let mut rota = Rota::default();
        let mut looks = [0; 4];
        for call in 0..3200 {
            rota.begin();
            for (i, source) in sources.iter_mut().enumerate() {
                if rota.includes(i, source) {
                    looks[i] += 1;
                    let hit = call == 0 && i == 0;
                    source.on_look(1, 1, hit.into(), 100);
                    if hit {
                        rota.on_hit(i);
                    }
                }
            }
        }
        assert_eq!(looks, [3200, 100, 100, 100]);
    }

    #[test]
    fn single_packets_are_not_merged_and_a_stream_is() {
        let here = Gid::from_ip([127, 0, 0, 1].into());
        let mut source = Source::new(SourceKind::Address(0), 0).merging();
        let ping = |source: &mut Source| {
            source.on_look(1, 1, 1, 24);
            source.single_rx.on_datagram(here, true, Some(0));
            assert_eq!(source.change_of_merging(), None, "something may wait behind it");
            source.on_look(1, 1, 0, 0);
            source.change_of_merging()
        };
        let changes: Vec<_> = (0..2 * CALM).filter_map(|n| ping(&mut source).map(|to| (n, to))).collect();
        assert_eq!(changes, [(CALM - 1, false)]);
        source.on_look(1, 1, 1, 4112);
        assert_eq!(source.change_of_merging(), None, "one packet is no stream");
        source.on_look(1, 1, 1, 4112);
        assert_eq!(source.change_of_merging(), Some(true));
        assert_eq!(source.change_of_merging(), None);

        assert_eq!((0..2 * CALM).filter_map(|_| ping(&mut source)).collect::<Vec<_>>(), [false]);
        assert_eq!(source.merges, Some(false));
        source.single_rx.on_mismatch();
        assert_eq!(source.change_of_merging(), Some(true), "a merged datagram must be known for what it is");
        let mut plain = Source::new(SourceKind::Address(0), 0);
        assert_eq!((0..2 * CALM).find_map(|_| ping(&mut plain)), None, "nobody asked for merging");
    }

    #[test]
    fn the_offer_follows_the_traffic() {
        let mut source = Source::new(SourceKind::Forwarded, 0);
        let mut offers = Vec::new();
        for filled in [1, 0, 1, 1, 2, 4, 8, 8, 3, 1, 0] {
            offers.push(source.offer);
            source.on_look(1, source.offer, filled, 100 * filled);
        }
        assert_eq!(offers, [1, 1, 1, 1, 2, 4, 8, 8, 8, 3, 1]);
        source.on_look(1, 8, 8, 8 * 60_000);
        assert_eq!(source.offer, 2);
    }
}
