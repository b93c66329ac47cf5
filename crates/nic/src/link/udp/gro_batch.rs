//! Splits a GRO batch into packets, verifies each, and keeps it or forwards it to its owner.
//!
//! A long batch is verified in chunks. Verifying the ICRC loads a packet into the L1 cache, and placing the packet immediately
//! reads it from there. Verifying the whole batch first would evict its first packets.

use super::UdpLink;
use super::ident::IdentSequence;
use super::receive::{MIN_PACKET_LEN, Receiver, flow_of};
use super::source::{LONG_GRO_BATCH, SourceKind};
use crate::link::RxBatch;
use crate::link::batch::RxMeta;
use crate::link::capture::{Direction, Outer};
use crate::link::counters::add_alone;
use crate::link::shared_port::{MAX_RUN_LEN, owner_of};
use ferroce_os::clock::wall_clock_ns;
use ferroce_proto::Gid;
use ferroce_proto::wire::{ICRC_LEN, VerifiedIcrc, dest_qpn, has_partial_icrc};
use std::ops::Range;

/// A datagram: one packet, or a GRO batch.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) kind: SourceKind,
    pub(super) meta: RxMeta,
    pub(super) buffer: usize,
    pub(super) len: usize,
    /// Length of every packet but the last.
    pub(super) segment_len: usize,
    /// The ICRC of its only packet, if that is right.
    pub(super) verified: Option<VerifiedIcrc>,
}

/// A datagram whose packets are being verified, and the state after those verified so far.
#[derive(Debug)]
pub(super) struct PendingDatagram {
    datagram: Datagram,
    /// The number of its source.
    pub(super) source: usize,
    /// Whether it updates the single-packet RX of the source.
    pub(super) teaches_single_rx: bool,
    /// Offset of the next packet.
    start: usize,
    idents: IdentSequence,
    misrouted: Option<MisroutedRun>,
    /// The owner of the last misrouted packet.
    pub(super) misrouted_to: Option<u8>,
}

/// Consecutive packets of one datagram that belong to another process.
#[derive(Debug)]
struct MisroutedRun {
    slot: u8,
    bytes: Range<usize>,
}

impl PendingDatagram {
    pub(super) fn new(datagram: Datagram, source: usize, teaches_single_rx: bool) -> PendingDatagram {
        let idents = IdentSequence::new();
        PendingDatagram {
            datagram,
            source,
            teaches_single_rx,
            start: 0,
            idents,
            misrouted: None,
            misrouted_to: None,
        }
    }

    /// Whether it is verified in chunks.
    pub(super) fn is_long(&self) -> bool {
        self.datagram.len > LONG_GRO_BATCH && !self.is_single()
    }

    /// Whether it holds one packet.
    pub(super) fn is_single(&self) -> bool {
        self.datagram.segment_len >= self.datagram.len
    }

    /// Whether all its packets are verified. An empty datagram is one malformed packet.
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

    /// Its destination address.
    pub(super) fn dgid(&self) -> Gid {
        self.datagram.meta.dgid
    }

    /// The identification of the last good packet.
    pub(super) fn last_ident(&self) -> Option<u16> {
        self.idents.last()
    }
}

impl UdpLink {
    /// Takes packets out of a datagram until `at_least` bytes are verified or it is done. Keeps or forwards each good packet.
    pub(super) fn take_from(
        &self,
        receiver: &mut Receiver,
        pending: &mut PendingDatagram,
        rx: &mut RxBatch,
        at_least: usize,
    ) {
        let Datagram { buffer, len, segment_len, .. } = pending.datagram;
        let end = pending.start.saturating_add(at_least);
        while !pending.is_done() && pending.start < end {
            let range = pending.start..(pending.start + segment_len).min(len);
            pending.start += segment_len;
            let packet = &rx.buffer(buffer)[range.clone()];
            match self.check_packet(receiver, pending, packet) {
                Some((owner, _)) if owner != self.slot => {
                    pending.misrouted_to = Some(owner);
                    self.extend_run(pending, rx, owner, range);
                }
                ours_or_bad => {
                    self.forward_run(pending, rx);
                    if let Some((_, is_partial)) = ours_or_bad {
                        add_alone(&self.counters.rx_packets, 1);
                        add_alone(&self.counters.rx_bytes, range.len() as u64);
                        if !is_partial && has_partial_icrc(packet) {
                            rx.clear_partial_icrc(buffer, &range);
                        }
                        rx.push(buffer, range.start..range.end - ICRC_LEN, &pending.datagram.meta);
                    }
                }
            }
        }
        if pending.is_done() {
            self.forward_run(pending, rx);
        }
    }

