//! Memory of a GPU, which only the CUDA driver can copy.
//!
//! This module never loads the driver library: a program with a device pointer has loaded it. In a program without it, each registration
//! costs two calls into the loader.
//!
//! All copies run on one stream per GPU, in its primary context. The stream does not wait for the default stream: kernels there may wait for
//! the very bytes that are copied. Each copy is complete, and visible to kernels that start later, when its function returns; so it
//! precedes the completion and the ACK.

use super::region::Span;
use ferroce_proto::verbs::MemoryFault;
use parking_lot::{Mutex, MutexGuard};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::transmute;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A `CUcontext` or a `CUstream`: a pointer that only the driver follows.
type Handle = usize;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of the driver library that are used here. All return a `CUresult`.
        struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            /// # Safety
            /// `library` is a driver library that stays loaded.
            unsafe fn of(library: *mut c_void) -> Option<Driver> {
                // SAFETY: the handle is valid, and `cuda.h` declares the functions with these types.
                Some(unsafe { Driver { $($name: transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(symbol(library, $symbol)?),)* } })
            }
        }
    };
}

functions! {
    pointer_attribute = c"cuPointerGetAttribute"(*mut c_void, c_int, u64);
    device = c"cuDeviceGet"(*mut c_int, c_int);
    retain_primary_context = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    push_context = c"cuCtxPushCurrent_v2"(Handle);
    pop_context = c"cuCtxPopCurrent_v2"(*mut Handle);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_int);
    create_stream = c"cuStreamCreate"(*mut Handle, c_uint);
    copy_to_device = c"cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
    copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
    synchronize = c"cuStreamSynchronize"(Handle);
}

const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
const CU_MEMORYTYPE_HOST: c_int = 1;
const CU_MEMORYTYPE_DEVICE: c_int = 2;
const CU_STREAM_NON_BLOCKING: c_uint = 1;
const CU_STREAM_CAPTURE_MODE_RELAXED: c_int = 2;
/// The answer to a device number beyond [`MAX_GPUS`].
const CUDA_ERROR_INVALID_DEVICE: c_int = 101;

unsafe fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: as the caller promises; the name ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// How many libraries the process has loaded so far. Only ever grows.
fn libraries_loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid structure, and `count` is that of the caller below.
        unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut count = 0_u64;
    // SAFETY: the callback matches, and runs during the call only.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

/// The driver, if the process has loaded its library.
fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    /// What [`libraries_loaded`] returned before the last search, which found nothing. The search opens files.
    static SEARCHED_AT: AtomicU64 = AtomicU64::new(0);
    if let Some(driver) = DRIVER.get() {
        return Some(driver);
    }
    let loaded = libraries_loaded();
    if SEARCHED_AT.load(Relaxed) == loaded {
        return None;
    }
    // SAFETY: adds a reference to a library that is loaded already, and loads none. The reference is never released.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    // SAFETY: the reference keeps it loaded.
    let found = if library.is_null() { None } else { unsafe { Driver::of(library) } };
    match found {
        Some(found) => Some(DRIVER.get_or_init(|| found)),
        None => {
            SEARCHED_AT.store(loaded, Relaxed);
            None
        }
    }
}

/// Whether the process has loaded the CUDA driver library, so that memory of GPUs can be registered.
pub fn is_driver_loaded() -> bool {
    driver().is_some()
}

impl Driver {
    /// An attribute of an address, or `None` if the driver has no such address.
    fn attribute(&self, attribute: c_int, addr: usize) -> Option<c_int> {
        let mut value: c_int = 0;
        // SAFETY: these attributes are numbers of this size, or a flag of one byte; the driver checks the address.
        let status = unsafe { (self.pointer_attribute)((&raw mut value).cast(), attribute, addr as u64) };
        (status == 0).then_some(value)
    }

    /// The GPU that an address belongs to; `None` for managed memory, which the processor can access too.
    fn gpu_of(&self, addr: usize) -> Option<c_int> {
        let is_device = self.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr)? == CU_MEMORYTYPE_DEVICE;
        let is_managed = self.attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, addr).is_some_and(|it| it != 0);
        if !is_device || is_managed {
            return None;
        }
        self.attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr)
    }
}

/// Whether the driver has pinned the first or the last byte of a range of host memory. Such pages must not be moved: the GPU would
/// continue to use the old ones.
pub(super) fn is_pinned(addr: usize, len: usize) -> bool {
    driver().is_some_and(|driver| {
        let memory_type = |addr| driver.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr);
        ends(addr, len).any(|addr| memory_type(addr) == Some(CU_MEMORYTYPE_HOST))
    })
}

/// The first and the last of some bytes.
fn ends(addr: usize, len: usize) -> impl Iterator<Item = usize> {
    [addr, addr + len.saturating_sub(1)].into_iter()
}

/// The GPU that a range of addresses belongs to, ready for copies. Programs round ranges to whole pages, so the range may reach beyond the
/// allocation at one end.
pub(crate) fn gpu_of(addr: usize, len: usize) -> Result<Option<u8>, MemoryFault> {
    let Some(driver) = driver().filter(|_| len > 0) else { return Ok(None) };
    let Some(ordinal) = ends(addr, len).find_map(|addr| driver.gpu_of(addr)) else {
        return Ok(None);
    };
    let fault = |status| fault(addr, len, status);
    let index = u8::try_from(ordinal).ok().filter(|index| usize::from(*index) < MAX_GPUS);
    let index = index.ok_or(fault(CUDA_ERROR_INVALID_DEVICE))?;
    Gpu::open(driver, index).map_err(fault)?;
    Ok(Some(index))
}

