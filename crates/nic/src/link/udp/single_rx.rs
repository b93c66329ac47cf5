//! Single-packet RX: receives one small packet at a time without control messages.
//!
//! The destination address of a datagram and the segment length of a GRO batch come in control messages, which make a
//! receive call a fifth slower. The ICRC covers both. While packets arrive singly, as in a ping-pong, the receiver therefore
//! requests no control messages and expects the next packet to be like the last one. If the ICRC does not match, the receiver
//! tries other addresses and segment lengths.

use super::address::SockAddr;
use super::receive::flow_of;
use crate::link::batch::RxMeta;
use ferroce_os::interfaces::local_addresses;
use ferroce_proto::Gid;
use ferroce_proto::wire::{Bth, FlowAddrs, FlowIcrc, ICRC_LEN, IcrcPrefix, verify_icrc};

/// Consecutive single packets after which single-packet RX starts.
const SINGLES: u32 = 8;
/// The identification of a single packet of a ferroce sender.
const ALONE: u16 = 0;
/// The bytes of a packet that contain the destination QPN.
const QPN_AT: std::ops::Range<usize> = 5..8;
/// Most lengths tried on a datagram that may be a GRO batch, so that an invalid datagram costs no more than a long packet. This
/// many apply to the expected address, and as many to all other addresses together, at least one each.
const MAX_LENGTHS: usize = 64;
/// Most local addresses tried on a packet.
const MAX_ADDRESSES: usize = 64;

/// The state of single-packet RX on one socket.
#[derive(Debug, Default)]
pub(super) struct SingleRx {
    singles: u32,
    dgid: Gid,
    known: Option<KnownFlow>,
}

/// The flow of the last packet that matched the expectation, and the ICRC state that its packets share.
#[derive(Debug)]
struct KnownFlow {
    from: SockAddr,
    len: usize,
    meta: RxMeta,
    flow_icrc: FlowIcrc,
}

/// The destination and the segments of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Its destination address.
    pub(super) dgid: Gid,
    /// Length of each of its packets but the last.
    pub(super) segment_len: usize,
}

impl SingleRx {
    /// The destination that the next packet probably has; `None` outside single-packet RX.
    pub(super) fn expected(&self) -> Option<Gid> {
        (self.singles >= SINGLES).then_some(self.dgid)
    }

    /// Records a datagram with a certain layout. `ident` is the identification of its last packet.
    pub(super) fn on_datagram(&mut self, dgid: Gid, is_single: bool, ident: Option<u16>) {
        let like_the_last = is_single && ident == Some(ALONE) && (dgid == self.dgid || self.singles == 0);
        self.singles = if like_the_last { (self.singles + 1).min(SINGLES) } else { 0 };
        self.dgid = dgid;
    }

    /// Records that a datagram was not the expected single packet.
    pub(super) fn on_mismatch(&mut self) {
        self.singles = 0;
    }

    /// The outer headers of a datagram, if it is a single packet of the last flow; otherwise `None`.
    #[inline]
    pub(super) fn match_last(&self, from: &SockAddr, datagram: &[u8]) -> Option<&RxMeta> {
        let known = self.known.as_ref()?;
        let is_known = known.len == datagram.len() && known.from == *from && known.meta.dgid == self.dgid;
        (is_known && known.flow_icrc.is_alone(datagram)).then_some(&known.meta)
    }

    /// A datagram of this length was one packet, as expected.
    pub(super) fn remember(&mut self, from: SockAddr, len: usize, meta: RxMeta, prefixes: &mut IcrcPrefix) {
        let flow = flow_of(&meta);
        let flow_icrc = prefixes.of_flow(&flow, len - ICRC_LEN).clone();
        self.known = Some(KnownFlow { from, len, meta, flow_icrc });
    }
}

/// Whether a datagram is a single packet of a ferroce sender on this flow, with the ICRC that its BTH announces.
#[inline]
pub(super) fn is_alone(prefixes: &mut IcrcPrefix, flow: &FlowAddrs, datagram: &[u8]) -> bool {
    datagram.len() >= Bth::LEN + ICRC_LEN
        && datagram.len().is_multiple_of(4)
        && prefixes.of_flow(flow, datagram.len() - ICRC_LEN).is_alone(datagram)
}

