//! Receives packets: reads them in bulk, splits and verifies them, and keeps them or forwards them to their owner.

use super::gro_batch::{Datagram, PendingDatagram};
use super::ident::{IdentSequence, Sources};
use super::probe::Probe;
use super::repair::RepairPace;
use super::single_rx;
use super::source::{PollSchedule, Source, SourceKind};
use super::sys::{self, InMessage};
use super::{BoundAddress, UdpLink, multicast::Membership};
use crate::link::batch::{RX_BUFFER_LEN, RX_BUFFERS, RxMeta};
use crate::link::counters::add_alone;
use crate::link::shared_port::{Forwarded, HEADER_LEN, owner_of};
use crate::link::{Attempt, RxBatch};
use ferroce_os::clock::wall_clock_ns;
use ferroce_proto::Gid;
use ferroce_proto::wire::{Bth, FlowAddrs, ICRC_LEN, IcrcPrefix, VerifiedIcrc, dest_qpn, has_partial_icrc};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const MIN_PACKET_LEN: usize = Bth::LEN + ICRC_LEN;
/// How often a socket is polled before it is closed; each poll takes up to [`RX_BUFFERS`] datagrams.
const LAST_POLLS: usize = 256;
/// Bytes of a long GRO batch that are verified at a time: together with their destination, half of the L1 cache.
const CHUNK: usize = 16 * 1024;

/// State of the receiving half. One thread at a time uses it.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) sources: Vec<Source>,
    pub(super) schedule: PollSchedule,
    pub(super) memberships: Vec<Membership>,
    pub(super) pace: Vec<RepairPace>,
    /// The GID of each bound address; `None` for the wildcard address.
    bound: Vec<Option<Gid>>,
    /// Whether a repair is outstanding because the roster was locked.
    pub(super) owes_repair: bool,
    /// The token in probes of this user's processes.
    pub(super) token: u128,
    /// The link is closing: it holds the lock of the roster, so this module must not take it.
    pub(super) is_closing: bool,
    pub(super) idents: Sources,
    pub(super) prefixes: IcrcPrefix,
    /// Datagrams of the last poll that are not fully verified, in order.
    pending: VecDeque<PendingDatagram>,
    arrived: [InMessage; RX_BUFFERS],
}

/// Longest plausible age. A longer one means that the clock was set.
const MAX_AGE_NS: u64 = 4_000_000_000;

/// How long ago the kernel received a packet, by the clock of its time stamps; 0 if the clock was set in between.
fn age_ns(stamped_ns: u64, now_ns: u64) -> u32 {
    match now_ns.checked_sub(stamped_ns) {
        Some(age) if age <= MAX_AGE_NS => age as u32,
        _ => 0,
    }
}

/// The addresses that the ICRC of a packet covers.
pub(super) fn flow_of(meta: &RxMeta) -> FlowAddrs {
    FlowAddrs::new(meta.sgid, meta.dgid, meta.sport)
}

impl Receiver {
    pub(super) fn new(sources: Vec<Source>, addresses: &[BoundAddress], token: u128) -> Receiver {
        Receiver {
            sources,
            schedule: PollSchedule::default(),
            memberships: Vec::new(),
            pace: vec![RepairPace::default(); addresses.len()],
            bound: addresses.iter().map(BoundAddress::only_gid).collect(),
            owes_repair: false,
            token,
            is_closing: false,
            idents: Sources::default(),
            prefixes: IcrcPrefix::default(),
            pending: VecDeque::new(),
            arrived: Default::default(),
        }
    }
}

impl UdpLink {
    /// Receives new datagrams. Verifies only the first chunk of a long GRO batch; [`Self::receive_rest`] verifies the rest.
    pub(super) fn receive_new(&self, rx: &mut RxBatch, thorough: bool) -> usize {
        rx.clear();
        let Some(mut receiver) = self.receiver.try_lock() else { return 0 };
        receiver.pending.clear();
        receiver.schedule.begin();
        if receiver.owes_repair && thorough {
            self.repair_owed(&mut receiver);
        }
        if self.port.deadline().is_some() {
            self.port.retry();
        }
        let mut used = 0;
        for index in 0..receiver.sources.len() {
            if used == RX_BUFFERS {
                break;
            }
            if thorough || receiver.schedule.includes(index, &receiver.sources[index]) {
                used += self.poll_source(&mut receiver, index, rx, used);
            }
        }
        if !receiver.pending.is_empty() {
            self.verify_some(&mut receiver, rx);
        }
        rx.len()
    }

    /// Adds further packets that [`Self::receive_new`] read, and returns their number.
    pub(super) fn receive_rest(&self, rx: &mut RxBatch) -> usize {
        let before = rx.len();
        self.verify_some(&mut self.receiver.lock(), rx);
        rx.len() - before
    }

