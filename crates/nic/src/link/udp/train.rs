//! A datagram is opened: what was merged is split, each packet verified and kept, or forwarded to whom it belongs.
//!
//! It can be opened in portions. The ICRC takes a packet into the nearest cache, and a packet that is placed right away is read from
//! there; behind a whole train that was verified first, it would be fetched again.

use super::UdpLink;
use super::ident::Train;
use super::receive::{MIN_PACKET_LEN, Receiver};
use super::source::{LONG_TRAIN, SourceKind};
use crate::link::RxBatch;
use crate::link::batch::RxMeta;
use crate::link::capture::{Direction, Outer};
use crate::link::counters::add_alone;
use crate::link::shared_port::{MAX_RUN_LEN, owner_of};
use ferroce_proto::Gid;
use ferroce_proto::wire::{FlowAddrs, ICRC_LEN, dest_qpn};
use std::ops::Range;

/// A datagram: one packet, or several that were merged.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) kind: SourceKind,
    pub(super) meta: RxMeta,
    pub(super) buffer: usize,
    pub(super) len: usize,
    /// Length of every packet but the last.
    pub(super) segment_len: usize,
    /// The ICRC of its only packet is right, with this identification.
    pub(super) verified: Option<u16>,
}

/// A datagram that is being opened, and what has become of its packets so far.
#[derive(Debug)]
pub(super) struct Opening {
    datagram: Datagram,
    /// The number of its source.
    pub(super) source: usize,
    /// Single-packet RX of the source learns from it.
    pub(super) is_telling: bool,
    /// Where the next packet begins.
    start: usize,
    train: Train,
    foreign: Option<ForeignRun>,
    /// The owner of the last packet that was not ours.
    pub(super) misdelivered: Option<u8>,
}

/// Consecutive packets of one datagram that belong to another process.
#[derive(Debug)]
struct ForeignRun {
    slot: u8,
    bytes: Range<usize>,
}

impl Opening {
    pub(super) fn new(datagram: Datagram, source: usize, is_telling: bool) -> Opening {
        let train = Train::new();
        Opening { datagram, source, is_telling, start: 0, train, foreign: None, misdelivered: None }
    }

    /// Whether it is worth opening in portions.
    pub(super) fn is_long(&self) -> bool {
        self.datagram.len > LONG_TRAIN && !self.is_single()
    }

    /// Whether it holds one packet.
    pub(super) fn is_single(&self) -> bool {
        self.datagram.segment_len >= self.datagram.len
    }

    /// Whether all its packets have been looked at. An empty datagram is one malformed packet.
    pub(super) fn is_done(&self) -> bool {
        self.start >= self.datagram.len.max(1)
    }

    /// The number of the address that it was sent to.
    pub(super) fn address(&self) -> Option<usize> {
        match self.datagram.kind {
            SourceKind::Address(address) => Some(address),
            _ => None,
        }
    }

    /// Where it was sent to.
    pub(super) fn dgid(&self) -> Gid {
        self.datagram.meta.dgid
    }

    /// The identification of the last packet, if that was good.
    pub(super) fn last_ident(&self) -> Option<u16> {
        self.train.last()
    }
}

impl UdpLink {
    /// Takes packets out of a datagram until `at_least` bytes were looked at or it is done: verifies each one and keeps or forwards it.
    pub(super) fn take_from(
        &self,
        receiver: &mut Receiver,
        opening: &mut Opening,
        rx: &mut RxBatch,
        at_least: usize,
    ) {
        let Datagram { buffer, len, segment_len, .. } = opening.datagram;
        let end = opening.start.saturating_add(at_least);
        while !opening.is_done() && opening.start < end {
            let range = opening.start..(opening.start + segment_len).min(len);
            opening.start += segment_len;
            let packet = &rx.buffer(buffer)[range.clone()];
            match self.check_packet(receiver, opening, packet) {
                Some(owner) if owner != self.slot => {
                    opening.misdelivered = Some(owner);
                    self.extend_run(opening, rx, owner, range);
                }
                ours_or_bad => {
                    self.forward_run(opening, rx);
                    if ours_or_bad.is_some() {
                        add_alone(&self.counters.rx_packets, 1);
                        add_alone(&self.counters.rx_bytes, range.len() as u64);
                        rx.push(buffer, range.start..range.end - ICRC_LEN, opening.datagram.meta);
                    }
                }
            }
        }
        if opening.is_done() {
            self.forward_run(opening, rx);
        }
    }

    /// Verifies a packet and says which slot it belongs to; `None` if it was dropped. What belongs to nobody in
    /// particular (connection management, groups) belongs to whoever received it.
    fn check_packet(&self, receiver: &mut Receiver, opening: &mut Opening, packet: &[u8]) -> Option<u8> {
        let Opening { datagram, train, .. } = opening;
        let meta = &datagram.meta;
        let flow = FlowAddrs::new(meta.sgid, meta.dgid, meta.sport);
        let well_formed = packet.len() >= MIN_PACKET_LEN && packet.len().is_multiple_of(4);
        let verify = || receiver.prefixes.verify(&flow, train.guess(), packet);
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
        if !ident.is_some_and(|ident| train.accept(&mut receiver.idents, meta.sgid, meta.sport, ident)) {
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
                crate::log::drop(format_args!("QP {qpn} is no group's, but was sent to {}", meta.dgid));
                None
            }
            (_, Some(owner)) => Some(owner),
        }
    }

    /// Adds a packet to the run of packets for one other process, or sends that run off and begins another.
    fn extend_run(&self, opening: &mut Opening, rx: &RxBatch, slot: u8, packet: Range<usize>) {
        match &mut opening.foreign {
            Some(run) if run.slot == slot && packet.end - run.bytes.start <= MAX_RUN_LEN => {
                run.bytes.end = packet.end;
            }
            _ => {
                self.forward_run(opening, rx);
                opening.foreign = Some(ForeignRun { slot, bytes: packet });
            }
        }
    }

    fn forward_run(&self, opening: &mut Opening, rx: &RxBatch) {
        let Some(ForeignRun { slot, bytes }) = opening.foreign.take() else { return };
        let Datagram { meta, buffer, segment_len, .. } = opening.datagram;
        add_alone(&self.counters.misdelivered, bytes.len().div_ceil(segment_len) as u64);
        self.port.forward_run(slot, meta, segment_len, &rx.buffer(buffer)[bytes]);
    }
}