/// A result of the driver.
fn check(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

fn fault(addr: usize, len: usize, status: c_int) -> MemoryFault {
    MemoryFault::Gpu { addr: addr as u64, len: len as u64, status }
}

/// A GPU that regions are on.
struct Gpu {
    driver: &'static Driver,
    context: Handle,
    /// Held during each copy, so that an atomic, which takes two, is one step for all operations of this process.
    stream: Mutex<Handle>,
}

const MAX_GPUS: usize = 64;

/// The GPUs that regions were registered on, by their number. They stay open: the next region is likely to be on the same one.
static GPUS: [OnceLock<Gpu>; MAX_GPUS] = [const { OnceLock::new() }; MAX_GPUS];

impl Gpu {
    /// Opens a GPU, unless it is open.
    fn open(driver: &'static Driver, index: u8) -> Result<(), c_int> {
        static OPENING: Mutex<()> = Mutex::new(());
        let cell = &GPUS[usize::from(index)];
        let _opening = OPENING.lock();
        if cell.get().is_some() {
            return Ok(());
        }
        let (mut device, mut context, mut stream) = (0, 0, 0);
        // SAFETY: the driver writes to these numbers only.
        unsafe {
            check((driver.device)(&mut device, index.into()))?;
            check((driver.retain_primary_context)(&mut context, device))?;
        }
        let entered = Entered::new(driver, context)?;
        // SAFETY: as above; the context of the stream is current.
        check(unsafe { (driver.create_stream)(&mut stream, CU_STREAM_NON_BLOCKING) })?;
        drop(entered);
        cell.get_or_init(|| Gpu { driver, context, stream: Mutex::new(stream) });
        Ok(())
    }

    fn at(index: u8) -> &'static Gpu {
        GPUS[usize::from(index)].get().expect("a region on it was registered")
    }

    /// Prepares this thread for copies, and makes those of other threads wait.
    fn lock(&self) -> Result<Copying<'_>, c_int> {
        let entered = Entered::new(self.driver, self.context)?;
        Ok(Copying { driver: self.driver, stream: self.stream.lock(), _entered: entered })
    }
}

/// A GPU that is locked for copies by this thread. Each copy is complete when its method returns.
struct Copying<'a> {
    driver: &'static Driver,
    stream: MutexGuard<'a, Handle>,
    _entered: Entered,
}

impl Copying<'_> {
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), c_int> {
        assert_eq!(span.len, out.len());
        let (to, from) = (out.as_mut_ptr().cast(), span.start as u64);
        // SAFETY: `out` is as long, and stays until the GPU is done. The driver checks the span.
        let status = unsafe { (self.driver.copy_to_host)(to, from, span.len, *self.stream) };
        self.wait(status)
    }

    fn write(&self, span: Span, data: &[u8]) -> Result<(), c_int> {
        assert_eq!(span.len, data.len());
        let (to, from) = (span.start as u64, data.as_ptr().cast());
        // SAFETY: `data` is as long, and stays until the GPU is done. The driver checks the span.
        let status = unsafe { (self.driver.copy_to_device)(to, from, span.len, *self.stream) };
        self.wait(status)
    }

    /// Waits until the GPU is done with a copy, even if the driver reported an error for it.
    fn wait(&self, status: c_int) -> Result<(), c_int> {
        // SAFETY: a stream of the current context.
        let waited = unsafe { (self.driver.synchronize)(*self.stream) };
        check(status).and(check(waited))
    }
}

/// The context of a GPU is current on this thread, which may belong to the program. Dropping restores the previous one.
struct Entered {
    driver: &'static Driver,
    capture_mode: c_int,
}

impl Entered {
    fn new(driver: &'static Driver, context: Handle) -> Result<Entered, c_int> {
        // SAFETY: a context that was retained and is never released.
        check(unsafe { (driver.push_context)(context) })?;
        let mut capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // A thread that records a graph must not have it invalidated by copies on a stream that is not part of it.
        // SAFETY: swaps a number. A driver that refuses leaves the mode as it is.
        unsafe { (driver.exchange_capture_mode)(&mut capture_mode) };
        Ok(Entered { driver, capture_mode })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context: Handle = 0;
        // SAFETY: undoes `new` on the same thread.
        unsafe {
            (self.driver.exchange_capture_mode)(&mut self.capture_mode);
            (self.driver.pop_context)(&mut context);
        }
    }
}

/// Copies out of the memory of a GPU; `out` is as long as the span.
pub(super) fn read(gpu: u8, span: Span, out: &mut [u8]) -> Result<(), MemoryFault> {
    if out.is_empty() {
        return Ok(());
    }
    let outcome = Gpu::at(gpu).lock().and_then(|copying| copying.read(span, out));
    outcome.map_err(|status| fault(span.start, span.len, status))
}

/// Copies into the memory of a GPU; `data` is as long as the span.
pub(super) fn write(gpu: u8, span: Span, data: &[u8]) -> Result<(), MemoryFault> {
    if data.is_empty() {
        return Ok(());
    }
    let outcome = Gpu::at(gpu).lock().and_then(|copying| copying.write(span, data));
    outcome.map_err(|status| fault(span.start, span.len, status))
}

/// Replaces eight bytes by what `change` makes of them, and returns the original value. One step for all operations of this process; kernels
/// may see it as two.
pub(super) fn atomic(gpu: u8, span: Span, change: impl FnOnce(u64) -> u64) -> Result<u64, MemoryFault> {
    let outcome = Gpu::at(gpu).lock().and_then(|copying| {
        let mut word = [0; 8];
        copying.read(span, &mut word)?;
        let original = u64::from_ne_bytes(word);
        copying.write(span, &change(original).to_ne_bytes())?;
        Ok(original)
    });
    outcome.map_err(|status| fault(span.start, span.len, status))
}
