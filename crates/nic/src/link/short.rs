//! One short packet of a queue pair, sent at once.
//!
//! Most small messages are posted one at a time, and each leaves by the way of the last one. So each queue pair keeps a place for one
//! packet, how it leaves, and the part of its ICRC that does not change; nothing is looked up, and no batch is needed.

use super::batch::SocketChoice;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{FlowAddrs, ICRC_LEN, IcrcPrefix, IcrcRow};

/// The longest packet, with its ICRC: some 256 bytes of a message. Longer ones gain nothing.
const ROOM: usize = 288;

/// A place for one short packet, and what is known about how packets of its queue pair leave.
pub struct Short {
    bytes: [u8; ROOM],
    /// Bytes of the packet, without its ICRC.
    len: usize,
    choice: Option<SocketChoice>,
    /// What packets of one length have in common.
    row: Option<(usize, IcrcRow)>,
}

impl Default for Short {
    fn default() -> Self {
        Short { bytes: [0; ROOM], len: 0, choice: None, row: None }
    }
}

impl Short {
    /// Forgets how packets leave: they may go elsewhere from now on.
    pub(crate) fn forget_way(&mut self) {
        (self.choice, self.row) = (None, None);
    }

    /// Whether it is known how packets leave.
    #[cfg(test)]
    pub(crate) fn knows_way(&self) -> bool {
        self.choice.is_some()
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

    /// The cached TX socket, if packets need no control message; calls `find` only while none is cached.
    #[inline]
    pub(crate) fn plain_choice(
        &mut self,
        find: impl FnOnce() -> Option<SocketChoice>,
    ) -> Option<SocketChoice> {
        if self.choice.is_none() {
            self.choice = find();
        }
        self.choice.filter(|choice| choice.is_plain)
    }

    /// Writes the ICRC for this TX socket and returns the packet.
    #[inline]
    pub(crate) fn finalise(&mut self, route: &Route, choice: SocketChoice) -> &[u8] {
        let (body, tail) = self.bytes[..self.len + ICRC_LEN].split_at_mut(self.len);
        let row = match &mut self.row {
            Some((len, row)) if *len == body.len() => row,
            other => {
                let flow = FlowAddrs::new(route.sgid, route.dgid, choice.sport);
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
        let choice = SocketChoice { number: 3, sport: 0xC123, may_segment: true, is_plain: true };
        let flow = FlowAddrs::new(gid, gid, choice.sport);
        let mut short = Short::default();
        for len in [8, 8, 0, 1, 2, 3, 200, 8, 5] {
            let head = [len as u8 | 0x80; Bth::LEN + 8];
            short.bytes.fill(0xee);
            short.begin(&head, len).expect("room for it").fill(7);
            let mut expected = [&head[..], &vec![7; len]].concat();
            expected.resize(expected.len().next_multiple_of(4), 0);
            let packet = short.finalise(&route, choice);
            assert_eq!(packet[..packet.len() - ICRC_LEN], expected);
            assert_eq!(verify_icrc(&flow, 0, packet), Some(0), "{len} bytes");
        }
        assert!(short.begin(&[0; Bth::LEN], ROOM - ICRC_LEN - Bth::LEN).is_some());
        assert!(short.begin(&[0; Bth::LEN], ROOM - ICRC_LEN - Bth::LEN + 1).is_none());
    }

    #[test]
    fn the_way_is_asked_for_once_until_it_is_forgotten() {
        let choice = SocketChoice { number: 3, sport: 0xC123, may_segment: true, is_plain: true };
        let mut short = Short::default();
        assert_eq!(short.plain_choice(|| None), None);
        assert_eq!(short.plain_choice(|| Some(choice)), Some(choice));
        assert_eq!(short.plain_choice(|| unreachable!()), Some(choice));
        short.forget_way();
        assert_eq!(short.plain_choice(|| Some(SocketChoice { is_plain: false, ..choice })), None);
        assert_eq!(short.plain_choice(|| unreachable!()), None, "known, and not plain");
    }
}