    /// Empties the sockets and forwards packets for other processes. Packets for this process are dropped: it is closing.
    pub(super) fn forward_rest(&self, receiver: &mut Receiver) {
        let mut rx = RxBatch::new();
        for index in 0..receiver.sources.len() {
            let is_address = matches!(receiver.sources[index].kind, SourceKind::Address(_));
            // Bounded, so that a flood of packets cannot prevent closing.
            for _ in 0..LAST_POLLS {
                rx.clear();
                if !is_address || self.poll_source(receiver, index, &mut rx, 0) == 0 {
                    break;
                }
                while !receiver.pending.is_empty() {
                    self.verify_some(receiver, &mut rx);
                }
            }
        }
    }

    /// Reads from one source into the buffers from `first_buffer` on. Returns how many buffers were filled.
    fn poll_source(
        &self,
        receiver: &mut Receiver,
        index: usize,
        rx: &mut RxBatch,
        first_buffer: usize,
    ) -> usize {
        let source = &mut receiver.sources[index];
        let (kind, offer) = (source.kind, source.offer.min(RX_BUFFERS - first_buffer));
        let asks_little = offer == 1 && !self.reports_outer_fields.load(Relaxed);
        // The address itself is read where it is used: nearly no packet needs it.
        let is_expected = asks_little && source.single_rx.expected().is_some();
        let memory = rx.buffers_from(first_buffer);
        let arrived = &mut receiver.arrived[..offer];
        let (filled, calls) = if is_expected {
            let memory = &mut memory[..RX_BUFFER_LEN];
            sys::receive_plain(source.fd, memory, &mut arrived[0], source.polls_per_call())
        } else {
            (sys::receive_messages(source.fd, memory, RX_BUFFER_LEN, arrived).unwrap_or(0), 1)
        };
        add_alone(&self.counters.rx_calls, calls);
        let bytes = match filled {
            0 => 0,
            1 => receiver.arrived[0].len,
            _ => receiver.arrived[..filled].iter().map(|m| m.len).sum(),
        };
        source.on_poll(calls, offer, filled, bytes);
        if let Some(merges) = source.change_of_gro() {
            // Cannot fail: the kernel accepted the option when the socket was opened.
            let _ = sys::set_option(&source.fd, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(merges));
        }
        if filled == 0 {
            return 0;
        }
        receiver.schedule.on_hit(index);
        if is_expected && self.take_known(receiver, index, rx, first_buffer) == Attempt::Done {
            return filled;
        }
        let expected = if is_expected { receiver.sources[index].single_rx.expected() } else { None };
        for i in 0..filled {
            let buffer = first_buffer + i;
            match kind {
                SourceKind::Forwarded => self.take_forwarded(receiver, i, rx, buffer),
                _ => self.take_datagram(receiver, (index, i), expected, rx, buffer),
            }
        }
        filled
    }

    /// Single-packet RX: takes the first message of source number `index` if it is a packet for us like the last one.
    #[inline]
    fn take_known(&self, receiver: &mut Receiver, index: usize, rx: &mut RxBatch, buffer: usize) -> Attempt {
        let Receiver { sources, arrived, idents, .. } = receiver;
        let InMessage { from, len, .. } = &arrived[0];
        let datagram = &rx.buffer(buffer)[..(*len).min(RX_BUFFER_LEN)];
        match sources[index].single_rx.match_last(from, datagram) {
            Some(&meta) => self.take_single(idents, &meta, buffer, datagram.len(), rx),
            None => Attempt::Declined,
        }
    }

