//! Which packets of a connection the page shows: the first ones, and those around anomalies. So the page has a bounded
//! length, however long the capture is.

use super::message::{Message, Outcome};
use super::requester::Finding;
use ferroce_proto::wire::Headers;
use std::collections::VecDeque;

/// Packets shown before an anomaly, and after it.
const AROUND: usize = 8;

/// A packet that may be shown.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Number within the connection.
    pub(super) serial: u64,
    /// The end that sent it.
    pub(super) from: u8,
    pub(super) time_ns: u64,
    /// When the other end received it, if both were captured.
    pub(super) arrival_ns: Option<u64>,
    pub(super) headers: Headers,
    pub(super) headers_cut: bool,
    pub(super) payload_len: u32,
    pub(super) ecn: u8,
    pub(super) finding: Finding,
    /// The number of the reason behind a NAK of a ferroce responder.
    pub(super) refusal: Option<u8>,
    /// The words for a message of the connection manager.
    pub(super) cm: Option<String>,
}

/// The shown packets of a connection.
#[derive(Debug, Default)]
pub(super) struct Selection {
    shown: Vec<Item>,
    recent: VecDeque<Item>,
    /// Packets that may still be shown because they are the first, or because of anomalies.
    first_left: usize,
    anomaly_left: usize,
    /// Packets to show after the last anomaly.
    after_left: usize,
    is_on: bool,
}

impl Selection {
    /// Shows at most `limit` packets of about `expected`.
    pub(super) fn new(limit: usize, expected: u64) -> Selection {
        let first_left = if expected <= limit as u64 { limit } else { limit.div_ceil(2) };
        Selection { first_left, anomaly_left: limit - first_left, is_on: limit > 0, ..Selection::default() }
    }

    /// Takes the next packet.
    pub(super) fn push(&mut self, item: Item) {
        if !self.is_on {
            return;
        }
        let is_anomaly = item.finding.notes.is_anomaly();
        if self.first_left > 0 {
            self.first_left -= 1;
            self.shown.push(item);
            return;
        }
        if is_anomaly {
            self.after_left = AROUND + 1;
            while self.anomaly_left > 0
                && let Some(before) = self.recent.pop_front()
            {
                self.anomaly_left -= 1;
                self.shown.push(before);
            }
        }
        if self.after_left > 0 && self.anomaly_left > 0 {
            self.after_left -= 1;
            self.anomaly_left -= 1;
            self.shown.push(item);
            return;
        }
        if self.recent.len() == AROUND {
            self.recent.pop_front();
        }
        self.recent.push_back(item);
    }

    /// A packet that was taken, if it is shown or may be.
    pub(super) fn find(&mut self, serial: u64) -> Option<&mut Item> {
        match self.shown.binary_search_by_key(&serial, |item| item.serial) {
            Ok(at) => self.shown.get_mut(at),
            Err(_) => self.recent.iter_mut().find(|item| item.serial == serial),
        }
    }

    /// The shown packets, in the order of the capture.
    pub(super) fn items(&self) -> &[Item] {
        &self.shown
    }
}

/// The messages of all connections that are reported one by one: the first ones, then only those with retransmissions, NAKs or no answer.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) kept: Vec<Message>,
    pub(super) left_out: u64,
    limit: usize,
}

impl Messages {
    /// Keeps at most `limit`.
    pub(super) fn new(limit: usize) -> Messages {
        Messages { kept: Vec::new(), left_out: 0, limit }
    }

    /// Takes a message that is complete, or that nothing will complete any more.
    pub(super) fn take(&mut self, message: &Message) {
        let met_trouble = message.retransmitted > 0
            || message.rnr_naks > 0
            || matches!(message.outcome, Outcome::Refused(_) | Outcome::Unanswered);
        if self.kept.len() < self.limit / 2 || (met_trouble && self.kept.len() < self.limit) {
            self.kept.push(*message);
        } else {
            self.left_out += 1;
        }
    }
}
