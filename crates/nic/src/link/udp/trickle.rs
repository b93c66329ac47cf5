//! One small packet at a time: taken by the call that costs least, and what that call does not say.
//!
//! Where a packet was sent to and whether it is several in one come in control messages, which make receiving a fifth
//! dearer. Both are covered by the ICRC. So while packets come singly, as in a ping-pong, the next is taken without asking,
//! and expected to be like the last ones. If its ICRC says otherwise, what it is like is found out by trying.

use super::address::SockAddr;
use super::interfaces::local_addresses;
use crate::link::batch::RxMeta;
use ferroce_proto::Gid;
use ferroce_proto::wire::{Bth, FlowAddrs, ICRC_LEN, IcrcPrefix, IcrcRow, verify_icrc};

/// Packets on their own, one after the other, that make a trickle.
const SINGLES: u32 = 8;
/// The identification of a packet that our senders send on its own.
const ALONE: u16 = 0;
/// Where the destination queue pair stands in a packet.
const QPN_AT: std::ops::Range<usize> = 5..8;
/// Lengths that are tried on a datagram which may be a train, so that garbage costs no more than a long packet.
const MOST_LENGTHS: usize = 64;
/// Local addresses that are tried on a packet.
const MOST_ADDRESSES: usize = 64;

/// What is known about the datagrams of a socket.
#[derive(Debug, Default)]
pub(super) struct Trickle {
    singles: u32,
    dgid: Gid,
    familiar: Option<Familiar>,
}

/// The sender of the last packet that was as expected, and what such packets of its have in common.
#[derive(Debug)]
struct Familiar {
    from: SockAddr,
    len: usize,
    meta: RxMeta,
    row: IcrcRow,
}

/// What a datagram turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nature {
    /// Where it was sent to.
    pub(super) dgid: Gid,
    /// Length of each of its packets but the last.
    pub(super) segment_len: usize,
}

impl Trickle {
    /// Where the next packet was probably sent to, if it probably comes alone.
    pub(super) fn expected(&self) -> Option<Gid> {
        (self.singles >= SINGLES).then_some(self.dgid)
    }

    /// A datagram came and its nature is certain. `ident` is the identification of its last packet.
    pub(super) fn on_datagram(&mut self, dgid: Gid, is_single: bool, ident: Option<u16>) {
        let like_the_last = is_single && ident == Some(ALONE) && (dgid == self.dgid || self.singles == 0);
        self.singles = if like_the_last { (self.singles + 1).min(SINGLES) } else { 0 };
        self.dgid = dgid;
    }

    /// A datagram was not what was expected.
    pub(super) fn on_surprise(&mut self) {
        self.singles = 0;
    }

    /// Where a datagram comes from and was sent to, if it is one packet, sent on its own, that differs from the last one in nothing
    /// but its bytes. Nothing: whoever asks has to find out.
    #[inline]
    pub(super) fn recognise(&self, from: &SockAddr, datagram: &[u8]) -> Option<&RxMeta> {
        let familiar = self.familiar.as_ref()?;
        let is_familiar =
            familiar.len == datagram.len() && familiar.from == *from && familiar.meta.dgid == self.dgid;
        (is_familiar && familiar.row.is_alone(datagram)).then_some(&familiar.meta)
    }

    /// A datagram of this length was one packet, as expected.
    pub(super) fn remember(&mut self, from: SockAddr, len: usize, meta: RxMeta, prefixes: &mut IcrcPrefix) {
        let flow = FlowAddrs::new(meta.sgid, meta.dgid, meta.sport);
        let row = prefixes.row(&flow, len - ICRC_LEN).clone();
        self.familiar = Some(Familiar { from, len, meta, row });
    }
}

/// Whether a datagram is one packet of this flow that our senders sent on its own.
#[inline]
pub(super) fn is_alone(prefixes: &mut IcrcPrefix, flow: &FlowAddrs, datagram: &[u8]) -> bool {
    datagram.len() >= Bth::LEN + ICRC_LEN
        && datagram.len().is_multiple_of(4)
        && prefixes.verify(flow, ALONE, datagram) == Some(ALONE)
}

/// The same where speed does not matter.
fn fits(flow: &FlowAddrs, datagram: &[u8]) -> bool {
    is_alone(&mut IcrcPrefix::default(), flow, datagram)
}

/// Finds out what a datagram is that was expected to be one packet of `flow`; `None` if it is nothing good.
///
/// Mostly it is a train of that flow. Only for what is not, this machine is asked for its other addresses, which takes memory
/// from the system.
#[cold]
pub(super) fn find_out(flow: &FlowAddrs, datagram: &[u8]) -> Option<Nature> {
    own_nature(flow, datagram).or_else(|| {
        let is_ipv4 = flow.sgid.to_ipv4().is_some();
        let local = local_addresses().unwrap_or_default().into_iter().map(|a| Gid::from_ip(a.addr));
        let local = local.filter(|a| a.to_ipv4().is_some() == is_ipv4 && *a != flow.dgid);
        let flows: Vec<_> = local.take(MOST_ADDRESSES).map(|dgid| FlowAddrs { dgid, ..*flow }).collect();
        let own = flows.iter().find_map(|f| own_nature(f, datagram));
        // The identification of a foreign sender can be anything; it is the weakest evidence.
        own.or_else(|| {
            let mut fitting = std::iter::once(flow).chain(&flows);
            let found = fitting.find(|f| verify_icrc(f, ALONE, datagram).is_some())?;
            Some(Nature { dgid: found.dgid, segment_len: datagram.len() })
        })
    })
}

