//! Each packet in words: what it is, what it requests or answers, and what is special about it.

use super::message::nak_reason;
use super::requester::Notes;
use super::selection::Item;
use crate::sizes::{format_duration, format_size};
use ferroce_proto::qp::RefusalReason;
use ferroce_proto::qp::state::rnr_timer_ns;
use ferroce_proto::wire::cm::CmMessage;
use ferroce_proto::wire::{Aeth, NakCode, Operation, Service, Syndrome};
use std::fmt::Write;

/// A few letters for the arrow of a packet.
pub(super) fn label(item: &Item) -> String {
    if let Some(cm) = &item.cm {
        return cm.split(':').next().unwrap_or_default().to_owned();
    }
    let headers = &item.headers;
    let size = || format_size(item.payload_len.into());
    let operation = headers.bth.opcode.operation;
    match (operation, headers.aeth.map(|aeth| aeth.syndrome)) {
        (Operation::CongestionNotification, _) => "CNP".into(),
        (Operation::ReadRequest, _) => {
            format!("READ {}", headers.reth.map_or("?".into(), |reth| format_size(reth.len.into())))
        }
        (_, Some(Syndrome::RnrNak { .. })) => "RNR NAK".into(),
        (_, Some(Syndrome::Nak(code))) => format!("NAK: {}", nak_reason(code)),
        (Operation::Acknowledge, _) => "ACK".into(),
        (Operation::AtomicAcknowledge, _) => "atomic ACK".into(),
        (Operation::CompareSwap | Operation::FetchAdd | Operation::Flush, _) => short_name(operation).into(),
        (operation, _) if operation.is_read_response() => format!("READ response {}", size()),
        (operation, _) => format!("{} {}", short_name(operation), size()),
    }
}

fn short_name(operation: Operation) -> &'static str {
    match operation {
        Operation::CompareSwap => "CAS",
        Operation::FetchAdd => "FAA",
        Operation::Flush => "FLUSH",
        Operation::AtomicWrite => "ATOMIC WRITE",
        operation if operation.is_write() => "WRITE",
        _ => "SEND",
    }
}

/// The class of a packet's colour.
pub(super) fn class(item: &Item) -> &'static str {
    let operation = item.headers.bth.opcode.operation;
    let is_negative = item.headers.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. }));
    match operation {
        _ if item.cm.is_some() => "cm",
        _ if is_negative || operation == Operation::CongestionNotification => "bad",
        Operation::Acknowledge => "ack",
        Operation::AtomicAcknowledge => "atomic",
        operation if operation.is_read_response() => "read",
        operation => super::message::Kind::of(operation).map_or("ack", |kind| kind.class()),
    }
}

/// The packet in sentences.
pub(super) fn of_packet(item: &Item) -> String {
    let mut text = match &item.cm {
        Some(cm) => cm.clone(),
        None => of_headers(item),
    };
    let _ = write!(
        text,
        " To queue pair {:#x}, PSN {}.",
        item.headers.bth.dest_qpn.value(),
        item.headers.bth.psn.value()
    );
    of_flags(&mut text, item);
    of_finding(&mut text, item);
    text
}

