//! How to wait for a word that somebody else writes into our memory: we look for a while,
//! then sleep until somebody tells us something.

use crate::error::Error;
use crate::transport::Wires;
use std::time::{Duration, Instant};

/// How long to look before the first nap where everybody has a core: a nap and a wake-up cost about as much.
const LOOK: Duration = Duration::from_micros(100);
/// And where not: the one we wait for may need ours.
const LOOK_IN_A_CROWD: Duration = Duration::from_micros(10);
/// The longest nap: what a wake-up that went to another thread can cost.
const NAP: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    look: Duration,
}

impl Waiting {
    pub(super) fn new(size: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { look: if size as usize <= cores { LOOK } else { LOOK_IN_A_CROWD } }
    }

    /// The same, but not for ever: whether it came.
    pub(super) fn until_or(
        self,
        wires: &Wires,
        most: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let start = Instant::now();
        while !ready() {
            let waited = start.elapsed();
            if waited >= most {
                return Ok(false);
            }
            if waited < self.look { wires.progress()? } else { wires.nap(most - waited, &mut ready)? }
        }
        Ok(true)
    }

    pub(super) fn until(self, wires: &Wires, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        if ready() {
            return Ok(());
        }
        let start = Instant::now();
        while start.elapsed() < self.look {
            wires.progress()?;
            if ready() {
                return Ok(());
            }
        }
        while !ready() {
            wires.nap(NAP, &mut ready)?;
        }
        Ok(())
    }
}
