//! Packets in: read in bulk, split, verified, and given to whom they belong.

use super::forward::{self, Forwarded, Handover};
use super::ident::{Sources, Train};
use super::probe::Probe;
use super::repair::RepairPace;
use super::source::{Rota, Source, SourceKind};
use super::sys::{self, InMessage};
use super::trickle;
use super::{BoundAddress, UdpLink, multicast::Membership};
use crate::link::batch::{RX_BUFFER_LEN, RX_BUFFERS, RxMeta};
use crate::link::capture::{Direction, Outer};
use crate::link::counters::{add, add_alone};
use crate::link::{RxBatch, RxPacket};
use ferroce_proto::wire::{Bth, FlowAddrs, ICRC_LEN, IcrcPrefix, dest_qpn};
use ferroce_proto::{Gid, Qpn};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

const MIN_PACKET_LEN: usize = Bth::LEN + ICRC_LEN;
/// How often a socket is looked at before it is closed; each look takes up to [`RX_BUFFERS`] datagrams.
const LAST_LOOKS: usize = 256;

/// State of the receiving half; one thread at a time has it.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) sources: Vec<Source>,
    pub(super) rota: Rota,
    pub(super) memberships: Vec<Membership>,
    pub(super) pace: Vec<RepairPace>,
    /// Per address, what it is; `None` for the wildcard.
    bound: Vec<Option<Gid>>,
    /// Some address waits for the roster.
    pub(super) owes_repair: bool,
    /// What a probe of one of our processes carries.
    pub(super) token: u128,
    /// The link is leaving: the roster is locked and must not be touched from here.
    pub(super) is_closing: bool,
    idents: Sources,
    prefixes: IcrcPrefix,
    arrived: [InMessage; RX_BUFFERS],
}

/// A datagram: one packet, or several that were merged.
struct Datagram {
    kind: SourceKind,
    meta: RxMeta,
    buffer: usize,
    len: usize,
    /// Length of every packet but the last.
    segment_len: usize,
    /// The ICRC of its only packet is right, with this identification.
    verified: Option<u16>,
}

/// What became of the packets of a datagram.
struct Taken {
    /// The owner of the last packet that was not ours.
    misdelivered: Option<u8>,
    /// The identification of the last packet, if that was good.
    ident: Option<u16>,
}

/// Consecutive packets of one datagram that belong to another process.
struct ForeignRun {
    slot: u8,
    bytes: Range<usize>,
}

impl Receiver {
    pub(super) fn new(sources: Vec<Source>, addresses: &[BoundAddress], token: u128) -> Receiver {
        Receiver {
            sources,
            rota: Rota::default(),
            memberships: Vec::new(),
            pace: vec![RepairPace::default(); addresses.len()],
            bound: addresses.iter().map(BoundAddress::only_gid).collect(),
            owes_repair: false,
            token,
            is_closing: false,
            idents: Sources::default(),
            prefixes: IcrcPrefix::default(),
            arrived: Default::default(),
        }
    }
}

impl UdpLink {
    pub(super) fn receive_into(&self, rx: &mut RxBatch, thorough: bool) -> usize {
        rx.clear();
        let Some(mut receiver) = self.receiver.try_lock() else { return 0 };
        receiver.rota.begin();
        if receiver.owes_repair && thorough {
            self.repair_owed(&mut receiver);
        }
        if self.forwarder.deadline().is_some() {
            add(&self.counters.forward_errors, self.forwarder.retry(&self.registry));
        }
        let mut used = 0;
        for index in 0..receiver.sources.len() {
            if used == RX_BUFFERS {
                break;
            }
            if thorough || receiver.rota.includes(index, &receiver.sources[index]) {
                used += self.look_at(&mut receiver, index, rx, used);
            }
        }
        rx.len()
    }

    /// Empties the sockets, so that packets for other processes find their way; our own are of no use any more.
    pub(super) fn forward_rest(&self, receiver: &mut Receiver) {
        let mut rx = RxBatch::new();
        for index in 0..receiver.sources.len() {
            let is_address = matches!(receiver.sources[index].kind, SourceKind::Address(_));
            // Bounded, for a flood must not keep us from closing.
            for _ in 0..LAST_LOOKS {
                rx.clear();
                if !is_address || self.look_at(receiver, index, &mut rx, 0) == 0 {
                    break;
                }
            }
        }
    }

