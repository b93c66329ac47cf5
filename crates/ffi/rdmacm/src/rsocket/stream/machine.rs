//! The state machine of a stream: completions in (`handle_*`), control messages out (`poll_control`).
//!
//! After every batch of completions, and after every read, the caller calls `poll_control` until it returns `None`.

use super::life::{CloseMessage, Direction, End, Life};
use super::recv_ring::{RecvRing, Violation};
use super::ring::Span;
use super::send_ring::SendRing;
use crate::rsocket::settings::Sizing;
use crate::rsocket::wire::{ConnectData, Message, Order, RemoteBuffer};

/// Requests reserved for control messages, so that data cannot block them.
pub(crate) const CONTROL_SLOTS: u32 = 4;
/// Entries of the table in which the peer announces its buffers.
pub(crate) const TABLE_SLOTS: u32 = 2;

/// A posted request, encoded in its `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// A receive, with the slot of its message if messages are SENDs.
    Receive(u32),
    /// The WRITE in front of a message that is a SEND.
    Written,
    /// Data or a mapping, with the number of its bytes in the send ring.
    Sent(u32),
    Control,
    /// The last message.
    LastControl,
}

impl Work {
    pub(crate) fn to_id(self) -> u64 {
        match self {
            Work::Receive(slot) => 1 << 32 | u64::from(slot),
            Work::Written => 5 << 32,
            Work::Sent(bytes) => 2 << 32 | u64::from(bytes),
            Work::Control => 3 << 32,
            Work::LastControl => 4 << 32,
        }
    }

    pub(crate) fn from_id(id: u64) -> Self {
        match id >> 32 {
            1 => Work::Receive(id as u32),
            5 => Work::Written,
            2 => Work::Sent(id as u32),
            4 => Work::LastControl,
            _ => Work::Control,
        }
    }
}

/// A control message to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// A message without further bytes.
    Bare(Message),
    /// An entry for the peer's table, which the message announces.
    Entry { message: Message, bytes: [u8; RemoteBuffer::LEN], target: RemoteBuffer },
    /// A zero-length WRITE, which the peer's NIC acknowledges without its program.
    Probe,
}

/// A stream that is or was connected.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) send_ring: SendRing,
    pub(crate) recv_ring: RecvRing,
    pub(crate) life: Life,
    /// Our ring, as the peer addresses it.
    ring: RemoteBuffer,
    peer_order: Order,
    peer_table: RemoteBuffer,
    peer_slot: u32,
    own_slot: u32,
    control_slots: u32,
    close_message: Option<CloseMessage>,
    probe: bool,
}

impl Machine {
    /// `ring` is our receive ring, as the peer addresses it.
    pub(crate) fn new(sizes: &Sizing, ring: RemoteBuffer, peer: &ConnectData) -> Self {
        let slots = u32::from(sizes.send_queue).saturating_sub(CONTROL_SLOTS).max(1);
        let mut send_ring = SendRing::new(sizes.send_ring, slots, sizes.inline);
        send_ring.on_credit(peer.credits);
        // The first buffer is always within the limit.
        let _ = send_ring.on_target(peer.data);
        Self {
            send_ring,
            recv_ring: RecvRing::new(sizes.recv_ring, sizes.recv_queue),
            life: Life::new(),
            ring,
            peer_order: peer.order,
            peer_table: peer.table,
            // The private data of the connection replaced the first entry, on both sides.
            peer_slot: 1 % peer.table.length.max(1),
            own_slot: 1 % TABLE_SLOTS,
            control_slots: CONTROL_SLOTS,
            close_message: None,
            probe: false,
        }
    }

    /// The index of the table entry that the peer writes next. It is read when a credit message carries bytes.
    pub(crate) fn next_own_slot(&self) -> u32 {
        self.own_slot
    }

    /// Handles a message; `entry` is the table entry that came with it, if any.
    pub(crate) fn handle_message(&mut self, message: Message, entry: Option<RemoteBuffer>) {
        let kept = match message {
            Message::Data(length) => self.recv_ring.on_data(length),
            Message::Credits(credit) => self.on_credits(credit, entry),
            Message::Disconnect => {
                self.life.on_end(End::Disconnected);
                Ok(())
            }
            Message::Shutdown => {
                self.life.on_peer_shutdown();
                Ok(())
            }
            Message::Mapping(_) | Message::KeepAlive | Message::Unknown(_) => Ok(()),
        };
        if kept.is_err() {
            self.life.on_end(End::Failed);
        }
    }

    fn on_credits(&mut self, credit: u16, entry: Option<RemoteBuffer>) -> Result<(), Violation> {
        self.send_ring.on_credit(credit);
        let Some(entry) = entry else { return Ok(()) };
        self.own_slot = (self.own_slot + 1) % TABLE_SLOTS;
        self.send_ring.on_target(entry)
    }

    /// Handles a completion of our own, successful or not.
    pub(crate) fn handle_sent(&mut self, work: Work, success: bool) {
        match work {
            Work::Receive(_) => return,
            Work::Written => {}
            Work::Sent(bytes) => self.send_ring.on_sent(bytes),
            Work::Control | Work::LastControl => {
                self.control_slots = (self.control_slots + 1).min(CONTROL_SLOTS);
            }
        }
        if !success {
            self.life.on_end(End::Failed);
        } else if work == Work::LastControl {
            self.life.on_end(End::Disconnected);
        }
    }

    /// Shuts down a direction.
    pub(crate) fn handle_shutdown(&mut self, direction: Direction) {
        if let Some(close_message) = self.life.shut_down(direction) {
            self.close_message = Some(close_message);
        }
    }

    /// Requests a probe of the connection.
    pub(crate) fn handle_keepalive_timer(&mut self) {
        self.probe = true;
    }

    /// The next control message, to be posted with this work ID.
    pub(crate) fn poll_control(&mut self) -> Option<(Control, Work)> {
        if !self.life.is_connected() || self.control_slots == 0 {
            return None;
        }
        let next = if let Some(close_message) = self.close_message.take() {
            match close_message {
                CloseMessage::Shutdown => (Control::Bare(Message::Shutdown), Work::Control),
                CloseMessage::Disconnect => (Control::Bare(Message::Disconnect), Work::LastControl),
            }
        } else if self.life.is_readable() && self.recv_ring.wants_grant() {
            (self.grant(), Work::Control)
        } else if std::mem::take(&mut self.probe) {
            (Control::Probe, Work::Control)
        } else {
            return None;
        };
        self.control_slots -= 1;
        Some(next)
    }

    fn grant(&mut self) -> Control {
        let grant = self.recv_ring.grant();
        let message = Message::Credits(grant.credit);
        let Some(Span { offset, length }) = grant.buffer else { return Control::Bare(message) };
        let buffer = RemoteBuffer { addr: self.ring.addr + u64::from(offset), rkey: self.ring.rkey, length };
        let offset = u64::from(self.peer_slot) * RemoteBuffer::LEN as u64;
        let target = RemoteBuffer {
            addr: self.peer_table.addr.wrapping_add(offset),
            rkey: self.peer_table.rkey,
            length: RemoteBuffer::LEN as u32,
        };
        self.peer_slot = (self.peer_slot + 1) % self.peer_table.length.max(1);
        Control::Entry { message, bytes: buffer.to_bytes(self.peer_order), target }
    }

    /// Whether all posted requests have completed and no close message is pending.
    pub(crate) fn is_flushed(&self) -> bool {
        self.send_ring.is_idle() && self.control_slots == CONTROL_SLOTS && self.close_message.is_none()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
