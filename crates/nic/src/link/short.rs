//! One short packet of a queue pair, sent at once.
//!
//! Most small messages are posted one at a time, and each leaves by the way of the last one. So each queue pair keeps a place for one
//! packet, how it leaves, and the part of its ICRC that does not change; nothing is looked up, and no batch is needed.

use super::batch::Exit;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{FlowAddrs, ICRC_LEN, IcrcPrefix, IcrcRow};

/// The longest packet, with its ICRC: some 256 bytes of a message. Longer ones gain nothing.
const ROOM: usize = 288;

/// A place for one short packet, and what is known about how packets of its queue pair leave.
pub struct Short {
    bytes: [u8; ROOM],
    /// Bytes of the packet, without its ICRC.
    len: usize,
    exit: Option<Exit>,
    /// What packets of one length have in common.
    row: Option<(usize, IcrcRow)>,
}

impl Default for Short {
    fn default() -> Self {
        Short { bytes: [0; ROOM], len: 0, exit: None, row: None }
    }
}

impl Short {
    /// Forgets how packets leave: they may go elsewhere from now on.
    pub(crate) fn forget_way(&mut self) {
        (self.exit, self.row) = (None, None);
    }

    /// Whether it is known how packets leave.
    #[cfg(test)]
    pub(crate) fn knows_way(&self) -> bool {
        self.exit.is_some()
    }

    /// Begins a packet with these headers and returns the place of its payload. Nothing, if it would be too long.
    #[inline]
    pub(crate) fn begin(&mut self, head: &[u8], payload_len: usize) -> Option<&mut [u8]> {
        let end = head.len() + payload_len;
        let len = end.next_multiple_of(4);
        if len + ICRC_LEN > ROOM {
            return None;
        }
        self.len = len;
        // Zeros, as far as the payload does not cover them, are the padding.
        self.bytes[len - 4..len].fill(0);
        self.bytes[..head.len()].copy_from_slice(head);
        Some(&mut self.bytes[head.len()..end])
    }

    /// How packets leave, if they need nothing said beside them; `find` is asked once.
    #[inline]
    pub(crate) fn plain_exit(&mut self, find: impl FnOnce() -> Option<Exit>) -> Option<Exit> {
        if self.exit.is_none() {
            self.exit = find();
        }
        self.exit.filter(|exit| exit.is_plain)
    }

    /// The packet with its ICRC, as it leaves by `exit`.
    #[inline]
    pub(crate) fn seal(&mut self, route: &Route, exit: Exit) -> &[u8] {
        let (body, tail) = self.bytes[..self.len + ICRC_LEN].split_at_mut(self.len);
        let row = match &mut self.row {
            Some((len, row)) if *len == body.len() => row,
            other => {
                let flow = FlowAddrs::new(route.sgid, route.dgid, exit.sport);
                &mut other.insert((body.len(), IcrcPrefix::default().row(&flow, body.len()).clone())).1
            }
        };
        tail.copy_from_slice(&row.icrc_alone(body));
        &self.bytes[..self.len + ICRC_LEN]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::Gid;
    use ferroce_proto::wire::{Bth, verify_icrc};

    #[test]
    fn a_packet_is_headers_payload_zeros_and_a_right_checksum() {
        let gid = Gid::from_ip([127, 0, 0, 1].into());
        let route = Route { sgid: gid, dgid: gid, ..Route::default() };
        let exit = Exit { number: 3, sport: 0xC123, may_segment: true, is_plain: true };
        let flow = FlowAddrs::new(gid, gid, exit.sport);
        let mut short = Short::default();
        for len in [8, 8, 0, 1, 2, 3, 200, 8, 5] {
            let head = [len as u8 | 0x80; Bth::LEN + 8];
            short.bytes.fill(0xee);
            short.begin(&head, len).expect("room for it").fill(7);
            let mut expected = [&head[..], &vec![7; len]].concat();
            expected.resize(expected.len().next_multiple_of(4), 0);
            let packet = short.seal(&route, exit);
            assert_eq!(packet[..packet.len() - ICRC_LEN], expected);
            assert_eq!(verify_icrc(&flow, 0, packet), Some(0), "{len} bytes");
        }
        assert!(short.begin(&[0; Bth::LEN], ROOM - ICRC_LEN - Bth::LEN).is_some());
        assert!(short.begin(&[0; Bth::LEN], ROOM - ICRC_LEN - Bth::LEN + 1).is_none());
    }

    #[test]
    fn the_way_is_asked_for_once_until_it_is_forgotten() {
        let exit = Exit { number: 3, sport: 0xC123, may_segment: true, is_plain: true };
        let mut short = Short::default();
        assert_eq!(short.plain_exit(|| None), None);
        assert_eq!(short.plain_exit(|| Some(exit)), Some(exit));
        assert_eq!(short.plain_exit(|| unreachable!()), Some(exit));
        short.forget_way();
        assert_eq!(short.plain_exit(|| Some(Exit { is_plain: false, ..exit })), None);
        assert_eq!(short.plain_exit(|| unreachable!()), None, "known, and not plain");
    }
}