    /// Reads from one source into the buffers from `first_buffer` on and returns how many it filled.
    fn look_at(&self, receiver: &mut Receiver, index: usize, rx: &mut RxBatch, first_buffer: usize) -> usize {
        let source = &mut receiver.sources[index];
        let (kind, offer) = (source.kind, source.offer.min(RX_BUFFERS - first_buffer));
        let asks_little = offer == 1 && !self.reports_outer_fields.load(Relaxed);
        let expected = if asks_little { source.trickle.expected() } else { None };
        let memory = rx.buffers_from(first_buffer);
        let arrived = &mut receiver.arrived[..offer];
        let (filled, calls) = match expected {
            Some(_) => {
                let memory = &mut memory[..RX_BUFFER_LEN];
                sys::receive_plain(source.fd, memory, &mut arrived[0], source.patience())
            }
            None => (sys::receive_messages(source.fd, memory, RX_BUFFER_LEN, arrived).unwrap_or(0), 1),
        };
        add_alone(&self.counters.rx_calls, calls);
        let bytes = match filled {
            0 => 0,
            1 => receiver.arrived[0].len,
            _ => receiver.arrived[..filled].iter().map(|m| m.len).sum(),
        };
        source.on_look(calls, offer, filled, bytes);
        if let Some(merges) = source.change_of_merging() {
            // The option exists on this kernel: it took it when the socket was opened.
            let _ = sys::set_option(&source.fd, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(merges));
        }
        if filled == 0 {
            return 0;
        }
        receiver.rota.on_hit(index);
        if expected.is_some() && self.take_familiar(receiver, index, rx, first_buffer) {
            return filled;
        }
        for i in 0..filled {
            let buffer = first_buffer + i;
            match kind {
                SourceKind::Forwarded => self.take_forwarded(receiver, i, rx, buffer),
                _ => self.take_datagram(receiver, (index, i), expected, rx, buffer),
            }
        }
        filled
    }

    /// Takes the first message of source number `index`, a trickle, if it is a packet for us like the last one. False if there is
    /// more to it; nothing was done then.
    #[inline]
    fn take_familiar(&self, receiver: &mut Receiver, index: usize, rx: &mut RxBatch, buffer: usize) -> bool {
        let Receiver { sources, arrived, idents, .. } = receiver;
        let InMessage { from, len, .. } = &arrived[0];
        let datagram = &rx.buffer(buffer)[..(*len).min(RX_BUFFER_LEN)];
        match sources[index].trickle.recognise(from, datagram) {
            Some(&meta) => self.take_single(idents, &meta, buffer, datagram.len(), rx),
            None => false,
        }
    }

    /// Takes message number `arrived` of source number `index`. If it was taken as part of a trickle, it was probably sent
    /// to `expected`.
    fn take_datagram(
        &self,
        receiver: &mut Receiver,
        (index, arrived): (usize, usize),
        expected: Option<Gid>,
        rx: &mut RxBatch,
        buffer: usize,
    ) {
        let kind = receiver.sources[index].kind;
        let message = &receiver.arrived[arrived];
        let (len, arrival) = (message.len.min(RX_BUFFER_LEN), message.control.arrival());
        // A socket bound to one address is not told the address of each packet.
        let dgid = match kind {
            SourceKind::Group(group) => Some(group),
            SourceKind::Address(i) => arrival.dgid.or(expected).or(receiver.bound[i]),
            SourceKind::Forwarded => None,
        };
        let (Some((sgid, sport)), Some(dgid)) = (message.from.to_gid_and_port(), dgid) else {
            return add_alone(&self.counters.malformed, 1);
        };
        if let (SourceKind::Address(address), Some(probe)) = (kind, Probe::parse(&rx.buffer(buffer)[..len])) {
            return self.on_probe(receiver, address, &probe);
        }
        let meta = RxMeta { sgid, dgid, sport, tos: arrival.tos, ttl: arrival.ttl };
        let segment_len = arrival.segment_len.filter(|&l| l > 0).unwrap_or(len.max(1));
        let mut datagram = Datagram { kind, meta, buffer, len, segment_len, verified: None };
        let trickle = &mut receiver.sources[index].trickle;
        if expected.is_some() {
            let (flow, bytes) = (FlowAddrs::new(sgid, dgid, sport), &rx.buffer(buffer)[..len]);
            if trickle::is_alone(&mut receiver.prefixes, &flow, bytes) {
                trickle.remember(message.from, len, meta, &mut receiver.prefixes);
                if self.take_single(&mut receiver.idents, &meta, buffer, len, rx) {
                    return;
                }
                datagram.verified = Some(0);
            } else {
                trickle.on_surprise();
                if let Some(nature) = trickle::find_out(&flow, bytes) {
                    (datagram.meta.dgid, datagram.segment_len) = (nature.dgid, nature.segment_len);
                }
            }
        }
        let train = Train::new(&mut receiver.idents);
        let taken = self.take_train(train, &mut receiver.prefixes, &datagram, rx);
        if let SourceKind::Address(address) = kind {
            if expected.is_none() {
                let is_single = datagram.segment_len >= len;
                receiver.sources[index].trickle.on_datagram(dgid, is_single, taken.ident);
            }
            if let Some(slot) = taken.misdelivered {
                self.on_misdelivery(receiver, address, slot);
            }
        }
    }