/// What a datagram is if our senders sent it on this flow: one packet, or a train.
fn own_nature(flow: &FlowAddrs, datagram: &[u8]) -> Option<Nature> {
    let segment_len =
        if fits(flow, datagram) { Some(datagram.len()) } else { first_packet_len(flow, datagram) };
    Some(Nature { dgid: flow.dgid, segment_len: segment_len? })
}

/// The length of the first packet of a train. Those behind it are for the same queue pair in all trains but the rarest.
fn first_packet_len(flow: &FlowAddrs, train: &[u8]) -> Option<usize> {
    let qpn = train.get(QPN_AT)?;
    let follows = |&len: &usize| train[len..].get(QPN_AT) == Some(qpn);
    let lengths = (Bth::LEN + ICRC_LEN..train.len()).step_by(4).filter(follows).take(MOST_LENGTHS);
    lengths.into_iter().find(|&len| fits(flow, &train[..len]))
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

    #[test]
    fn a_trickle_is_known_by_its_singles() {
        let (mut trickle, here) = (Trickle::default(), flow("127.0.0.1").dgid);
        for _ in 0..SINGLES {
            assert_eq!(trickle.expected(), None);
            trickle.on_datagram(here, true, Some(ALONE));
        }
        assert_eq!(trickle.expected(), Some(here));
        for (dgid, is_single, ident) in [
            (here, false, Some(3)),
            (here, true, Some(77)),
            (here, true, None),
            (flow("127.0.0.2").dgid, true, Some(0)),
        ] {
            trickle = Trickle { singles: SINGLES, dgid: here, familiar: None };
            trickle.on_datagram(dgid, is_single, ident);
            assert_eq!(trickle.expected(), None);
        }
    }

    #[test]
    fn who_sent_the_last_packet_is_known_by_it() {
        let expected = flow("127.0.0.1");
        let meta =
            RxMeta { sgid: expected.sgid, dgid: expected.dgid, sport: expected.sport, tos: 0, ttl: 64 };
        let (from, other) = (SockAddr::roce(meta.sgid), SockAddr::roce(flow("127.0.0.2").dgid));
        let mut trickle = Trickle { singles: SINGLES, dgid: expected.dgid, familiar: None };
        let single = packet(&expected, 0, 8);
        assert_eq!(trickle.recognise(&from, &single), None, "nobody was here");
        trickle.remember(from, single.len(), meta, &mut IcrcPrefix::default());
        assert_eq!(trickle.recognise(&from, &single), Some(&meta));
        assert_eq!(trickle.recognise(&other, &single), None, "somebody else");
        assert_eq!(trickle.recognise(&from, &packet(&expected, 0, 12)), None, "another length");
        assert_eq!(trickle.recognise(&from, &packet(&expected, 1, 8)), None, "not sent on its own");
        let elsewhere = flow("127.0.0.2");
        assert_eq!(trickle.recognise(&from, &packet(&elsewhere, 0, 8)), None, "sent to another address");
        for bit in 0..single.len() * 8 {
            let mut damaged = single.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The byte that the ICRC does not cover, since switches change it.
            assert_eq!(trickle.recognise(&from, &damaged).is_some(), bit / 8 == 4, "bit {bit}");
        }
        trickle.dgid = elsewhere.dgid;
        assert_eq!(trickle.recognise(&from, &single), None, "another address is expected by now");
    }

    #[test]
    fn surprises_are_seen_through() {
        let expected = flow("127.0.0.1");
        let single = packet(&expected, 0, 8);
        assert!(fits(&expected, &single));
        let nature = Nature { dgid: expected.dgid, segment_len: single.len() };
        assert_eq!(find_out(&expected, &single), Some(nature));

        let train: Vec<u8> =
            (0..3).flat_map(|i| packet(&expected, i, 256)).chain(packet(&expected, 3, 8)).collect();
        assert!(!fits(&expected, &train));
        let nature = Nature { dgid: expected.dgid, segment_len: 256 + 16 };
        assert_eq!(find_out(&expected, &train), Some(nature));

        let foreign = packet(&expected, 40_000, 8);
        assert!(!fits(&expected, &foreign));
        assert_eq!(find_out(&expected, &foreign).map(|n| n.dgid), Some(expected.dgid));

        // Expected at an address that is not the one of this machine which it was sent to.
        let elsewhere = FlowAddrs { dgid: flow("192.0.2.1").dgid, ..expected };
        let nature = Nature { dgid: expected.dgid, segment_len: single.len() };
        assert_eq!(find_out(&elsewhere, &single), Some(nature));
    }

    #[test]
    fn garbage_is_nothing() {
        let expected = flow("127.0.0.1");
        for len in [0, 3, 16, 20, 4096, 65_532] {
            let garbage: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            assert!(!fits(&expected, &garbage));
            let nature = find_out(&expected, &garbage);
            assert!(nature.is_none_or(|n| n.segment_len == len), "{nature:?}");
        }
    }
}