    /// Takes message number `arrived` of source number `index`. In single-packet RX it was probably sent to `expected`.
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
        // A socket bound to one address gets no control message with the destination.
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
        let single_rx = &mut receiver.sources[index].single_rx;
        if expected.is_some() {
            let (flow, bytes) = (FlowAddrs::new(sgid, dgid, sport), &rx.buffer(buffer)[..len]);
            if single_rx::is_alone(&mut receiver.prefixes, &flow, bytes) {
                let is_partial = has_partial_icrc(bytes);
                single_rx.remember(message.from, len, meta, &mut receiver.prefixes);
                if self.take_single(&mut receiver.idents, &meta, buffer, len, rx) == Attempt::Done {
                    return;
                }
                datagram.verified = Some(VerifiedIcrc { ident: 0, is_partial });
            } else {
                single_rx.on_mismatch();
                if let Some(layout) = single_rx::detect_layout(&flow, bytes) {
                    (datagram.meta.dgid, datagram.segment_len) = (layout.dgid, layout.segment_len);
                }
            }
        }
        let mut pending = PendingDatagram::new(datagram, index, expected.is_none());
        // Copies for groups need no order, and the same-host link filters them before they are used.
        let may_wait = pending.address().is_some() && !dgid.is_multicast();
        if may_wait && (pending.is_long() || !receiver.pending.is_empty()) {
            receiver.pending.push_back(pending);
        } else {
            let before = rx.len();
            self.take_from(receiver, &mut pending, rx, usize::MAX);
            if let Some(stamped_ns) = arrival.stamped_ns {
                rx.set_age(before, age_ns(stamped_ns, wall_clock_ns()));
            }
            self.on_verified(receiver, &pending);
        }
    }

    /// Verifies pending datagrams until one yields a packet for us.
    fn verify_some(&self, receiver: &mut Receiver, rx: &mut RxBatch) {
        let before = rx.len();
        while let Some(mut pending) = receiver.pending.pop_front() {
            self.take_from(receiver, &mut pending, rx, CHUNK);
            if pending.is_done() {
                self.on_verified(receiver, &pending);
            } else {
                receiver.pending.push_front(pending);
            }
            if rx.len() > before {
                break;
            }
        }
        rx.has_more = !receiver.pending.is_empty();
    }

    /// All packets of a datagram are verified: updates single-packet RX and steering.
    fn on_verified(&self, receiver: &mut Receiver, pending: &PendingDatagram) {
        let Some(address) = pending.address() else { return };
        if pending.teaches_single_rx {
            let single_rx = &mut receiver.sources[pending.source].single_rx;
            single_rx.on_datagram(pending.dgid(), pending.is_single(), pending.last_ident());
        }
        if let Some(slot) = pending.misrouted_to {
            self.on_misdelivery(receiver, address, slot);
        }
    }

    /// Keeps a verified single packet, if it belongs to this process. This is the case of every small message.
    #[inline]
    fn take_single(
        &self,
        idents: &mut Sources,
        meta: &RxMeta,
        buffer: usize,
        len: usize,
        rx: &mut RxBatch,
    ) -> Attempt {
        let is_ours = dest_qpn(rx.buffer(buffer)).and_then(owner_of) == Some(self.slot);
        if !is_ours
            || self.capture.is_some()
            || !IdentSequence::new().accept(idents, meta.sgid, meta.sport, 0)
        {
            return Attempt::Declined;
        }
        add_alone(&self.counters.rx_packets, 1);
        add_alone(&self.counters.rx_bytes, len as u64);
        rx.push(buffer, 0..len - ICRC_LEN, meta);
        Attempt::Done
    }

    fn take_forwarded(&self, receiver: &mut Receiver, arrived: usize, rx: &mut RxBatch, buffer: usize) {
        let len = receiver.arrived[arrived].len.min(RX_BUFFER_LEN);
        match Forwarded::parse(&rx.buffer(buffer)[..len]) {
            Some(Forwarded::Packets { meta, segment_len }) => {
                let mut start = HEADER_LEN;
                while start < len {
                    let range = start..(start + segment_len).min(len);
                    start += segment_len;
                    self.take_forwarded_packet(receiver, rx, buffer, range, meta);
                }
            }
            Some(Forwarded::Reattach(addr)) => self.on_reattach(receiver, addr),
            // An empty message is a wake-up.
            None if len == 0 => {}
            None => add_alone(&self.counters.malformed, 1),
        }
    }

    /// Takes a forwarded packet. Drops a packet for a third process: two processes could forward it to each other endlessly.
    fn take_forwarded_packet(
        &self,
        receiver: &mut Receiver,
        rx: &mut RxBatch,
        buffer: usize,
        range: Range<usize>,
        meta: RxMeta,
    ) {
        let packet = &rx.buffer(buffer)[range.clone()];
        let ours = |qpn| owner_of(qpn).is_none_or(|owner| owner == self.slot);
        if range.len() < MIN_PACKET_LEN || !dest_qpn(packet).is_some_and(ours) {
            return add_alone(&self.counters.malformed, 1);
        }
        add_alone(&self.counters.forwarded_in, 1);
        add_alone(&self.counters.rx_packets, 1);
        add_alone(&self.counters.rx_bytes, range.len() as u64);
        // The process that forwarded it has verified its ICRC.
        if has_partial_icrc(packet)
            && !receiver
                .prefixes
                .verify(&flow_of(&meta), 0, packet)
                .is_some_and(|verified| verified.is_partial)
        {
            rx.clear_partial_icrc(buffer, &range);
        }
        rx.push(buffer, range.start..range.end - ICRC_LEN, &meta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_makes_no_age() {
        assert_eq!(age_ns(5_000, 12_000), 7_000);
        assert_eq!(age_ns(12_000, 5_000), 0);
        assert_eq!(age_ns(0, MAX_AGE_NS), MAX_AGE_NS as u32);
        assert_eq!(age_ns(0, MAX_AGE_NS + 1), 0);
    }
}
