//! Flags and messages. A flag is a word in every mapping; messages go through a ring per sender and receiver.

use super::Core;
use super::layout::{MappingLayout, RING};
use crate::backend::Envelope;
use crate::error::Error;
use crate::mailbox::{Inbox, Partial, header};
use crate::transport::Op;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

pub(super) struct Mail {
    rank: u32,
    size: u32,
    layout: MappingLayout,
    /// Bytes ever sent to each process. The lock also keeps the messages of two threads apart.
    sent: Vec<Mutex<u64>>,
    arrived: Mutex<Arrived>,
}

struct Arrived {
    inbox: Inbox,
    /// Bytes ever taken from each process, and the incomplete message.
    taken: Vec<(u64, Partial)>,
}

impl Mail {
    pub(super) fn new(rank: u32, size: u32, layout: MappingLayout) -> Self {
        let taken = (0..size).map(|_| (0, Partial::default())).collect();
        let arrived = Mutex::new(Arrived { inbox: Inbox::default(), taken });
        Self { rank, size, layout, sent: (0..size).map(|_| Mutex::new(0)).collect(), arrived }
    }
}

impl Core {
    pub(super) fn change_flag(&self, id: u32, set: bool) -> Result<(), Error> {
        let op = Op::WriteAndWake { remote: self.layout.flag(id), value: u64::from(set) };
        let ops: Vec<(u32, Op)> = (0..self.size).map(|rank| (rank, op)).collect();
        self.peers.execute(&ops)
    }

    pub(super) fn wait_flag(&self, id: u32) -> Result<(), Error> {
        let flag = self.mapping.long(self.layout.flag(id));
        self.wait_until(|| flag.load(Ordering::Acquire) != 0)
    }

    pub(super) fn send(&self, to: u32, tag: i32, bytes: &[u8]) -> Result<(), Error> {
        if to == self.rank {
            self.mail.arrived.lock().inbox.push((to, tag), bytes.to_vec());
            return Ok(());
        }
        let mut sent = self.mail.sent[to as usize].lock();
        self.stream(to, &mut sent, &header((self.rank, tag), bytes.len()))?;
        self.stream(to, &mut sent, bytes)
    }

    /// Writes bytes into the ring as it has space. Empties our own rings meanwhile: the receiver may wait for us.
    fn stream(&self, to: u32, sent: &mut u64, mut bytes: &[u8]) -> Result<(), Error> {
        let taken = self.mapping.long(self.layout.mail_taken(to));
        while !bytes.is_empty() {
            let free = || RING - (*sent - taken.load(Ordering::Acquire)) as usize;
            self.wait_until(|| free() > 0 || self.drain_mail().is_err())?;
            self.drain_mail()?;
            let at = *sent as usize % RING;
            let piece = bytes.len().min(free()).min(RING - at);
            let local = self.layout.mail_stage(to) + at;
            self.mapping.write(local, &bytes[..piece]);
            *sent += piece as u64;
            let remote = self.layout.mail_ring(self.rank) + at;
            self.peers.post(&[
                (to, Op::Write { remote, local, len: piece }),
                (to, Op::WriteAndWake { remote: self.layout.mail_tail(self.rank), value: *sent }),
            ])?;
            bytes = &bytes[piece..];
        }
        Ok(())
    }

    pub(super) fn recv(&self, from: Option<u32>, tag: Option<i32>) -> Result<(Envelope, Vec<u8>), Error> {
        let mut found = None;
        let mut failure = Ok(());
        self.wait_until(|| {
            // Once it has found a message, it must not take another.
            if found.is_none() {
                failure = self.drain_mail();
                found = self.mail.arrived.lock().inbox.take(from, tag);
            }
            found.is_some() || failure.is_err()
        })?;
        failure?;
        found.ok_or_else(|| Error::Transport("no message".into()))
    }

    /// Empties our rings and reports that to the senders.
    fn drain_mail(&self) -> Result<(), Error> {
        let Mail { rank, size, layout, .. } = self.mail;
        let mut arrived = self.mail.arrived.lock();
        let Arrived { inbox, taken } = &mut *arrived;
        let mut ops = Vec::new();
        for (from, (count, partial)) in (0..size).zip(taken) {
            let end = self.mapping.long(layout.mail_tail(from)).load(Ordering::Acquire);
            if end == *count {
                continue;
            }
            while *count < end {
                let at = *count as usize % RING;
                let piece = ((end - *count) as usize).min(RING - at).min(partial.missing());
                self.mapping.read(layout.mail_ring(from) + at, partial.grow(piece));
                *count += piece as u64;
                partial.finish(inbox);
            }
            ops.push((from, Op::WriteAndWake { remote: layout.mail_taken(rank), value: end }));
        }
        if ops.is_empty() { Ok(()) } else { self.peers.post(&ops) }
    }
}
