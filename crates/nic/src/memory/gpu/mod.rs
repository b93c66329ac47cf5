//! Memory of a GPU: only the CUDA driver can copy it.
//!
//! This module never loads the driver library: a program with a device pointer has loaded it. In a program without it, each registration
//! costs two calls into the loader.
//!
//! All copies run on one stream per GPU, in its primary context, so they take effect in the order in which they are issued. The stream does
//! not wait for the default stream: kernels there may wait for the very bytes that are copied.
//!
//! Memory that another process of this host registered is [opened](ipc) where the driver can do so. Then one copy by the GPU suffices.
//!
//! A copy takes several microseconds, whatever its length, and so does waiting for it. So the packets of an arriving message are
//! [gathered](writes) in pinned host memory and copied in large pieces. The NIC waits for the copies once, with the last packet, before
//! the completion and the ACK. Messages to send are [read ahead](reads) in large pieces.

mod driver;
mod ipc;
mod reads;
mod staging;
#[cfg(test)]
mod tests;
mod writes;

use super::region::Span;
use driver::{Driver, Entered, Handle, check, driver};
use ferroce_proto::qp::Placement;
use ferroce_proto::verbs::MemoryFault;
use parking_lot::{Mutex, MutexGuard};
use reads::Reader;
use staging::Buffer;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use writes::Batch;

pub use driver::is_driver_loaded;
pub(crate) use ipc::OpenedAllocation;
pub(super) use ipc::{exchange, export};
pub(super) use reads::{Fetched, fetch, read};
pub(crate) use reads::{ReadAhead, answers_of};

const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// The status for a device number beyond [`MAX_GPUS`].
const CUDA_ERROR_INVALID_DEVICE: c_int = 101;

/// The driver pins whole pages.
const PAGE: usize = 4096;

/// Data that arrives at a queue pair, as part of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePart {
    /// The queue pair, identified by the address of its data.
    pub(crate) qp: usize,
    pub(crate) placement: Placement,
}

impl MessagePart {
    /// Data that must be visible immediately.
    pub(crate) const WHOLE: MessagePart = MessagePart { qp: 0, placement: Placement::Last };
}

/// Whether the driver has pinned any byte of a range of host memory. Such pages must not be moved: the GPU would continue to use the old
/// ones.
pub(super) fn is_pinned(addr: usize, len: usize) -> bool {
    let Some(driver) = driver().filter(|_| len > 0) else { return false };
    let (first, last) = (addr / PAGE, (addr + len - 1) / PAGE);
    (first..=last).any(|page| driver.has_pinned((page * PAGE).max(addr)))
}

/// The GPU that a range of addresses belongs to, ready for copies. Programs round ranges to whole pages, so the range may reach beyond the
/// allocation at one end.
pub(crate) fn gpu_of(addr: usize, len: usize) -> Result<Option<u8>, MemoryFault> {
    let Some(driver) = driver().filter(|_| len > 0) else { return Ok(None) };
    let Some(ordinal) = [addr, addr + (len - 1)].into_iter().find_map(|addr| driver.gpu_of(addr)) else {
        return Ok(None);
    };
    let fault = |status| fault(addr, len, status);
    let index = u8::try_from(ordinal).ok().filter(|index| usize::from(*index) < MAX_GPUS);
    let index = index.ok_or(fault(CUDA_ERROR_INVALID_DEVICE))?;
    Gpu::open(driver, index).map_err(fault)?;
    Ok(Some(index))
}

fn fault(addr: usize, len: usize, status: c_int) -> MemoryFault {
    MemoryFault::Gpu { addr: addr as u64, len: len as u64, status }
}

/// A GPU that regions are on.
struct Gpu {
    driver: &'static Driver,
    context: Handle,
    /// Held during each synchronous copy. An atomic takes two copies, and is thus atomic among the operations of this process.
    queue: Mutex<Queue>,
    /// The unused buffers; the most recently used one is at the end.
    free: Mutex<VecDeque<Buffer>>,
}

/// The stream, and the messages whose copies are pending.
struct Queue {
    stream: Handle,
    /// Whether issued copies have not been waited for.
    is_busy: bool,
    /// The arriving messages, in the order in which they started.
    batches: Vec<Batch>,
    /// The messages that are read ahead; the most recently read one is at the end.
    readers: Vec<Reader>,
}

