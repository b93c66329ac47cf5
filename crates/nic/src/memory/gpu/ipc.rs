//! Memory of a GPU that another process of this host registered (CUDA IPC).
//!
//! The process that registers memory exports its allocation: the driver returns a handle, or for memory of `cuMemCreate` a
//! [descriptor](vmm). Other processes of the host open it. Memory that cannot be exported (`cudaMallocAsync`) or opened is copied through
//! host memory, as for any peer.

mod vmm;

use super::driver::{Entered, IpcFunctions, IpcHandle, check, driver, ipc};
use super::{COPIES, Copying, Gpu, MAX_GPUS};
use crate::memory::region::{Backing, Span};
use ferroce_os::log;
use ferroce_proto::qp::Attempt;
use ferroce_shm::{GpuAllocation, GpuHandle, Owner};
use std::ffi::{c_int, c_uint};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// Exports the allocation that contains a range of a GPU's memory. The range may reach beyond the allocation at one end.
pub(crate) fn export(gpu: u8, addr: usize, len: usize) -> Option<(GpuAllocation, Option<OwnedFd>)> {
    let functions = ipc()?;
    let Gpu { driver, context, .. } = *Gpu::at(gpu);
    let _entered = Entered::new(driver, context).ok()?;
    let mut device = 0;
    // SAFETY: the driver writes to this number only.
    check(unsafe { (driver.device)(&mut device, gpu.into()) }).ok()?;
    let uuid = uuid_of(functions, device)?;
    let exported = [addr, addr + (len - 1)].into_iter().find_map(|addr| {
        let by_handle = export_handle(functions, addr);
        let exported = by_handle.or_else(|status| vmm::export(driver, addr).ok_or(status));
        exported.inspect_err(|status| {
            log::choice(format_args!(
                "local peers cannot open the {len} bytes at {addr:#x} of GPU {gpu}: cuIpcGetMemHandle returned {status}"
            ));
        }).ok()
    });
    let Exported { start, len, handle, fd } = exported?;
    Some((GpuAllocation { uuid, start, len: len as u64, handle }, fd))
}

/// Memory of a GPU that others can open.
struct Exported {
    start: u64,
    len: usize,
    handle: GpuHandle,
    /// Keeps the descriptor open.
    fd: Option<OwnedFd>,
}

/// Exports the allocation that contains an address, if `cuMemAlloc` allocated it.
fn export_handle(functions: &IpcFunctions, addr: usize) -> Result<Exported, c_int> {
    let (mut start, mut len, mut handle) = (0, 0, IpcHandle([0; 8]));
    // SAFETY: the driver writes to these numbers only, and checks the address.
    unsafe {
        check((functions.address_range)(&mut start, &mut len, addr as u64))?;
        check((functions.export)(&mut handle, start))?;
    }
    Ok(Exported { start, len, handle: GpuHandle::Ipc(handle.0), fd: None })
}

fn uuid_of(functions: &IpcFunctions, device: c_int) -> Option<[u64; 2]> {
    let mut uuid = [0; 2];
    // SAFETY: a UUID has 16 bytes.
    check(unsafe { (functions.uuid)(&mut uuid, device) }).ok()?;
    Some(uuid)
}

/// Opens the GPU with this UUID and returns its number in this process. Only a GPU that the program uses: a context on another one would
/// take hundreds of megabytes.
fn gpu_with(functions: &IpcFunctions, uuid: [u64; 2]) -> Option<u8> {
    let driver = driver()?;
    let mut count = 0;
    // SAFETY: the driver writes to this number only, as below.
    check(unsafe { (functions.device_count)(&mut count) }).ok()?;
    let gpu = (0..u8::try_from(count).ok()?.min(MAX_GPUS as u8)).find(|&gpu| {
        let (mut device, mut flags, mut is_active) = (0, 0, 0);
        // SAFETY: as above.
        let found = unsafe {
            check((driver.device)(&mut device, gpu.into()))
                .and_then(|()| check((functions.context_state)(device, &mut flags, &mut is_active)))
        };
        found.is_ok() && is_active != 0 && uuid_of(functions, device) == Some(uuid)
    })?;
    Gpu::open(driver, gpu).ok()?;
    Some(gpu)
}

/// An allocation of a local peer in the memory of a GPU, opened by this process.
pub(crate) struct OpenedAllocation {
    gpu: u8,
    /// The first byte in the local peer's address space.
    there: usize,
    /// The first byte in this process.
    here: usize,
    len: usize,
    close: Close,
}

/// How an allocation is closed.
#[derive(Clone, Copy)]
enum Close {
    /// Not at all: it belongs to this process.
    Nothing,
    /// The driver opened a handle.
    Handle,
    /// It was mapped, with this length.
    Mapping(usize),
}

impl OpenedAllocation {
    /// Opens an allocation that another process exported. The driver opens only exported allocations, even if the published data is forged.
    pub(crate) fn open(allocation: &GpuAllocation, owner: Option<&Owner>) -> Option<OpenedAllocation> {
        let functions = ipc()?;
        let gpu = gpu_with(functions, allocation.uuid)?;
        let Gpu { driver, context, .. } = *Gpu::at(gpu);
        let _entered = Entered::new(driver, context).ok()?;
        let there = allocation.start as usize;
        let opened = match allocation.handle {
            GpuHandle::Ipc(handle) => open_handle(functions, IpcHandle(handle)),
            GpuHandle::Fd { fd, .. } => vmm::open(gpu, owner, fd, allocation.len as usize),
        };
        let (here, len, close) = opened.inspect_err(|why| {
            let GpuAllocation { start, len, .. } = allocation;
            log::choice(format_args!(
                "the {len} bytes at {start:#x} of GPU {gpu} of a local peer are copied through host memory: {why}"
            ));
        }).ok()?;
        // Limit the published length to the real one.
        Some(OpenedAllocation { gpu, there, here, len: len.min(allocation.len as usize), close })
    }