fn of_headers(item: &Item) -> String {
    let headers = &item.headers;
    let size = format_size(item.payload_len.into());
    let opcode = headers.bth.opcode;
    let mut text = match opcode.operation {
        Operation::CongestionNotification => {
            "Congestion notification: packets of the receiving queue pair were marked on their way, and it should send more slowly.".into()
        }
        Operation::ReadRequest => match headers.reth {
            Some(reth) => format!(
                "RDMA READ request for {} at address {:#x} with R_Key {:#x}.",
                format_size(reth.len.into()),
                reth.addr,
                reth.rkey.0
            ),
            None => "RDMA READ request; the address was not captured.".into(),
        },
        Operation::CompareSwap | Operation::FetchAdd => of_atomic(item),
        Operation::Acknowledge => of_ack(opcode.service, headers.aeth),
        Operation::AtomicAcknowledge => format!(
            "Atomic acknowledgement{}.",
            headers.atomic_ack.map_or(String::new(), |value| format!(": the value before was {value:#x}"))
        ),
        Operation::Flush => "Flush: earlier writes must be placed before it is answered.".into(),
        Operation::AtomicWrite => "Atomic write of 8 bytes.".into(),
        operation if operation.is_read_response() => {
            let negative = headers.aeth.filter(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. }));
            match negative {
                Some(aeth) => of_ack(opcode.service, Some(aeth)),
                None => format!("{} of an RDMA READ response with {size} of payload.", part(operation)),
            }
        }
        operation => {
            let name = if operation.is_write() { "an RDMA WRITE" } else { "a SEND" };
            let mut text = format!("{} of {name} with {size} of payload.", part(operation));
            if let Some(reth) = headers.reth.filter(|_| operation.starts_message()) {
                let _ = write!(
                    text,
                    " The message has {} and goes to address {:#x} with R_Key {:#x}.",
                    format_size(reth.len.into()),
                    reth.addr,
                    reth.rkey.0
                );
            }
            text
        }
    };
    if let Some(reason) = item.refusal.and_then(|number| RefusalReason::ALL.get(usize::from(number))) {
        let _ = write!(text, " The ferroce responder gives its reason: {}.", reason.text());
    }
    if let Some(imm) = headers.imm {
        let _ = write!(text, " Immediate data {imm:#x}.");
    }
    if let Some(key) = headers.ieth {
        let _ = write!(text, " The receiver invalidates the key {:#x}.", key.0);
    }
    if let Some(ack) = headers.piggybacked_ack {
        let _ =
            write!(text, " It carries an acknowledgement up to PSN {}, as ferroce ends do.", ack.psn.value());
    }
    if let Some(deth) = headers.deth {
        let _ = write!(text, " From queue pair {:#x} with Q_Key {:#x}.", deth.src_qpn.value(), deth.qkey.0);
    }
    if let Some(srq) = headers.xrceth {
        let _ = write!(text, " For the shared receive queue {:#x}.", srq.value());
    }
    text
}

fn part(operation: Operation) -> &'static str {
    match operation {
        operation if operation.is_first() => "First packet",
        operation if operation.is_middle() => "Middle packet",
        operation if operation.is_last() => "Last packet",
        _ => "Only packet",
    }
}

fn of_atomic(item: &Item) -> String {
    let Some(atomic) = item.headers.atomic else {
        return "Atomic request; its operands were not captured.".into();
    };
    let operands = match item.headers.bth.opcode.operation {
        Operation::CompareSwap => {
            format!(
                "Compare and swap: writes {:#x} if the value is {:#x},",
                atomic.swap_or_add, atomic.compare
            )
        }
        _ => format!("Fetch and add: adds {:#x}", atomic.swap_or_add),
    };
    format!("{operands} at address {:#x} with R_Key {:#x}.", atomic.addr, atomic.rkey.0)
}

fn of_ack(service: Service, aeth: Option<Aeth>) -> String {
    let Some(aeth) = aeth else { return "Acknowledgement; its syndrome was not captured.".into() };
    match aeth.syndrome {
        Syndrome::Ack { .. } if service == Service::Own => {
            "Acknowledgement of a packet of an unreliable connection, as ferroce ends send it.".into()
        }
        Syndrome::Ack { .. } => {
            format!(
                "Acknowledgement of all packets up to this PSN; the responder has completed message {}.",
                aeth.msn
            )
        }
        Syndrome::RnrNak { timer } => format!(
            "RNR NAK: the receiver has no receive posted. The sender must wait {} and send this packet again.",
            format_duration(rnr_timer_ns(timer))
        ),
        Syndrome::Nak(code) => format!("NAK, {}: {}", nak_reason(code), nak_meaning(code)),
    }
}

