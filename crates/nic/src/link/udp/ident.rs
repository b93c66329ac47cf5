//! The IPv4 identification: the ICRC covers it, but a UDP socket does not provide it.
//!
//! `verify_icrc` computes the identification for which an ICRC would match, so a damaged packet passes whenever that value is
//! plausible: once in 2^15. Two mechanisms reduce this. The guess of [`IdentSequence`] is nearly always right. A source that has
//! only used the small values of ferroce senders is not accepted with another value ([`Sources`]).

use ferroce_proto::Gid;

/// ferroce senders use 0 for a single packet and i for segment i of a GSO run; no run has more segments than this.
const SMALL: u16 = 64;
/// More packets than a foreign sender, whose identification counts up, sends with small values.
const KNOWN_AFTER: u32 = 128;
/// This many rejected packets in a row indicate a new sender behind the same port, not damage.
const FORGET_AFTER: u32 = 32;
const TABLE_LEN: usize = 256;

/// The history of identifications of each source.
#[derive(Debug)]
pub(super) struct Sources {
    table: Box<[Source; TABLE_LEN]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    sgid: Gid,
    sport: u16,
    small_in_a_row: u32,
    refused_in_a_row: u32,
}

impl Default for Sources {
    fn default() -> Self {
        Sources { table: Box::new([Source::default(); TABLE_LEN]) }
    }
}

impl Sources {
    /// Whether this identification is plausible for a packet of this source.
    fn believe(&mut self, sgid: Gid, sport: u16, ident: u16) -> bool {
        let index = usize::from(sgid.0[15] ^ sgid.0[14].rotate_left(3) ^ sport as u8 ^ (sport >> 8) as u8);
        let source = &mut self.table[index % TABLE_LEN];
        if source.sgid != sgid || source.sport != sport {
            *source = Source { sgid, sport, ..Source::default() };
        }
        if ident < SMALL {
            source.small_in_a_row = source.small_in_a_row.saturating_add(1);
            source.refused_in_a_row = 0;
            return true;
        }
        let is_ours = source.small_in_a_row >= KNOWN_AFTER;
        source.refused_in_a_row += u32::from(is_ours);
        if !is_ours || source.refused_in_a_row >= FORGET_AFTER {
            (source.small_in_a_row, source.refused_in_a_row) = (0, 0);
        }
        !is_ours
    }
}

/// The identifications within a GRO batch. The segments of a GSO run count up; packets that were sent one by one all have the
/// same.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdentSequence {
    last: Option<u16>,
    step: u16,
}

impl IdentSequence {
    pub(super) fn new() -> IdentSequence {
        IdentSequence { last: None, step: 1 }
    }

    /// The identification of the last good packet.
    pub(super) fn last(&self) -> Option<u16> {
        self.last
    }

    /// The probable identification of the next packet.
    pub(super) fn guess(&self) -> u16 {
        self.last.map_or(0, |last| last.wrapping_add(self.step))
    }

    /// The ICRC of the next packet matches with this identification. Returns whether it is plausible.
    pub(super) fn accept(&mut self, sources: &mut Sources, sgid: Gid, sport: u16, ident: u16) -> bool {
        let believed = sgid.to_ipv4().is_none() || sources.believe(sgid, sport, ident);
        if believed {
            self.step = self.last.map_or(1, |last| ident.wrapping_sub(last));
            self.last = Some(ident);
        }
        believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 0xC123;

    fn gid() -> Gid {
        Gid::from_ip([10, 0, 0, 1].into())
    }

    fn wrong_guesses(idents: &[u16]) -> usize {
        let mut sources = Sources::default();
        let mut sequence = IdentSequence::new();
        let mut wrong = 0;
        for &ident in idents {
            wrong += usize::from(sequence.guess() != ident);
            assert!(sequence.accept(&mut sources, gid(), PORT, ident));
        }
        wrong
    }

    #[test]
    fn identifications_are_guessed_from_the_last_ones() {
        assert_eq!(wrong_guesses(&[0, 1, 2, 3]), 0);
        assert_eq!(wrong_guesses(&[7, 8, 9, 10]), 1);
        assert_eq!(wrong_guesses(&[700, 700, 700, 700]), 2);
    }

    #[test]
    fn a_known_sender_is_not_believed_strange_numbers() {
        let mut sources = Sources::default();
        assert!(sources.believe(gid(), PORT, 40_000), "nothing is known yet");
        for i in 0..KNOWN_AFTER {
            assert!(sources.believe(gid(), PORT, (i % 15) as u16));
        }
        assert!(!sources.believe(gid(), PORT, 40_000));
        assert!(sources.believe(gid(), PORT + 1, 40_000), "another sender");
        assert!(sources.believe(gid(), PORT, 3));
    }

    #[test]
    fn a_sender_that_counts_is_always_believed() {
        let mut sources = Sources::default();
        for i in 0..300_000_u32 {
            assert!(sources.believe(gid(), PORT, i as u16));
        }
    }

    #[test]
    fn a_new_sender_behind_the_same_port_is_believed_soon() {
        let mut sources = Sources::default();
        for _ in 0..1000 {
            sources.believe(gid(), PORT, 0);
        }
        let refused = (0..100).filter(|i| !sources.believe(gid(), PORT, 9_000 + i)).count();
        assert_eq!(refused, FORGET_AFTER as usize);
    }
}