/// The number of copies by GPUs for all devices of this process.
pub(crate) struct Copies {
    /// One-sided operations and messages, between both ends.
    direct: AtomicU64,
    /// Copies between the memory of a GPU and packets, or the pinned memory that packets are gathered in.
    staged: AtomicU64,
}

/// See [`Copies`].
pub(crate) static COPIES: Copies = Copies { direct: AtomicU64::new(0), staged: AtomicU64::new(0) };

impl Copies {
    /// Both, the direct ones first.
    pub(crate) fn values(&self) -> [u64; 2] {
        [&self.direct, &self.staged].map(|count| count.load(Relaxed))
    }
}

const MAX_GPUS: usize = 64;

/// The GPUs with registered regions, by their number. They stay open, because the next region is likely to be on the same one.
static GPUS: [OnceLock<Gpu>; MAX_GPUS] = [const { OnceLock::new() }; MAX_GPUS];
/// Whether any GPU is open.
static ANY_OPEN: AtomicBool = AtomicBool::new(false);

impl Gpu {
    /// Opens a GPU, unless it is open.
    fn open(driver: &'static Driver, index: u8) -> Result<(), c_int> {
        static OPENING: Mutex<()> = Mutex::new(());
        let cell = &GPUS[usize::from(index)];
        let _opening = OPENING.lock();
        if cell.get().is_some() {
            return Ok(());
        }
        let (mut device, mut context) = (0, 0);
        // SAFETY: the driver writes to these numbers only.
        unsafe {
            check((driver.device)(&mut device, index.into()))?;
            check((driver.retain_primary_context)(&mut context, device))?;
        }
        let gpu = Self::in_context(driver, context, index).inspect_err(|_| {
            // SAFETY: undoes the call above.
            unsafe { (driver.release_primary_context)(device) };
        })?;
        cell.get_or_init(|| gpu);
        ANY_OPEN.store(true, Relaxed);
        Ok(())
    }

    /// Creates the stream and the buffers for copies in a retained context.
    fn in_context(driver: &'static Driver, context: Handle, index: u8) -> Result<Gpu, c_int> {
        let _entered = Entered::new(driver, context)?;
        let mut stream = 0;
        // SAFETY: the driver writes to this number only; the context of the stream is current.
        check(unsafe { (driver.create_stream)(&mut stream, CU_STREAM_NON_BLOCKING) })?;
        let queue = Queue { stream, is_busy: false, batches: Vec::new(), readers: Vec::new() };
        let free = Mutex::new(staging::allocate(driver, index));
        Ok(Gpu { driver, context, queue: Mutex::new(queue), free })
    }

    fn at(index: u8) -> &'static Gpu {
        GPUS[usize::from(index)].get().expect("a region on it was registered")
    }

    /// Locks the GPU for copies; those of other threads wait.
    fn lock(&'static self) -> Copying {
        Copying { gpu: self, entered: None, queue: self.queue.lock() }
    }
}

/// A GPU that is locked for copies by this thread.
struct Copying {
    gpu: &'static Gpu,
    /// Set with the first call of the driver: gathering packets needs neither the driver nor its context.
    entered: Option<Entered>,
    queue: MutexGuard<'static, Queue>,
}