fn nak_meaning(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => {
            "the receiver expects this PSN and got a later one; the sender goes back to it."
        }
        NakCode::InvalidRequest => {
            "the receiver cannot execute the request; for example the message is longer than the posted receive, or the operation is not allowed."
        }
        NakCode::RemoteAccess => {
            "the memory region refuses the access; check the R_Key, the address range and the access flags."
        }
        NakCode::RemoteOperational => "the responder could not complete the request for a reason of its own.",
        NakCode::InvalidRdRequest => "only reliable datagrams have this code.",
    }
}

fn of_flags(text: &mut String, item: &Item) {
    let bth = &item.headers.bth;
    if bth.ack_req && bth.opcode.operation.is_request() {
        text.push_str(" It requests an acknowledgement.");
    }
    if bth.solicited {
        text.push_str(" Solicited event.");
    }
    if item.ecn == 3 {
        text.push_str(" A switch marked it: congestion experienced.");
    }
    if item.headers_cut {
        text.push_str(" The snap length of the capture cut off headers.");
    }
}

fn of_finding(text: &mut String, item: &Item) {
    let (finding, notes) = (&item.finding, item.finding.notes);
    for (note, words) in [
        (Notes::RETRANSMISSION, "Retransmission: this PSN was sent before."),
        (Notes::OUT_OF_ORDER, "Out of order: a later PSN came first."),
        (Notes::REPEATED_ACK, "It repeats the last acknowledgement."),
        (Notes::BAD_ICRC, "The ICRC is wrong: a receiver drops the packet."),
        (
            Notes::RESTART,
            "The PSN is far from the last one: another connection uses this queue pair number, or many packets are missing.",
        ),
        (Notes::LOST, "Lost: it was sent and never received."),
        (Notes::DUPLICATED, "It was received more often than it was sent."),
    ] {
        if notes.has(note) {
            let _ = write!(text, " {words}");
        }
    }
    if notes.has(Notes::GAP) {
        let _ = match finding.missing {
            1 => write!(text, " Gap: the packet before it is not in the capture."),
            n => write!(text, " Gap: the {n} packets before it are not in the capture."),
        };
    }
    if let Some(arrival) = item.arrival_ns {
        let _ = write!(text, " It arrived after {}.", format_duration(arrival.saturating_sub(item.time_ns)));
    }
    if finding.completes > 0 {
        let plural = if finding.completes == 1 { "" } else { "s" };
        let _ = write!(text, " It completes {} message{plural}.", finding.completes);
    }
    if let Some(rtt) = finding.rtt_ns {
        let _ = write!(text, " {} after the packet that it answers.", format_duration(rtt));
    }
}

/// A message of the connection manager, its name first.
pub(super) fn of_cm(message: &CmMessage) -> String {
    let name = message.name();
    match message {
        CmMessage::Req(m) => format!(
            "{name}: offers a connection to service {:#x} from queue pair {:#x}, which expects PSN {} first.",
            m.service_id,
            m.local_qpn.value(),
            m.starting_psn.value()
        ),
        CmMessage::Rep(m) => format!(
            "{name}: accepts the connection with queue pair {:#x}, which expects PSN {} first.",
            m.local_qpn.value(),
            m.starting_psn.value()
        ),
        CmMessage::Rtu(_) => format!("{name}: the connection is ready to use."),
        CmMessage::Rej(m) => format!("{name}: refuses the connection, reason {}.", m.reason),
        CmMessage::Mra(_) => format!("{name}: requests more time."),
        CmMessage::Dreq(_) => format!("{name}: closes the connection."),
        CmMessage::Drep(_) => format!("{name}: confirms that the connection is closed."),
        _ => format!("{name}: a message of the connection manager."),
    }
}

/// The name of a transport service.
pub(super) fn service(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Rd => "RD",
        Service::Ud => "UD",
        Service::Cnp => "CNP",
        Service::Xrc => "XRC",
        Service::Own => "UC",
    }
}
