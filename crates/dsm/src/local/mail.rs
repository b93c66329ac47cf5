//! Messages between processes of one host: a ring of bytes per receiver, written by one sender at a time.

use super::layout::{Layout, MailboxLayout, RING};
use crate::backend::Envelope;
use crate::futex::{MAX_SLEEPERS, SpinLimit, announce, release, sleep, try_acquire, wake};
use crate::mailbox::{Inbox, Partial, header};
use crate::map::Mapping;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(super) struct Mail {
    memory: Arc<Mapping>,
    layout: Layout,
    rank: u32,
    spin_limit: SpinLimit,
    arrived: Mutex<Arrived>,
}

/// Messages that were taken out of the ring.
#[derive(Default)]
struct Arrived {
    inbox: Inbox,
    /// The beginning of a message that is not complete yet.
    partial: Partial,
}

impl Mail {
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, rank: u32, spin_limit: SpinLimit) -> Self {
        Self { memory, layout, rank, spin_limit, arrived: Mutex::default() }
    }

    pub(super) fn send(&self, to: u32, tag: i32, bytes: &[u8]) {
        if to == self.rank {
            self.arrived.lock().inbox.push((to, tag), bytes.to_vec());
            self.notify_receiver(&self.layout.mailbox(to));
            return;
        }
        let mailbox = self.layout.mailbox(to);
        self.begin(&mailbox);
        self.stream(&mailbox, &header((self.rank, tag), bytes.len()));
        self.stream(&mailbox, bytes);
        release(self.memory.word(mailbox.sending));
    }

    /// Acquires the right to send. Empties our own mailbox meanwhile: the current sender may wait for us to read.
    fn begin(&self, mailbox: &MailboxLayout) {
        while !try_acquire(self.memory.word(mailbox.sending), Duration::from_millis(1)) {
            self.drain(&mut self.arrived.lock());
        }
    }

    /// Writes bytes piece by piece, when the ring has space.
    fn stream(&self, mailbox: &MailboxLayout, mut bytes: &[u8]) {
        let written = self.memory.long(mailbox.written);
        let read = self.memory.long(mailbox.read);
        let departures = self.memory.word(mailbox.departures);
        while !bytes.is_empty() {
            let seen = departures.load(Ordering::Acquire);
            let at = written.load(Ordering::Relaxed);
            let free = RING - (at - read.load(Ordering::Acquire)) as usize;
            if free == 0 {
                self.drain(&mut self.arrived.lock());
                sleep(departures, seen, Duration::from_millis(1));
                continue;
            }
            let from = at as usize % RING;
            let piece = bytes.len().min(free).min(RING - from);
            self.memory.write(mailbox.ring + from, &bytes[..piece]);
            written.store(at + piece as u64, Ordering::Release);
            self.notify_receiver(mailbox);
            bytes = &bytes[piece..];
        }
    }

    fn notify_receiver(&self, mailbox: &MailboxLayout) {
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
            self.spin_limit.wait(arrivals, sleepers, |now| now != seen);
        }
    }

    /// Takes all bytes out of our ring.
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
            let piece = ((end - at) as usize).min(RING - from).min(arrived.partial.missing());
            self.memory.read(mailbox.ring + from, arrived.partial.grow(piece));
            at += piece as u64;
            arrived.partial.finish(&mut arrived.inbox);
        }
        read.store(at, Ordering::Release);
        let departures = self.memory.word(mailbox.departures);
        departures.fetch_add(1, Ordering::AcqRel);
        wake(departures, MAX_SLEEPERS);
    }
}