    /// Keeps a packet that came alone and was found good, if it is ours: what every small message is. False if there is more
    /// to it.
    #[inline]
    fn take_single(
        &self,
        idents: &mut Sources,
        meta: &RxMeta,
        buffer: usize,
        len: usize,
        rx: &mut RxBatch,
    ) -> bool {
        let is_ours = dest_qpn(rx.buffer(buffer)).and_then(owner_of) == Some(self.slot);
        if !is_ours || self.capture.is_some() || !Train::new(idents).accept(meta.sgid, meta.sport, 0) {
            return false;
        }
        add_alone(&self.counters.rx_packets, 1);
        add_alone(&self.counters.rx_bytes, len as u64);
        rx.push(buffer, 0..len - ICRC_LEN, *meta);
        true
    }

    /// Splits what was merged, verifies each packet and keeps or forwards it.
    fn take_train(
        &self,
        mut train: Train<'_>,
        prefixes: &mut IcrcPrefix,
        datagram: &Datagram,
        rx: &mut RxBatch,
    ) -> Taken {
        let Datagram { buffer, len, segment_len, .. } = *datagram;
        let mut foreign: Option<ForeignRun> = None;
        let mut misdelivered = None;
        let mut start = 0;
        // An empty datagram is one malformed packet.
        while start < len.max(1) {
            let range = start..(start + segment_len).min(len);
            start += segment_len;
            let packet = &rx.buffer(buffer)[range.clone()];
            match self.check_packet(datagram, packet, &mut train, prefixes) {
                Some(owner) if owner != self.slot => {
                    misdelivered = Some(owner);
                    foreign = self.extend_run(datagram, rx, foreign, owner, range);
                }
                ours_or_bad => {
                    self.forward_run(datagram, rx, foreign.take());
                    if ours_or_bad.is_some() {
                        add_alone(&self.counters.rx_packets, 1);
                        add_alone(&self.counters.rx_bytes, range.len() as u64);
                        rx.push(buffer, range.start..range.end - ICRC_LEN, datagram.meta);
                    }
                }
            }
        }
        self.forward_run(datagram, rx, foreign);
        Taken { misdelivered, ident: train.last() }
    }

    /// Verifies a packet and says which slot it belongs to; `None` if it was dropped. What belongs to nobody in
    /// particular (connection management, groups) belongs to whoever received it.
    fn check_packet(
        &self,
        datagram: &Datagram,
        packet: &[u8],
        train: &mut Train<'_>,
        prefixes: &mut IcrcPrefix,
    ) -> Option<u8> {
        let meta = &datagram.meta;
        let flow = FlowAddrs::new(meta.sgid, meta.dgid, meta.sport);
        let well_formed = packet.len() >= MIN_PACKET_LEN && packet.len().is_multiple_of(4);
        let verify = || prefixes.verify(&flow, train.guess(), packet);
        let ident = if well_formed { datagram.verified.or_else(verify) } else { None };
        if let Some(capture) = &self.capture {
            let outer = Outer { flow, ident: ident.unwrap_or(0), tos: meta.tos, ttl: meta.ttl };
            capture.record(Direction::Received, &outer, packet);
        }
        if !well_formed {
            add_alone(&self.counters.malformed, 1);
            crate::log::drop(format_args!("{} bytes from {} are no RoCE packet", packet.len(), meta.sgid));
            return None;
        }
        if !ident.is_some_and(|ident| train.accept(meta.sgid, meta.sport, ident)) {
            add_alone(&self.counters.bad_icrc, 1);
            crate::log::drop(format_args!("wrong ICRC on {} bytes from {}", packet.len(), meta.sgid));
            return None;
        }
        let qpn = dest_qpn(packet)?;
        match (datagram.kind, owner_of(qpn)) {
            (_, None) => Some(self.slot),
            (SourceKind::Group(_), Some(_)) => {
                // Every member of the group has a copy; forwarding would multiply it.
                add_alone(&self.counters.malformed, 1);
                None
            }
            (_, Some(owner)) => Some(owner),
        }
    }