impl Copying {
    /// Prepares this thread for calls of the driver.
    fn driver(&mut self) -> Result<&'static Driver, c_int> {
        let Gpu { driver, context, .. } = *self.gpu;
        if self.entered.is_none() {
            self.entered = Some(Entered::new(driver, context)?);
        }
        Ok(driver)
    }

    /// Issues a copy to the GPU.
    ///
    /// # Safety
    /// The `len` bytes at `from` stay valid until the copy is done.
    unsafe fn issue_to_gpu(&mut self, to: usize, from: *const u8, len: usize) -> Result<(), c_int> {
        let driver = self.driver()?;
        self.queue.is_busy = true;
        // SAFETY: as the caller promises. The driver checks the addresses on the GPU.
        check(unsafe { (driver.copy_to_device)(to as u64, from.cast(), len, self.queue.stream) })
    }

    /// Issues a copy from the GPU.
    ///
    /// # Safety
    /// The `len` bytes at `to` stay valid and are not accessed until the copy is done.
    unsafe fn issue_to_host(&mut self, to: *mut u8, from: usize, len: usize) -> Result<(), c_int> {
        let driver = self.driver()?;
        self.queue.is_busy = true;
        // SAFETY: as above.
        check(unsafe { (driver.copy_to_host)(to.cast(), from as u64, len, self.queue.stream) })
    }

    /// Waits until all copies are done.
    fn wait(&mut self) -> Result<(), c_int> {
        if !self.queue.is_busy {
            return Ok(());
        }
        let driver = self.driver()?;
        // SAFETY: a stream of the current context.
        check(unsafe { (driver.wait_for_stream)(self.queue.stream) })?;
        self.queue.is_busy = false;
        Ok(())
    }

    /// Copies from the GPU, and waits for it, even if the driver reported an error for it.
    fn read_now(&mut self, start: usize, out: &mut [u8]) -> Result<(), c_int> {
        if out.is_empty() {
            return Ok(());
        }
        COPIES.staged.fetch_add(1, Relaxed);
        // SAFETY: `out` stays until the end of the call.
        let issued = unsafe { self.issue_to_host(out.as_mut_ptr(), start, out.len()) };
        issued.and(self.wait())
    }

    /// Copies to the GPU, and waits for it, even if the driver reported an error for it.
    fn write_now(&mut self, start: usize, data: &[u8]) -> Result<(), c_int> {
        if data.is_empty() {
            return Ok(());
        }
        COPIES.staged.fetch_add(1, Relaxed);
        // SAFETY: `data` stays until the end of the call.
        let issued = unsafe { self.issue_to_gpu(start, data.as_ptr(), data.len()) };
        issued.and(self.wait())
    }

    /// Issues all copies and waits for them. Discards the data that was read ahead.
    fn settle(&mut self) {
        self.issue_all();
        self.queue.readers.clear();
        // An error is sticky: the next copy reports it.
        let _ = self.wait();
    }
}

/// Copies into the memory of a GPU; `data` is as long as the span. Parts of a message may become visible only with its last part.
#[inline(never)] // as the other copies, to keep registers free for the paths of host memory
pub(super) fn write(gpu: u8, span: Span, data: &[u8], part: MessagePart) -> Result<(), MemoryFault> {
    let mut copying = Gpu::at(gpu).lock();
    let outcome = match part.placement {
        Placement::More => copying.gather(part.qp, span.start, data),
        Placement::Last => copying.finish(part.qp, span.start, data),
    };
    outcome.map_err(|status| fault(span.start, span.len, status))
}

/// Replaces eight bytes with the result of `change` and returns the original value. Atomic among the operations of this process, but not
/// to kernels of the GPU.
#[inline(never)]
pub(super) fn atomic(gpu: u8, span: Span, change: impl FnOnce(u64) -> u64) -> Result<u64, MemoryFault> {
    let mut copying = Gpu::at(gpu).lock();
    let mut word = [0; 8];
    let read = copying.read_now(span.start, &mut word);
    let original = u64::from_ne_bytes(word);
    let outcome = read.and_then(|()| copying.write_now(span.start, &change(original).to_ne_bytes()));
    outcome.map(|()| original).map_err(|status| fault(span.start, span.len, status))
}

/// Waits for all copies on a GPU: a region there is deregistered or changed.
pub(super) fn settle(gpu: u8) {
    Gpu::at(gpu).lock().settle();
}

/// Waits for the copies of a queue pair that stops: afterwards the program may reuse its buffers.
#[cold]
pub(crate) fn settle_stopped(qp: usize) {
    if !ANY_OPEN.load(Relaxed) {
        return;
    }
    for gpu in GPUS.iter().filter_map(OnceLock::get) {
        let mut copying = gpu.lock();
        let had_messages = [copying.end_batch(qp), copying.end_readers(qp)].contains(&true);
        if had_messages {
            // An error is sticky: the next copy reports it.
            let _ = copying.wait();
        }
    }
}