/// The same where speed does not matter.
fn fits(flow: &FlowAddrs, datagram: &[u8]) -> bool {
    #[cfg(test)]
    tests::CHECKSUMS.with(|count| count.set(count.get() + 1));
    is_alone(&mut IcrcPrefix::default(), flow, datagram)
}

/// Finds the layout of a datagram that was expected to be one packet of `flow`; `None` if no ICRC matches.
///
/// Mostly it is a GRO batch of that flow. Only if that does not match are the other addresses of this machine tried, because
/// listing them allocates.
#[cold]
pub(super) fn detect_layout(flow: &FlowAddrs, datagram: &[u8]) -> Option<Layout> {
    let local = || local_addresses().unwrap_or_default().into_iter().map(|a| Gid::from_ip(a.addr));
    detect_among(flow, datagram, local)
}

fn detect_among<A: Iterator<Item = Gid>>(
    flow: &FlowAddrs,
    datagram: &[u8],
    local: impl FnOnce() -> A,
) -> Option<Layout> {
    own_layout(flow, datagram, MAX_LENGTHS).or_else(|| {
        let is_ipv4 = flow.sgid.to_ipv4().is_some();
        let local = local().filter(|a| a.to_ipv4().is_some() == is_ipv4 && *a != flow.dgid);
        let flows: Vec<_> = local.take(MAX_ADDRESSES).map(|dgid| FlowAddrs { dgid, ..*flow }).collect();
        let lengths = (MAX_LENGTHS / flows.len().max(1)).max(1);
        let own = flows.iter().find_map(|f| own_layout(f, datagram, lengths));
        // A foreign sender can use any identification, so this match is the weakest evidence.
        own.or_else(|| {
            let mut fitting = std::iter::once(flow).chain(&flows);
            let found = fitting.find(|f| verify_icrc(f, ALONE, datagram).is_some())?;
            Some(Layout { dgid: found.dgid, segment_len: datagram.len() })
        })
    })
}

/// The layout of a datagram of ferroce senders on this flow: one packet, or a GRO batch.
fn own_layout(flow: &FlowAddrs, datagram: &[u8], lengths: usize) -> Option<Layout> {
    let segment_len =
        if fits(flow, datagram) { Some(datagram.len()) } else { first_packet_len(flow, datagram, lengths) };
    Some(Layout { dgid: flow.dgid, segment_len: segment_len? })
}