    /// An allocation of this very process.
    pub(crate) fn own(allocation: &GpuAllocation) -> Option<OpenedAllocation> {
        let gpu = gpu_with(ipc()?, allocation.uuid)?;
        let start = allocation.start as usize;
        Some(OpenedAllocation {
            gpu,
            there: start,
            here: start,
            len: allocation.len as usize,
            close: Close::Nothing,
        })
    }

    /// The bytes of the local peer at their address in this process, if all of them are in the allocation.
    pub(crate) fn here(&self, there: Span) -> Option<Span> {
        let offset = there.start.checked_sub(self.there)?;
        let is_inside = offset <= self.len && there.len <= self.len - offset;
        is_inside.then(|| Span { start: self.here + offset, len: there.len, backing: Backing::Gpu(self.gpu) })
    }
}

impl Drop for OpenedAllocation {
    fn drop(&mut self) {
        let Some(functions) = ipc().filter(|_| !matches!(self.close, Close::Nothing)) else { return };
        let Gpu { driver, context, .. } = *Gpu::at(self.gpu);
        let Ok(_entered) = Entered::new(driver, context) else { return };
        // Every copy that used it is done. A driver that has shut down returns an error, and has already closed it.
        match self.close {
            Close::Nothing => {}
            Close::Handle => {
                // SAFETY: this process opened it.
                unsafe { (functions.close)(self.here as u64) };
            }
            Close::Mapping(len) => vmm::close(self.here as u64, len),
        }
    }
}

/// Opens a handle. Returns the address of the first byte, the length, and how to close it.
fn open_handle(functions: &IpcFunctions, handle: IpcHandle) -> Result<(usize, usize, Close), WhyNot> {
    let (mut here, mut start, mut len) = (0, 0, 0);
    // SAFETY: the driver writes to these numbers only, and checks the handle.
    unsafe {
        check((functions.open)(&mut here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
            .map_err(|status| WhyNot::Driver("cuIpcOpenMemHandle", status))?;
        if let Err(status) = check((functions.address_range)(&mut start, &mut len, here)) {
            (functions.close)(here);
            return Err(WhyNot::Driver("cuMemGetAddressRange", status));
        }
    }
    let before = here.saturating_sub(start) as usize;
    Ok((here as usize, len.saturating_sub(before), Close::Handle))
}

/// Why an allocation of a local peer cannot be opened.
enum WhyNot {
    /// This function of the driver returned an error.
    Driver(&'static str, c_int),
    /// The kernel did not copy its descriptor.
    Fd(std::io::Error),
}

impl std::fmt::Display for WhyNot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WhyNot::Driver(function, status) => write!(f, "{function} returned {status}"),
            WhyNot::Fd(error) => write!(f, "its descriptor cannot be had: {error}"),
        }
    }
}

/// Copies between the concatenated `near` spans and the `far` span, which is as long as all of them: towards `far`, or from it. Any of them
/// may be in the memory of a GPU. Waits for the copies, even if the driver reported an error. Declines if no GPU is involved.
#[cold]
pub(crate) fn exchange(near: &[Span], far: Span, towards_far: bool) -> Attempt {
    debug_assert_eq!(near.iter().map(|span| span.len).sum::<usize>(), far.len);
    let gpu = std::iter::once(&far).chain(near).find_map(|span| match span.backing {
        Backing::Gpu(gpu) => Some(gpu),
        _ => None,
    });
    let Some((gpu, functions)) = gpu.zip(ipc()) else { return Attempt::Declined };
    let mut copying = Gpu::at(gpu).lock();
    let mut at = far.start;
    let issued = near.iter().try_for_each(|&span| {
        let there = Span { start: at, ..far };
        at += span.len;
        let (to, from) = if towards_far { (there, span) } else { (span, there) };
        // SAFETY: the bytes are those of a request, or came from `Region` checks whose locks are held, or are memory of a local peer that is
        // mapped or opened here and stays while the caller holds it. All of them stay valid until the copies are waited for below.
        unsafe { copying.issue_between(functions, to, from, span.len) }
    });
    let is_done = copying.wait().and(issued).is_ok();
    if is_done {
        COPIES.direct.fetch_add(1, Relaxed);
    }
    Attempt::of(is_done)
}

impl Copying {
    /// Issues a copy between bytes of which at least one side is in the memory of a GPU. The driver checks the addresses there.
    ///
    /// # Safety
    /// The bytes stay valid until the copy is done, and those that are written are not accessed until then.
    unsafe fn issue_between(
        &mut self,
        functions: &IpcFunctions,
        to: Span,
        from: Span,
        len: usize,
    ) -> Result<(), c_int> {
        // SAFETY: as the caller promises.
        unsafe {
            match (to.backing, from.backing) {
                (Backing::Gpu(_), Backing::Gpu(_)) => {
                    self.driver()?;
                    self.queue.is_busy = true;
                    check((functions.copy_on_device)(
                        to.start as u64,
                        from.start as u64,
                        len,
                        self.queue.stream,
                    ))
                }
                (Backing::Gpu(_), _) => self.issue_to_gpu(to.start, from.start as *const u8, len),
                _ => self.issue_to_host(to.start as *mut u8, from.start, len),
            }
        }
    }
}
