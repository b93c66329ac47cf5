//! Messages between processes of one host: a ring of bytes per receiver, written by one sender at a time.

use super::layout::{Layout, MailboxLayout, RING};
use crate::backend::Envelope;
use crate::futex::{Patience, announce, sleep, wake};
use crate::mailbox::Inbox;
use crate::map::Mapping;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Sender, tag, length.
const HEADER: usize = 16;

pub(super) struct Mail {
    memory: Arc<Mapping>,
    layout: Layout,
    rank: u32,
    patience: Patience,
    arrived: Mutex<Arrived>,
}

/// What has been taken out of the ring.
#[derive(Default)]
struct Arrived {
    inbox: Inbox,
    /// The beginning of a message whose end is not written yet.
    partial: Vec<u8>,
}

impl Mail {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, rank: u32, patience: Patience) -> Self {
        Self { memory, layout, rank, patience, arrived: Mutex::default() }
    }

    pub(super) fn send(&self, to: u32, tag: i32, bytes: &[u8]) {
        if to == self.rank {
            self.arrived.lock().inbox.push((to, tag), bytes.to_vec());
            self.ring_bell(&self.layout.mailbox(to));
            return;
        }
        let mailbox = self.layout.mailbox(to);
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&self.rank.to_le_bytes());
        header[4..8].copy_from_slice(&tag.to_le_bytes());
        header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.begin(&mailbox);
        self.stream(&mailbox, &header);
        self.stream(&mailbox, bytes);
        self.end(&mailbox);
    }

    /// Becomes the one sender. Empties our own mailbox while waiting: the sender before us may wait for us to read.
    fn begin(&self, mailbox: &MailboxLayout) {
        let sending = self.memory.word(mailbox.sending);
        let mut taken = sending.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        while !taken {
            self.drain(&mut self.arrived.lock());
            taken = sending.swap(2, Ordering::Acquire) == 0;
            if !taken {
                sleep(sending, 2, Duration::from_millis(1));
            }
        }
    }

    fn end(&self, mailbox: &MailboxLayout) {
        let sending = self.memory.word(mailbox.sending);
        if sending.swap(0, Ordering::Release) == 2 {
            wake(sending, 1);
        }
    }

    /// Writes bytes piece by piece, as room comes free.
    fn stream(&self, mailbox: &MailboxLayout, mut bytes: &[u8]) {
        let written = self.memory.long(mailbox.written);
        let read = self.memory.long(mailbox.read);
        let departures = self.memory.word(mailbox.departures);
        while !bytes.is_empty() {
            let seen = departures.load(Ordering::Acquire);
            let at = written.load(Ordering::Relaxed);
            let room = RING - (at - read.load(Ordering::Acquire)) as usize;
            if room == 0 {
                self.drain(&mut self.arrived.lock());
                sleep(departures, seen, Duration::from_millis(1));
                continue;
            }
            let from = at as usize % RING;
            let piece = bytes.len().min(room).min(RING - from);
            self.memory.write(mailbox.ring + from, &bytes[..piece]);
            written.store(at + piece as u64, Ordering::Release);
            self.ring_bell(mailbox);
            bytes = &bytes[piece..];
        }
    }

    fn ring_bell(&self, mailbox: &MailboxLayout) {
        let arrivals = self.memory.word(mailbox.arrivals);
        arrivals.fetch_add(1, Ordering::AcqRel);
        announce(arrivals, self.memory.word(mailbox.arrival_sleepers));
    }

    pub(super) fn recv(&self, from: Option<u32>, tag: Option<i32>) -> (Envelope, Vec<u8>) {
        let mailbox = self.layout.mailbox(self.rank);
        let arrivals = self.memory.word(mailbox.arrivals);
        let sleepers = self.memory.word(mailbox.arrival_sleepers);
        loop {
            let seen = arrivals.load(Ordering::Acquire);
            let mut arrived = self.arrived.lock();
            self.drain(&mut arrived);
            if let Some(message) = arrived.inbox.take(from, tag) {
                return message;
            }
            drop(arrived);
            self.patience.wait(arrivals, sleepers, |now| now != seen);
        }
    }

    /// Takes everything out of our ring.
    fn drain(&self, arrived: &mut Arrived) {
        let mailbox = self.layout.mailbox(self.rank);
        let read = self.memory.long(mailbox.read);
        let mut at = read.load(Ordering::Relaxed);
        let end = self.memory.long(mailbox.written).load(Ordering::Acquire);
        if at == end {
            return;
        }
        while at < end {
            let from = at as usize % RING;
            let piece = ((end - at) as usize).min(RING - from).min(arrived.missing());
            let old = arrived.partial.len();
            arrived.partial.resize(old + piece, 0);
            self.memory.read(mailbox.ring + from, &mut arrived.partial[old..]);
            at += piece as u64;
            arrived.finish();
        }
        read.store(at, Ordering::Release);
        let departures = self.memory.word(mailbox.departures);
        departures.fetch_add(1, Ordering::AcqRel);
        wake(departures, i32::MAX);
    }
}

impl Arrived {
    fn header(&self) -> Option<(Envelope, usize)> {
        let (header, _) = self.partial.split_first_chunk::<HEADER>()?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = u64::from(word(8)) | u64::from(word(12)) << 32;
        Some(((word(0), word(4) as i32), len as usize))
    }

    /// Bytes until the header, or else the message, is complete.
    fn missing(&self) -> usize {
        match self.header() {
            Some((_, len)) => HEADER + len - self.partial.len(),
            None => HEADER - self.partial.len(),
        }
    }

    fn finish(&mut self) {
        if let Some((envelope, len)) = self.header()
            && self.partial.len() == HEADER + len
        {
            self.inbox.push(envelope, self.partial.split_off(HEADER));
            self.partial.clear();
        }
    }
}