    /// Verifies a packet. Returns the slot of its owner and whether its ICRC is partial; `None` if it was dropped. Packets to QP1 and to
    /// multicast groups belong to the process that received them.
    fn check_packet(
        &self,
        receiver: &mut Receiver,
        pending: &mut PendingDatagram,
        packet: &[u8],
    ) -> Option<(u8, bool)> {
        let PendingDatagram { datagram, idents, .. } = pending;
        let meta = &datagram.meta;
        let flow = flow_of(meta);
        let well_formed = packet.len() >= MIN_PACKET_LEN && packet.len().is_multiple_of(4);
        let verify = || receiver.prefixes.verify(&flow, idents.guess(), packet);
        let verified = if well_formed { datagram.verified.or_else(verify) } else { None };
        let ident = verified.map(|verified| verified.ident);
        if let Some(capture) = &self.capture {
            let outer = Outer { flow, ident: ident.unwrap_or(0), tos: meta.tos, ttl: meta.ttl };
            capture.record(Direction::Received, wall_clock_ns(), &outer, packet);
        }
        if !well_formed {
            add_alone(&self.counters.malformed, 1);
            ferroce_os::log::drop(format_args!(
                "{} bytes from {} are no RoCE packet",
                packet.len(),
                meta.sgid
            ));
            return None;
        }
        if !ident.is_some_and(|ident| idents.accept(&mut receiver.idents, meta.sgid, meta.sport, ident)) {
            add_alone(&self.counters.bad_icrc, 1);
            ferroce_os::log::drop(format_args!("wrong ICRC on {} bytes from {}", packet.len(), meta.sgid));
            return None;
        }
        let qpn = dest_qpn(packet)?;
        let owner = match (datagram.kind, owner_of(qpn)) {
            (_, None) => Some(self.slot),
            (SourceKind::Group(_), Some(_)) => {
                // Every member of the group has a copy; forwarding would multiply it.
                add_alone(&self.counters.malformed, 1);
                ferroce_os::log::drop(format_args!(
                    "QP {qpn} is no group's, but was sent to {}",
                    meta.dgid.to_ip()
                ));
                None
            }
            (_, Some(owner)) => Some(owner),
        };
        Some((owner?, verified?.is_partial))
    }

    /// Adds a packet to the run of packets for one other process, or forwards that run and begins another.
    fn extend_run(&self, pending: &mut PendingDatagram, rx: &RxBatch, slot: u8, packet: Range<usize>) {
        match &mut pending.misrouted {
            Some(run) if run.slot == slot && packet.end - run.bytes.start <= MAX_RUN_LEN => {
                run.bytes.end = packet.end;
            }
            _ => {
                self.forward_run(pending, rx);
                pending.misrouted = Some(MisroutedRun { slot, bytes: packet });
            }
        }
    }

    #[inline] // nearly always there is no such run
    fn forward_run(&self, pending: &mut PendingDatagram, rx: &RxBatch) {
        if let Some(run) = pending.misrouted.take() {
            self.forward_some(&pending.datagram, run, rx);
        }
    }

    #[cold]
    fn forward_some(&self, datagram: &Datagram, run: MisroutedRun, rx: &RxBatch) {
        let MisroutedRun { slot, bytes } = run;
        let &Datagram { meta, buffer, segment_len, .. } = datagram;
        add_alone(&self.counters.misdelivered, bytes.len().div_ceil(segment_len) as u64);
        self.port.forward_run(slot, meta, segment_len, &rx.buffer(buffer)[bytes]);
    }
}