    /// Adds a packet to the run of packets for one other process, or sends that run off and begins another.
    fn extend_run(
        &self,
        datagram: &Datagram,
        rx: &RxBatch,
        run: Option<ForeignRun>,
        slot: u8,
        packet: Range<usize>,
    ) -> Option<ForeignRun> {
        match run {
            Some(run) if run.slot == slot && packet.end - run.bytes.start <= forward::MAX_RUN_LEN => {
                Some(ForeignRun { slot, bytes: run.bytes.start..packet.end })
            }
            other => {
                self.forward_run(datagram, rx, other);
                Some(ForeignRun { slot, bytes: packet })
            }
        }
    }

    fn forward_run(&self, datagram: &Datagram, rx: &RxBatch, run: Option<ForeignRun>) {
        let Some(ForeignRun { slot, bytes }) = run else { return };
        let packets = bytes.len().div_ceil(datagram.segment_len) as u64;
        add_alone(&self.counters.misdelivered, packets);
        let message = Forwarded::Packets { meta: datagram.meta, segment_len: datagram.segment_len };
        let bytes = &rx.buffer(datagram.buffer)[bytes];
        match self.forwarder.hand_over(&self.registry, slot, message, bytes) {
            Handover::Done => add(&self.counters.forwarded_out, packets),
            Handover::Gone | Handover::Full => add(&self.counters.forward_errors, packets),
        }
    }

    fn take_forwarded(&self, receiver: &mut Receiver, arrived: usize, rx: &mut RxBatch, buffer: usize) {
        let len = receiver.arrived[arrived].len.min(RX_BUFFER_LEN);
        match Forwarded::parse(&rx.buffer(buffer)[..len]) {
            Some(Forwarded::Packets { meta, segment_len }) => {
                let mut start = forward::HEADER_LEN;
                while start < len {
                    let range = start..(start + segment_len).min(len);
                    start += segment_len;
                    self.take_forwarded_packet(rx, buffer, range, meta);
                }
            }
            Some(Forwarded::Reattach(addr)) => self.on_reattach(receiver, addr),
            // An empty message only wakes.
            None if len == 0 => {}
            None => add_alone(&self.counters.malformed, 1),
        }
    }

    /// A packet for yet another process is not passed on: two that are wrong about each other would play ball.
    fn take_forwarded_packet(&self, rx: &mut RxBatch, buffer: usize, range: Range<usize>, meta: RxMeta) {
        let packet = &rx.buffer(buffer)[range.clone()];
        let ours = |qpn| owner_of(qpn).is_none_or(|owner| owner == self.slot);
        if range.len() < MIN_PACKET_LEN || !dest_qpn(packet).is_some_and(ours) {
            return add_alone(&self.counters.malformed, 1);
        }
        add_alone(&self.counters.forwarded_in, 1);
        add_alone(&self.counters.rx_packets, 1);
        add_alone(&self.counters.rx_bytes, range.len() as u64);
        rx.push(buffer, range.start..range.end - ICRC_LEN, meta);
    }

    /// Hands a packet to another process on behalf of the NIC (connection management reaches any process). The ICRC
    /// place is filled with zeros: nobody behind the detour looks at it again.
    pub(super) fn forward_packet(&self, slot: u8, packet: &RxPacket<'_>) -> bool {
        let RxPacket { sgid, dgid, sport, tos, ttl, bytes, .. } = *packet;
        if bytes.len() + ICRC_LEN > forward::MAX_RUN_LEN {
            return false;
        }
        let message = Forwarded::Packets {
            meta: RxMeta { sgid, dgid, sport, tos, ttl },
            segment_len: bytes.len() + ICRC_LEN,
        };
        let whole = [bytes, &[0; ICRC_LEN]].concat();
        let handover = self.forwarder.hand_over(&self.registry, slot, message, &whole);
        let done = handover == Handover::Done;
        add(if done { &self.counters.forwarded_out } else { &self.counters.forward_errors }, 1);
        done
    }
}

/// The slot that owns a queue pair number; `None` for those that every process has.
fn owner_of(qpn: Qpn) -> Option<u8> {
    match (qpn.value() >> 16) as u8 {
        0 | 0xff => None,
        slot => Some(slot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_queue_pairs_belong_to_everybody() {
        assert_eq!(owner_of(Qpn::GSI), None);
        assert_eq!(owner_of(Qpn::MULTICAST), None);
        assert_eq!(owner_of(Qpn::new(0x07_1234)), Some(7));
    }
}
