//! All processes on one host: the heap is one memory that every process maps at the same address, and the hardware
//! keeps it coherent. This module only synchronises.

mod layout;
mod mail;

use crate::backend::{Backend, Envelope};
use crate::error::Error;
use crate::futex::{SpinLimit, acquire, announce, release};
use crate::heap::{HEAP_ADDRESS, Homes};
use crate::map::{Mapping, punch};
use crate::meet::Meeting;
use crate::settings::Settings;
use crate::statistics::timed;
use layout::Layout;
use mail::Mail;
use std::fs::{File, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Local {
    rank: u32,
    size: u32,
    file: File,
    layout: Layout,
    control: Arc<Mapping>,
    heap: Mapping,
    mail: Mail,
    spin_limit: SpinLimit,
}

impl Local {
    /// Length of the shared file in bytes.
    pub(crate) fn file_len(size: u32, heap_bytes: usize) -> usize {
        Layout::new(size).len() + heap_bytes
    }

    /// `memory` is the shared file, which process 0 has created. `place` is the path by which the others open it.
    pub(crate) fn open(
        settings: &Settings,
        memory: Option<File>,
        place: &str,
        meeting: &Meeting,
    ) -> Result<Self, Error> {
        let layout = Layout::new(settings.size);
        let file = match memory {
            Some(file) => file,
            None => OpenOptions::new()
                .read(true)
                .write(true)
                .open(place)
                .map_err(|source| Error::System { call: "opening the memory of process 0", source })?,
        };
        let control = Arc::new(Mapping::anywhere(&file, 0, layout.len())?);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let heap = Mapping::fixed(&file, layout.len(), settings.heap_bytes, HEAP_ADDRESS, access)?;
        // Process 0 keeps its descriptor open until all others have opened it.
        meeting.gather("mapped")?;
        let spin_limit = SpinLimit::new(settings.size);
        let mail = Mail::new(control.clone(), layout, settings.rank, spin_limit);
        Ok(Self { rank: settings.rank, size: settings.size, file, layout, control, heap, mail, spin_limit })
    }
}

impl Local {
    /// A barrier of two processes: each writes a cache line of its own and reads the other's, both at the same time.
    fn barrier_of_two(&self, waits: &AtomicU64) {
        let [arrived, sleepers] = self.layout.arrived(self.rank).map(|at| self.control.word(at));
        let [theirs, our_sleepers] = self.layout.arrived(1 - self.rank).map(|at| self.control.word(at));
        let now = arrived.load(Ordering::Relaxed).wrapping_add(1);
        // The other process may have arrived at the next barrier already.
        let there = |value: u32| value.wrapping_sub(now) < u32::MAX / 2;
        arrived.store(now, Ordering::Release);
        // Loaded before `announce`, which waits until our store is visible: so both cache lines are transferred at the same time.
        let already = there(theirs.load(Ordering::Acquire));
        announce(arrived, sleepers);
        // Reading the clock twice would take a third of the time.
        if !already && !SpinLimit::poll_briefly(theirs, there) {
            timed(waits, || self.spin_limit.wait(theirs, our_sleepers, there));
        }
    }
}

impl Backend for Local {
    fn heap(&self) -> *mut u8 {
        self.heap.base()
    }

    fn place(&self, _at: usize, _homes: &Homes) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, at: usize, len: usize) -> Result<(), Error> {
        if self.rank == 0 { punch(&self.file, self.layout.len() + at, len) } else { Ok(()) }
    }

    fn lock(&self, id: u32) -> Result<(), Error> {
        acquire(self.control.word(self.layout.lock(id)), self.spin_limit);
        Ok(())
    }

    fn unlock(&self, id: u32) -> Result<(), Error> {
        release(self.control.word(self.layout.lock(id)));
        Ok(())
    }

    fn barrier(&self, waits: &AtomicU64) -> Result<(), Error> {
        self.wait_all(waits)
    }

    fn wait_all(&self, waits: &AtomicU64) -> Result<(), Error> {
        if self.size == 2 {
            self.barrier_of_two(waits);
            return Ok(());
        }
        let [count, round, sleepers] = self.layout.barrier().map(|at| self.control.word(at));
        let now = round.load(Ordering::Acquire);
        if count.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            count.store(0, Ordering::Relaxed);
            round.store(now.wrapping_add(1), Ordering::Release);
            announce(round, sleepers);
        } else {
            timed(waits, || self.spin_limit.wait(round, sleepers, |round| round != now));
        }
        Ok(())
    }

    fn change_flag(&self, id: u32, set: bool) -> Result<(), Error> {
        let [flag, sleepers] = self.layout.flag(id).map(|at| self.control.word(at));
        flag.store(u32::from(set), Ordering::Release);
        announce(flag, sleepers);
        Ok(())
    }

    fn wait_flag(&self, id: u32) -> Result<(), Error> {
        let [flag, sleepers] = self.layout.flag(id).map(|at| self.control.word(at));
        self.spin_limit.wait(flag, sleepers, |value| value != 0);
        Ok(())
    }

    fn send(&self, to: u32, tag: i32, bytes: &[u8]) -> Result<(), Error> {
        self.mail.send(to, tag, bytes);
        Ok(())
    }

    fn recv(&self, from: Option<u32>, tag: Option<i32>) -> Result<(Envelope, Vec<u8>), Error> {
        Ok(self.mail.recv(from, tag))
    }

    fn get(&self, into: &mut [u8], at: usize) -> Result<(), Error> {
        self.heap.read(at, into);
        Ok(())
    }

    fn put(&self, at: usize, from: &[u8]) -> Result<(), Error> {
        self.heap.write(at, from);
        Ok(())
    }

    fn leave(&self) -> Result<(), Error> {
        Ok(())
    }
}
