//! Selects the next FPDU and passes it to the host.
//!
//! A message is finished before the next one begins: siw treats two unfinished messages of one kind as an error. Between messages,
//! requests and responses alternate, so neither can starve the other. A Terminate leaves after the FPDU in progress.

use super::super::negotiation::{Confirmation, Negotiated, Rtr};
use super::super::wire::{
    DdpBuffer, DdpHeader, Fpdu, LENGTH_LEN, MAX_BODY, MAX_HEAD, RdmapOpcode, ReadRequest,
};
use super::{StreamHost, StreamQp};
use crate::Time;
use crate::ids::RKey;
use crate::qp::{TxError, TxPayload};
use crate::verbs::{MemoryFault, QpState};

/// STag of an empty READ or WRITE as RTR. Hardware refuses 0 even there.
pub(super) const RTR_STAG: RKey = RKey(1);

/// Which kind of message is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Requests,
    Responses,
}

/// Where an FPDU comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A posted request: its number and the offset of the payload.
    Request {
        number: u64,
        offset: u32,
    },
    /// The immediate data of a WRITE, as a message of its own.
    Immediate {
        number: u64,
    },
    /// The oldest response.
    Response,
    Rtr,
    Terminate,
}

/// The FPDU in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) source: Source,
    head: [u8; MAX_HEAD],
    head_len: usize,
    /// Payload bytes.
    pub(super) len: u32,
    /// Whether the message ends with it.
    pub(super) ends_message: bool,
    /// Bytes that the stream has taken.
    pub(super) taken: usize,
}

impl Current {
    /// An FPDU with `len` bytes of payload behind header and body.
    pub(super) fn new(source: Source, header: &DdpHeader, body: &[u8], len: u32) -> Current {
        let mut head = [0; MAX_HEAD];
        let body_at = LENGTH_LEN + header.write(&mut head[LENGTH_LEN..]);
        let head_len = body_at + body.len();
        head[body_at..head_len].copy_from_slice(body);
        // The payload was cut to the MULPDU, which has 16 bits.
        let ulpdu_len = (head_len - LENGTH_LEN) as u32 + len;
        head[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        Current { source, head, head_len, len, ends_message: header.last, taken: 0 }
    }
}

impl StreamQp {
    /// Sends FPDUs until the stream is full or none is left. Call it after every other call, and when the stream takes bytes again.
    pub fn poll_transmit<H: StreamHost>(&mut self, now: Time, host: &mut H) {
        loop {
            if self.current.is_none() {
                // A request that fails as it starts leaves a Terminate behind.
                self.current = self.next_fpdu(now, host).or_else(|| self.terminate_fpdu());
            }
            let Some(current) = self.current else { break };
            let mut sent = self.send_current(&current, host);
            let taken = *sent.as_ref().unwrap_or(&current.taken);
            // In ERR only the Terminate follows. It must leave even if the program destroys the queue pair.
            if self.attr.state == QpState::Err
                && !matches!(sent, Err(TxError::Fault(_)))
                && taken < self.encoded_len(&current)
                && host.keep_fpdu(&self.fpdu(&current), taken).is_ok()
            {
                sent = Ok(self.encoded_len(&current));
            }
            match sent {
                Ok(taken) if taken < self.encoded_len(&current) => {
                    self.current = Some(Current { taken, ..current });
                    break;
                }
                Ok(_) => {
                    self.current = None;
                    self.counters.tx_packets += 1;
                    self.counters.tx_bytes += u64::from(current.len);
                    self.on_sent(&current, now, host);
                }
                Err(TxError::Full) => break,
                Err(TxError::Fault(fault)) => self.on_unreadable(&current, fault, now, host),
            }
        }
    }

    /// Sends the RTR message once more if the peer [may have missed it](Negotiated::may_miss_rtr) and has sent nothing. Returns whether that may be
    /// necessary again.
    #[must_use]
    pub fn repeat_rtr(&mut self) -> bool {
        let is_silent = self.counters.rx_packets == 0 && self.attr.state == QpState::Rts;
        let repeats = is_silent && self.terms.as_ref().is_some_and(Negotiated::may_miss_rtr);
        let is_between = self.current.is_none() && !self.in_request() && !self.in_response();
        if repeats && is_between {
            self.rtr = Some(Rtr::Write);
        }
        repeats
    }

    /// Lets a responder send before the initiator's first FPDU, which RFC 5044 does not allow. It is for programs whose server sends first,
    /// with an initiator that has its reply and does not use RTR.
    pub fn send_first(&mut self) {
        self.may_send |= self.terms.is_some_and(|terms| terms.rtr.is_none());
    }

    /// Whether an FPDU waits for the stream to take bytes.
    pub fn is_blocked(&self) -> bool {
        self.current.is_some()
    }

    fn payload_of(&self, current: &Current) -> TxPayload<'_> {
        match current.source {
            Source::Request { number, offset } => {
                self.sq.payload(number, self.id.pd, offset.into(), current.len)
            }
            Source::Response => self.response_payload(current.len),
            _ => TxPayload::None,
        }
    }

