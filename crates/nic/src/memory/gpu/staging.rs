//! Pinned host memory, which the GPU reads and writes asynchronously.

use super::driver::{Driver, Handle, check};
use super::{COPIES, Copying, Gpu};
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a buffer. A copy of this length takes several times as long as starting it.
pub(super) const BUFFER_LEN: usize = 512 << 10;
/// Buffers per GPU.
const BUFFERS: usize = 32;

const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
const CU_EVENT_DISABLE_TIMING: c_uint = 2;

/// A buffer of pinned memory. It is never freed.
pub(super) struct Buffer {
    gpu: u8,
    start: usize,
    /// Recorded behind the last copy from it or to it.
    event: Handle,
    /// The event has not been waited for.
    is_busy: bool,
}

/// Allocates the buffers of a GPU whose context is current. Returns none if the driver fails; then nothing is gathered or read ahead.
pub(super) fn allocate(driver: &'static Driver, gpu: u8) -> VecDeque<Buffer> {
    // Not memory of the driver: it would be freed with its context (`cudaDeviceReset`), while the processor writes to it.
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), BUFFERS * BUFFER_LEN, prot, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return VecDeque::new();
    }
    // SAFETY: whole pages of the new mapping.
    if check(unsafe { (driver.pin)(memory, BUFFERS * BUFFER_LEN, CU_MEMHOSTREGISTER_PORTABLE) }).is_err() {
        // SAFETY: as above; the driver has not pinned them.
        unsafe { libc::munmap(memory, BUFFERS * BUFFER_LEN) };
        return VecDeque::new();
    }
    let start = memory as usize;
    let buffers = (0..BUFFERS).map_while(|n| {
        let mut event = 0;
        // SAFETY: as above.
        check(unsafe { (driver.create_event)(&mut event, CU_EVENT_DISABLE_TIMING) }).ok()?;
        Some(Buffer { gpu, start: start + n * BUFFER_LEN, event, is_busy: false })
    });
    buffers.collect()
}

impl Buffer {
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= BUFFER_LEN);
        (self.start + offset) as *mut u8
    }
}

/// A buffer in use. Dropping it makes it free, even if the GPU still uses it.
pub(super) struct BufferGuard(Option<Buffer>);

impl Deref for BufferGuard {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        self.0.as_ref().expect("taken only in drop")
    }
}

impl DerefMut for BufferGuard {
    fn deref_mut(&mut self) -> &mut Buffer {
        self.0.as_mut().expect("taken only in drop")
    }
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take() {
            Gpu::at(buffer.gpu).free.lock().push_back(buffer);
        }
    }
}

impl Copying {
    /// A buffer for a copy from the GPU. An earlier copy may still use it: the stream keeps the order.
    pub(super) fn take_buffer(&mut self) -> Option<BufferGuard> {
        let free = |gpu: &Gpu| gpu.free.lock().pop_front().map(|buffer| BufferGuard(Some(buffer)));
        if let Some(buffer) = free(self.gpu) {
            return Some(buffer);
        }
        if !self.issue_oldest() && !self.queue.readers.is_empty() {
            self.queue.readers.remove(0);
        }
        free(self.gpu)
    }

    /// A buffer for the processor to write to.
    pub(super) fn take_idle_buffer(&mut self) -> Option<BufferGuard> {
        let mut buffer = self.take_buffer()?;
        self.wait_for(&mut buffer).ok()?;
        Some(buffer)
    }

    /// Records the buffer's event behind the copies issued so far.
    pub(super) fn mark(&mut self, buffer: &mut Buffer) {
        buffer.is_busy = true;
        COPIES.staged.fetch_add(1, Relaxed);
        if let Ok(driver) = self.driver() {
            // SAFETY: an event and a stream of the current context. Without the mark, `wait_for` waits for an earlier one; the driver refuses
            // only if the context is lost, and with it all copies.
            unsafe { (driver.record_event)(buffer.event, self.queue.stream) };
        }
    }

    /// Waits until the GPU is done with a buffer.
    pub(super) fn wait_for(&mut self, buffer: &mut Buffer) -> Result<(), i32> {
        if buffer.is_busy {
            let driver = self.driver()?;
            // SAFETY: an event of the current context.
            check(unsafe { (driver.wait_for_event)(buffer.event) })?;
            buffer.is_busy = false;
        }
        Ok(())
    }
}
