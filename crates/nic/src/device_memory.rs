//! Memory of the device itself. Programs access it only by copies, peers like any region.

use crate::error::Error;
use crate::memory::{MessagePart, ReadAhead, Span, copy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of device memory that a device has.
pub const MAX_DM: usize = 4 << 20;
/// Accesses start and end at multiples of this, as on devices whose memory lies behind a bus.
const GRAIN: usize = 4;
/// Largest alignment that can be requested, as a power of two.
const MAX_LOG_ALIGN: u32 = 12;

/// The bytes of a device's memory that are in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicU64>);

impl Budget {
    fn take(&self, len: usize) -> bool {
        let fits = |used: u64| used.checked_add(len as u64).filter(|used| *used <= MAX_DM as u64);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// A piece of device memory. Regions on it keep it alive.
pub struct DeviceMemory {
    words: Box<[AtomicU64]>,
    /// Offset of the aligned part, in bytes.
    skip: usize,
    len: usize,
    budget: Budget,
}

impl DeviceMemory {
    pub(crate) fn new(len: usize, log_align: u32, budget: &Budget) -> Result<DeviceMemory, Error> {
        Error::check_limit("length", len as u64, MAX_DM as u64)?;
        Error::check_limit("log_align_req", log_align.into(), MAX_LOG_ALIGN.into())?;
        if len == 0 {
            return Err(Error::Invalid {
                attribute: "length",
                why: "a piece of device memory has at least one byte",
            });
        }
        if !budget.take(len) {
            return Err(Error::Exhausted { what: "bytes of device memory", limit: MAX_DM as u64 });
        }
        let align = (1usize << log_align).max(8);
        let words: Box<[AtomicU64]> = (0..(len + align).div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let skip = (words.as_ptr() as usize).wrapping_neg() & (align - 1);
        Ok(DeviceMemory { words, skip, len, budget: budget.clone() })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Always `false`: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte, in this process.
    pub(crate) fn start(&self) -> usize {
        self.words.as_ptr() as usize + self.skip
    }

    fn span(&self, offset: u64, len: usize) -> Result<Span, Error> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if !offset.is_multiple_of(GRAIN) || !len.is_multiple_of(GRAIN) {
            return Err(Error::Invalid {
                attribute: "dm_offset",
                why: "offset and length are multiples of 4",
            });
        }
        if offset > self.len || len > self.len - offset {
            return Err(Error::Invalid { attribute: "dm_offset", why: "past the end of the device memory" });
        }
        Ok(Span::at(self.start() + offset, len))
    }

    /// Copies bytes in.
    pub fn copy_to(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        copy::write(self.span(offset, data.len())?, data, MessagePart::WHOLE).map_err(Error::Memory)
    }

    /// Copies bytes out.
    pub fn copy_from(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        copy::read(self.span(offset, out.len())?, out, || ReadAhead::NONE).map_err(Error::Memory)
    }

    /// Gives it back, unless regions are still on it.
    pub fn free(self: Arc<Self>) -> Result<(), (Arc<DeviceMemory>, Error)> {
        match Arc::try_unwrap(self) {
            Ok(_) => Ok(()),
            Err(used) => Err((used, Error::Busy { what: "the device memory", by: "memory regions".into() })),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.len as u64, Ordering::Relaxed);
    }
}