    /// Whether the source of its payload still exists. A failed request is no longer queued.
    pub(super) fn has_payload(&self, current: &Current) -> bool {
        match current.source {
            Source::Request { number, .. } => self.sq.get(number).is_some(),
            _ => true,
        }
    }

    pub(super) fn fpdu<'a>(&'a self, current: &'a Current) -> Fpdu<'a> {
        Fpdu {
            header: &current.head[..current.head_len],
            payload: if current.len == 0 { TxPayload::None } else { self.payload_of(current) },
            has_crc: self.has_crc(),
            ends_message: current.ends_message,
        }
    }

    fn encoded_len(&self, current: &Current) -> usize {
        self.fpdu(current).encoded_len()
    }

    fn send_current<H: StreamHost>(&self, current: &Current, host: &mut H) -> Result<usize, TxError> {
        host.send_fpdu(&self.fpdu(current), current.taken)
    }

    fn next_fpdu<H: StreamHost>(&mut self, now: Time, host: &mut H) -> Option<Current> {
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) || !self.may_send {
            return None;
        }
        if let Some(rtr) = self.rtr.take() {
            return Some(self.rtr_fpdu(rtr));
        }
        if self.in_request() {
            self.next_request(now, host)
        } else if self.in_response() {
            self.next_response()
        } else {
            match self.turn {
                Turn::Requests => self.next_request(now, host).or_else(|| self.next_response()),
                Turn::Responses => self.next_response().or_else(|| self.next_request(now, host)),
            }
        }
    }

    fn rtr_fpdu(&mut self, rtr: Rtr) -> Current {
        match rtr {
            Rtr::Write => {
                let buffer = match self.terms.and_then(|terms| terms.confirmation) {
                    Some(Confirmation { stag, to }) => DdpBuffer::Tagged { stag, to },
                    None => DdpBuffer::Tagged { stag: RTR_STAG, to: 0 },
                };
                let header = DdpHeader { opcode: RdmapOpcode::Write, last: true, buffer };
                Current::new(Source::Rtr, &header, &[], 0)
            }
            Rtr::Read => {
                self.rtr_awaited = true;
                let read = ReadRequest {
                    sink_stag: RTR_STAG,
                    sink_to: 0,
                    len: 0,
                    source_stag: RTR_STAG,
                    source_to: 0,
                };
                let header = self.untagged(RdmapOpcode::ReadRequest, RKey(0), 0, true);
                Current::new(Source::Rtr, &header, &read.to_bytes(), 0)
            }
        }
    }

    fn terminate_fpdu(&mut self) -> Option<Current> {
        let terminate = self.terminate.take()?;
        let mut body = [0; MAX_BODY];
        let len = terminate.write(&mut body);
        let header = self.untagged(RdmapOpcode::Terminate, RKey(0), 0, true);
        Some(Current::new(Source::Terminate, &header, &body[..len], 0))
    }

    /// The header of an untagged segment. The last one of a message uses up the sequence number.
    pub(super) fn untagged(
        &mut self,
        opcode: RdmapOpcode,
        invalidate: RKey,
        offset: u32,
        last: bool,
    ) -> DdpHeader {
        let queue = opcode.queue();
        let msn = &mut self.send_msn[queue as usize];
        let buffer = DdpBuffer::Untagged { invalidate, queue, msn: *msn, offset };
        if last {
            *msn = msn.wrapping_add(1);
        }
        DdpHeader { opcode, last, buffer }
    }

    /// Payload bytes of a segment: a multiple of four, so that only the last one is padded.
    pub(super) fn segment_len(&self, header_len: usize, left: u32) -> u32 {
        left.min((u32::from(self.mulpdu) - header_len as u32) & !3)
    }

    fn on_sent<H: StreamHost>(&mut self, current: &Current, now: Time, host: &mut H) {
        match current.source {
            // Flushed requests have completed already.
            _ if self.attr.state == QpState::Err => return,
            Source::Request { number, .. } => self.on_segment_sent(number, current, now, host),
            Source::Immediate { number } => self.on_request_sent(number, now, host),
            Source::Response => self.on_response_sent(current),
            Source::Rtr | Source::Terminate => {}
        }
        if current.ends_message {
            self.turn = match current.source {
                Source::Response => Turn::Requests,
                _ => Turn::Responses,
            };
        }
        self.finish_disconnect(now, host);
    }

    /// Handles payload that may not be read.
    fn on_unreadable<H: StreamHost>(
        &mut self,
        current: &Current,
        fault: MemoryFault,
        now: Time,
        host: &mut H,
    ) {
        match current.source {
            Source::Request { number, offset } => {
                let is_partial = offset > 0 || current.taken > 0;
                self.on_unreadable_request(number, is_partial, fault, now, host);
            }
            _ => self.on_unreadable_response(fault, now, host),
        }
    }
}
