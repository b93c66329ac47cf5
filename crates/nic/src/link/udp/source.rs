//! Which of its sockets a receiver looks at, and how often.
//!
//! A spinning receiver pays one system call per look, so it looks at the socket that had traffic last, and at the others
//! only as far as they are busy too.

use super::trickle::Trickle;
use ferroce_proto::Gid;
use std::os::fd::RawFd;

/// A source without traffic in this many looks is idle...
const IDLE_AFTER: u32 = 64;
/// ...and is looked at only every so many calls.
const IDLE_EVERY: u32 = 32;

/// A datagram of more bytes than this is a train of many packets.
const LONG_TRAIN: usize = 16 * 1024;

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
    /// Buffers to offer to the next look. One for a trickle, as every further one costs the kernel a look at an empty
    /// queue; more for a stream.
    pub(super) offer: usize,
    /// The last look filled all that it was offered.
    was_full: bool,
    pub(super) trickle: Trickle,
}

impl Source {
    pub(super) fn new(kind: SourceKind, fd: RawFd) -> Source {
        Source { kind, fd, misses: IDLE_AFTER, offer: 1, was_full: false, trickle: Trickle::default() }
    }

    /// Learns from a look that was offered `offered` buffers and filled `filled` with `bytes`. Full trains are taken
    /// two at a time: the sender waits for their acknowledgement, and the cache has room for no more.
    pub(super) fn on_look(&mut self, offered: usize, filled: usize, bytes: usize, most: usize) {
        self.misses = if filled > 0 { 0 } else { self.misses.saturating_add(1) };
        let most = if bytes > filled * LONG_TRAIN { 2 } else { most };
        let is_full = filled == offered;
        // One full look is a message, a second one right behind it the beginning of a stream.
        self.offer = match is_full && (self.was_full || offered > 1) {
            true => (self.offer * 2).min(most),
            false => filled.clamp(1, most),
        };
        self.was_full = is_full;
    }

    /// Learns from looks that put payloads in place. The first packet after them, a message's first, should come alone:
    /// those that follow it can be put in place once it has been looked at.
    pub(super) fn on_placing(&mut self, filled: usize) {
        self.misses = if filled > 0 { 0 } else { self.misses.saturating_add(1) };
        self.offer = 1;
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

    /// The source that had something last.
    pub(super) fn favourite(&self) -> usize {
        self.favourite
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
                    source.on_look(1, hit.into(), 100, 8);
                    if hit {
                        rota.on_hit(i);
                    }
                }
            }
        }
        assert_eq!(looks, [3200, 100, 100, 100]);
    }

    #[test]
    fn the_offer_follows_the_traffic() {
        let mut source = Source::new(SourceKind::Forwarded, 0);
        let mut offers = Vec::new();
        for filled in [1, 0, 1, 1, 2, 4, 8, 8, 3, 1, 0] {
            offers.push(source.offer);
            source.on_look(source.offer, filled, 100 * filled, 8);
        }
        assert_eq!(offers, [1, 1, 1, 1, 2, 4, 8, 8, 8, 3, 1]);
        source.on_look(8, 8, 8 * 60_000, 8);
        assert_eq!(source.offer, 2);
    }
}