/// The length of the first packet of a GRO batch. The packets behind it are for the same queue pair in nearly all batches.
fn first_packet_len(flow: &FlowAddrs, batch: &[u8], most: usize) -> Option<usize> {
    let qpn = batch.get(QPN_AT)?;
    let follows = |&len: &usize| batch[len..].get(QPN_AT) == Some(qpn);
    let lengths = (Bth::LEN + ICRC_LEN..batch.len()).step_by(4).filter(follows).take(most);
    lengths.into_iter().find(|&len| fits(flow, &batch[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::wire::icrc;

    fn flow(to: &str) -> FlowAddrs {
        let gid = |a: &str| Gid::from_ip(a.parse().unwrap());
        FlowAddrs::new(gid("127.0.0.1"), gid(to), 0xC123)
    }

    fn packet(flow: &FlowAddrs, ident: u16, payload: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = [0x04, 0, 0xff, 0xff, 0, 7, 1, 2, 0, 0, 0, ident as u8].into();
        bytes.extend((0..payload).map(|i| i as u8));
        let checksum = icrc(flow, ident, &bytes);
        bytes.extend(checksum);
        bytes
    }

    thread_local! {
        /// Checksums that `fits` has computed.
        pub(super) static CHECKSUMS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn garbage_costs_few_checksums_however_many_addresses_there_are() {
        let flow = flow("127.0.0.1");
        for addresses in [0, 1, 10, 255] {
            CHECKSUMS.with(|count| count.set(0));
            let local = || (0..addresses).map(|n| Gid::from_ip([10, 0, 0, n].into()));
            assert_eq!(detect_among(&flow, &[0; 65_000], local), None);
            let count = CHECKSUMS.with(|count| count.get());
            assert!(count <= 3 * MAX_LENGTHS + 1, "{count} checksums with {addresses} addresses");
        }
    }

    #[test]
    fn single_packet_rx_starts_after_enough_single_packets() {
        let (mut single_rx, here) = (SingleRx::default(), flow("127.0.0.1").dgid);
        for _ in 0..SINGLES {
            assert_eq!(single_rx.expected(), None);
            single_rx.on_datagram(here, true, Some(ALONE));
        }
        assert_eq!(single_rx.expected(), Some(here));
        for (dgid, is_single, ident) in [
            (here, false, Some(3)),
            (here, true, Some(77)),
            (here, true, None),
            (flow("127.0.0.2").dgid, true, Some(0)),
        ] {
            single_rx = SingleRx { singles: SINGLES, dgid: here, known: None };
            single_rx.on_datagram(dgid, is_single, ident);
            assert_eq!(single_rx.expected(), None);
        }
    }

    #[test]
    fn the_flow_of_the_last_packet_is_recognised() {
        let expected = flow("127.0.0.1");
        let meta =
            RxMeta { sgid: expected.sgid, dgid: expected.dgid, sport: expected.sport, tos: 0, ttl: 64 };
        let (from, other) = (SockAddr::roce(meta.sgid), SockAddr::roce(flow("127.0.0.2").dgid));
        let mut single_rx = SingleRx { singles: SINGLES, dgid: expected.dgid, known: None };
        let single = packet(&expected, 0, 8);
        assert_eq!(single_rx.match_last(&from, &single), None, "nobody was here");
        single_rx.remember(from, single.len(), meta, &mut IcrcPrefix::default());
        assert_eq!(single_rx.match_last(&from, &single), Some(&meta));
        assert_eq!(single_rx.match_last(&other, &single), None, "somebody else");
        assert_eq!(single_rx.match_last(&from, &packet(&expected, 0, 12)), None, "another length");
        assert_eq!(single_rx.match_last(&from, &packet(&expected, 1, 8)), None, "not sent on its own");
        let elsewhere = flow("127.0.0.2");
        assert_eq!(single_rx.match_last(&from, &packet(&elsewhere, 0, 8)), None, "sent to another address");
        for bit in 0..single.len() * 8 {
            let mut damaged = single.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The byte that the ICRC does not cover, since switches change it.
            assert_eq!(single_rx.match_last(&from, &damaged).is_some(), bit / 8 == 4, "bit {bit}");
        }
        single_rx.dgid = elsewhere.dgid;
        assert_eq!(single_rx.match_last(&from, &single), None, "another address is expected by now");
    }

    #[test]
    fn the_layout_of_other_datagrams_is_detected() {
        let expected = flow("127.0.0.1");
        let single = packet(&expected, 0, 8);
        assert!(fits(&expected, &single));
        let layout = Layout { dgid: expected.dgid, segment_len: single.len() };
        assert_eq!(detect_layout(&expected, &single), Some(layout));

        let batch: Vec<u8> =
            (0..3).flat_map(|i| packet(&expected, i, 256)).chain(packet(&expected, 3, 8)).collect();
        assert!(!fits(&expected, &batch));
        let layout = Layout { dgid: expected.dgid, segment_len: 256 + 16 };
        assert_eq!(detect_layout(&expected, &batch), Some(layout));

        let foreign = packet(&expected, 40_000, 8);
        assert!(!fits(&expected, &foreign));
        assert_eq!(detect_layout(&expected, &foreign).map(|l| l.dgid), Some(expected.dgid));

        // Expected at an address that is not the one of this machine which it was sent to.
        let elsewhere = FlowAddrs { dgid: flow("192.0.2.1").dgid, ..expected };
        let layout = Layout { dgid: expected.dgid, segment_len: single.len() };
        assert_eq!(detect_layout(&elsewhere, &single), Some(layout));
    }

    #[test]
    fn garbage_is_nothing() {
        let expected = flow("127.0.0.1");
        for len in [0, 3, 16, 20, 4096, 65_532] {
            let garbage: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            assert!(!fits(&expected, &garbage));
            let layout = detect_layout(&expected, &garbage);
            assert!(layout.is_none_or(|l| l.segment_len == len), "{layout:?}");
        }
    }
}
