//! How to wait for a word that somebody else writes into our memory: nobody wakes us, so we look.

use crate::error::Error;
use crate::transport::Wires;
use std::time::Duration;

/// Looks before the first nap where everybody has a core: a few hundred microseconds.
const LOOKS: u32 = 2000;
/// And where not: the one we wait for may need ours.
const LOOKS_IN_A_CROWD: u32 = 20;
/// First and longest nap. The NIC's own thread serves our peers meanwhile.
const NAPS_US: std::ops::RangeInclusive<u64> = 20..=500;

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    looks: u32,
}

impl Waiting {
    pub(super) fn new(size: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { looks: if size as usize <= cores { LOOKS } else { LOOKS_IN_A_CROWD } }
    }

    pub(super) fn until(self, wires: &Wires, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        for _ in 0..self.looks {
            if ready() {
                return Ok(());
            }
            wires.progress()?;
        }
        let mut nap_us = *NAPS_US.start();
        while !ready() {
            wires.progress()?;
            wires.nap(Duration::from_micros(nap_us));
            nap_us = (nap_us * 2).min(*NAPS_US.end());
        }
        Ok(())
    }
}
