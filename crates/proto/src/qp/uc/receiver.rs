//! Receiving side of an unreliable connection. A message with a missing packet is dropped silently.

use super::super::inbound::{Inbound, Refusal};
use super::super::io::{Fatal, Io};
use super::super::notification::NotificationPoint;
use super::super::{DropReason, Host, Reason, RecvQueue, TxPayload};
use crate::ids::Psn;
use crate::verbs::{QpAttr, WcStatus};
use crate::wire::{Aeth, Opcode, Operation, Packet, Syndrome};

#[derive(Debug)]
pub(crate) struct Receiver {
    expected: Psn,
    inbound: Inbound,
    /// The current message lost a packet; the rest is skipped.
    skipping: bool,
    /// A marked packet that is not acknowledged yet.
    owed: Option<Psn>,
    notification: NotificationPoint,
    /// A switch marked a packet that the peer was not notified of.
    was_marked: bool,
}

impl Receiver {
    pub(crate) fn new(notification: NotificationPoint) -> Receiver {
        Receiver {
            expected: Psn::default(),
            inbound: Inbound::default(),
            skipping: false,
            owed: None,
            notification,
            was_marked: false,
        }
    }

    pub(crate) fn start(&mut self, attr: &QpAttr) {
        self.expected = attr.rq_psn;
    }

    /// Records that a switch marked a packet.
    pub(crate) fn on_marked(&mut self) {
        self.was_marked = true;
    }

    pub(crate) fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let (psn, op) = (pkt.headers.bth.psn, pkt.headers.bth.opcode.operation);
        if pkt.headers.bth.selective {
            self.owed = Some(psn);
        }
        let lost = psn != self.expected;
        // The next expected PSN always follows the received one, because UC does not recover losses (C9-160).
        self.expected = psn.plus(1);
        if lost {
            self.drop_message(
                format_args!("PSN {psn} does not follow the one before"),
                DropReason::BrokenMessage,
                io,
            );
        }
        if self.skipping && !op.starts_message() {
            return Ok(());
        }
        if op.starts_message() {
            if self.inbound.in_message() {
                self.drop_message(format_args!("{op:?} inside a message"), DropReason::BrokenMessage, io);
            }
            self.skipping = false;
        }
        match self.inbound.accept(pkt, rq, io) {
            Ok(_) => Ok(()),
            Err(Refusal::Local(fault)) => {
                // The fault is local. Keeping this receive would make every later message fail.
                io.host.explain(format_args!(
                    "QP {}: a message cannot be placed into its receive: {fault}",
                    io.id.qpn
                ));
                self.inbound.fail_recv(WcStatus::LocProtErr, Reason::LocalMemory, io);
                Err(Fatal)
            }
            Err(refusal) => {
                self.on_refusal(refusal, io);
                Ok(())
            }
        }
    }

    pub(crate) fn has_replies(&self) -> bool {
        self.owed.is_some() || self.was_marked
    }

    /// Notifies the peer of congestion and acknowledges the last marked packet. Retries later if the link is full.
    pub(crate) fn poll_transmit<H: Host>(&mut self, io: &mut Io<'_, H>) {
        if self.was_marked {
            self.was_marked = self.notification.notify(io).is_err();
        }
        let Some(psn) = self.owed else { return };
        let mut headers = io.headers(Operation::Acknowledge, psn, 0);
        headers.bth.opcode = Opcode::UC_ACK;
        headers.aeth = Some(Aeth { syndrome: Syndrome::ACK_NO_CREDIT, msn: 0 });
        if io.send_unacknowledged(&headers, TxPayload::None).is_ok() {
            self.owed = None;
        }
    }

    fn on_refusal<H: Host>(&mut self, refusal: Refusal, io: &mut Io<'_, H>) {
        self.inbound.abandon();
        self.skipping = true;
        let (qpn, peer) = (io.id.qpn, io.attr.dest_qpn);
        match refusal {
            Refusal::NoReceive => {
                io.host.dropped(DropReason::NoReceive, format_args!("QP {qpn}: no receive posted for a message from QP {peer}; post receives before it sends"));
            }
            Refusal::TooLong { capacity, needed } => io.host.dropped(
                DropReason::Unfit,
                format_args!("QP {qpn}: message of {needed} bytes from QP {peer} exceeds the receive of {capacity} bytes"),
            ),
            Refusal::Access(fault) | Refusal::Local(fault) | Refusal::Invalidate(fault) => {
                io.host.dropped(DropReason::AccessDenied, format_args!("QP {qpn}: a message from QP {peer} is refused: {fault}"));
            }
            Refusal::Sequence | Refusal::Length | Refusal::NotFetched => io.host.dropped(
                DropReason::BrokenMessage,
                format_args!("QP {qpn}: opcode or length is not valid at this point of a message"),
            ),
        }
    }

    fn drop_message<H: Host>(
        &mut self,
        why: core::fmt::Arguments<'_>,
        reason: DropReason,
        io: &mut Io<'_, H>,
    ) {
        if self.inbound.in_message() {
            io.host.dropped(reason, format_args!("QP {}: message dropped: {why}", io.id.qpn));
        }
        self.inbound.abandon();
        self.skipping = true;
    }
}
