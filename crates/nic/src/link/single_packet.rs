//! One small packet of a queue pair, sent without a batch.
//!
//! Most small messages are posted one at a time, with the same route as the previous one. Each queue pair therefore caches its
//! TX socket and ICRC prefix, and has a buffer for one packet. Such a message needs neither a lookup nor a batch.

use super::batch::SocketChoice;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{FlowAddrs, FlowIcrc, ICRC_LEN, IcrcPrefix};

/// The longest packet, with its ICRC: about 256 bytes of payload. Longer packets are not faster this way.
const CAPACITY: usize = 288;

/// A buffer for one small packet, and the cached TX socket and ICRC prefix of its queue pair.
pub struct SinglePacket {
    bytes: [u8; CAPACITY],
    /// Bytes of the packet, without its ICRC.
    len: usize,
    choice: Option<SocketChoice>,
    /// The ICRC prefix of packets of one length.
    flow_icrc: Option<(usize, FlowIcrc)>,
}

impl Default for SinglePacket {
    fn default() -> Self {
        SinglePacket { bytes: [0; CAPACITY], len: 0, choice: None, flow_icrc: None }
    }
}

impl SinglePacket {
    /// Clears the cached TX socket and ICRC prefix: the route may have changed.
    pub(crate) fn clear_tx_cache(&mut self) {
        (self.choice, self.flow_icrc) = (None, None);
    }

    /// Whether a TX socket is cached.
    #[cfg(test)]
    pub(crate) fn has_tx_cache(&self) -> bool {
        self.choice.is_some()
    }

    /// Begins a packet with these headers and returns the bytes of its payload to be filled; `None` if it is too long.
    #[inline]
    pub(crate) fn begin(&mut self, head: &[u8], payload_len: usize) -> Option<&mut [u8]> {
        let end = head.len() + payload_len;
        let len = end.next_multiple_of(4);
        if len + ICRC_LEN > CAPACITY {
            return None;
        }
        self.len = len;
        // The payload overwrites these zeros, except for the padding.
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
        let flow_icrc = match &mut self.flow_icrc {
            Some((len, flow_icrc)) if *len == body.len() => flow_icrc,
            other => {
                let flow = FlowAddrs::new(route.sgid, route.dgid, choice.sport);
                &mut other.insert((body.len(), IcrcPrefix::default().of_flow(&flow, body.len()).clone())).1
            }
        };
        tail.copy_from_slice(&flow_icrc.icrc_alone(body));
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
        let mut single = SinglePacket::default();
        for len in [8, 8, 0, 1, 2, 3, 200, 8, 5] {
            let head = [len as u8 | 0x80; Bth::LEN + 8];
            single.bytes.fill(0xee);
            single.begin(&head, len).expect("room for it").fill(7);
            let mut expected = [&head[..], &vec![7; len]].concat();
            expected.resize(expected.len().next_multiple_of(4), 0);
            let packet = single.finalise(&route, choice);
            assert_eq!(packet[..packet.len() - ICRC_LEN], expected);
            assert_eq!(verify_icrc(&flow, 0, packet), Some(0), "{len} bytes");
        }
        assert!(single.begin(&[0; Bth::LEN], CAPACITY - ICRC_LEN - Bth::LEN).is_some());
        assert!(single.begin(&[0; Bth::LEN], CAPACITY - ICRC_LEN - Bth::LEN + 1).is_none());
    }

    #[test]
    fn the_tx_socket_is_chosen_once_until_the_cache_is_cleared() {
        let choice = SocketChoice { number: 3, sport: 0xC123, may_segment: true, is_plain: true };
        let mut single = SinglePacket::default();
        assert_eq!(single.plain_choice(|| None), None);
        assert_eq!(single.plain_choice(|| Some(choice)), Some(choice));
        assert_eq!(single.plain_choice(|| unreachable!()), Some(choice));
        single.clear_tx_cache();
        assert_eq!(single.plain_choice(|| Some(SocketChoice { is_plain: false, ..choice })), None);
        assert_eq!(single.plain_choice(|| unreachable!()), None, "known, and not plain");
    }
}
