//! The CUDA driver library, if the process has loaded it.

use ferroce_os::library_functions;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A `CUcontext`, a `CUstream` or a `CUevent`: a pointer that only the driver dereferences.
pub(super) type Handle = usize;

library_functions! {
    /// The functions of the driver library that are used here. All return a `CUresult`.
    pub(super) struct Driver {
        pointer_attribute = c"cuPointerGetAttribute"(*mut c_void, c_int, u64);
        device = c"cuDeviceGet"(*mut c_int, c_int);
        retain_primary_context = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
        release_primary_context = c"cuDevicePrimaryCtxRelease_v2"(c_int);
        push_context = c"cuCtxPushCurrent_v2"(Handle);
        pop_context = c"cuCtxPopCurrent_v2"(*mut Handle);
        exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_int);
        create_stream = c"cuStreamCreate"(*mut Handle, c_uint);
        pin = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
        create_event = c"cuEventCreate"(*mut Handle, c_uint);
        record_event = c"cuEventRecord"(Handle, Handle);
        wait_for_event = c"cuEventSynchronize"(Handle);
        copy_to_device = c"cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
        copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
        wait_for_stream = c"cuStreamSynchronize"(Handle);
    }
}

library_functions! {
    /// The functions that open memory of other processes. Memory can be registered without them.
    pub(super) struct IpcFunctions {
        address_range = c"cuMemGetAddressRange_v2"(*mut u64, *mut usize, u64);
        export = c"cuIpcGetMemHandle"(*mut IpcHandle, u64);
        open = c"cuIpcOpenMemHandle_v2"(*mut u64, IpcHandle, c_uint);
        close = c"cuIpcCloseMemHandle"(u64);
        device_count = c"cuDeviceGetCount"(*mut c_int);
        uuid = c"cuDeviceGetUuid_v2"(*mut [u64; 2], c_int);
        context_state = c"cuDevicePrimaryCtxGetState"(c_int, *mut c_uint, *mut c_int);
        copy_on_device = c"cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle);
    }
}

library_functions! {
    /// The functions that open memory of `cuMemCreate`.
    pub(super) struct VmmFunctions {
        retain = c"cuMemRetainAllocationHandle"(*mut u64, *mut c_void);
        export = c"cuMemExportToShareableHandle"(*mut c_int, u64, c_int, u64);
        import = c"cuMemImportFromShareableHandle"(*mut u64, *mut c_void, c_int);
        release = c"cuMemRelease"(u64);
        reserve = c"cuMemAddressReserve"(*mut u64, usize, usize, u64, u64);
        free = c"cuMemAddressFree"(u64, usize);
        map = c"cuMemMap"(u64, usize, usize, u64, u64);
        unmap = c"cuMemUnmap"(u64, usize);
        set_access = c"cuMemSetAccess"(u64, usize, *const [c_int; 3], usize);
    }
}

/// A `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub(super) [u64; 8]);

/// The functions found in the library.
struct Loaded {
    driver: Driver,
    ipc: Option<IpcFunctions>,
    vmm: Option<VmmFunctions>,
}

const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const CU_POINTER_ATTRIBUTE_IS_MANAGED: c_int = 8;
const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
const CU_POINTER_ATTRIBUTE_MAPPING_SIZE: c_int = 18;
const CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: c_int = 19;
const CU_MEMORYTYPE_HOST: c_int = 1;
const CU_MEMORYTYPE_DEVICE: c_int = 2;
const CU_STREAM_CAPTURE_MODE_RELAXED: c_int = 2;

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
pub(super) fn driver() -> Option<&'static Driver> {
    loaded().map(|loaded| &loaded.driver)
}

/// The functions that open memory of other processes, if the driver has them.
pub(super) fn ipc() -> Option<&'static IpcFunctions> {
    loaded().and_then(|loaded| loaded.ipc.as_ref())
}

/// The functions that open memory of `cuMemCreate`, if the driver has them.
pub(super) fn vmm() -> Option<&'static VmmFunctions> {
    loaded().and_then(|loaded| loaded.vmm.as_ref())
}

fn loaded() -> Option<&'static Loaded> {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    /// The result of [`libraries_loaded`] before the last unsuccessful search. The search opens files, so it is not repeated needlessly.
    static SEARCHED_AT: AtomicU64 = AtomicU64::new(0);
    if let Some(loaded) = LOADED.get() {
        return Some(loaded);
    }
    let loaded = libraries_loaded();
    if SEARCHED_AT.load(Relaxed) == loaded {
        return None;
    }
    // SAFETY: adds a reference to a library that is loaded already, and loads none. The reference is never released.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    let (driver, ipc, vmm) = if library.is_null() {
        (None, None, None)
    } else {
        // SAFETY: the reference keeps it loaded.
        unsafe { (Driver::of(library), IpcFunctions::of(library), VmmFunctions::of(library)) }
    };
    match driver {
        Some(driver) => Some(LOADED.get_or_init(|| Loaded { driver, ipc, vmm })),
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

/// A result of the driver.
pub(super) fn check(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

impl Driver {
    /// An attribute of an address, or `None` if the driver has no such address.
    fn attribute(&self, attribute: c_int, addr: usize) -> Option<c_int> {
        let mut value: c_int = 0;
        // SAFETY: these attributes are numbers of this size, or a flag of one byte; the driver checks the address.
        let status = unsafe { (self.pointer_attribute)((&raw mut value).cast(), attribute, addr as u64) };
        (status == 0).then_some(value)
    }

    /// The mapping that an address is in: its first byte and its length. Only for memory of `cuMemCreate`.
    pub(super) fn mapping_of(&self, addr: usize) -> Option<(u64, usize)> {
        let attribute = |attribute| {
            let mut value = 0_u64;
            // SAFETY: these attributes are a pointer and a `size_t`; the driver checks the address.
            let status = unsafe { (self.pointer_attribute)((&raw mut value).cast(), attribute, addr as u64) };
            (status == 0 && value != 0).then_some(value)
        };
        Some((
            attribute(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)?,
            attribute(CU_POINTER_ATTRIBUTE_MAPPING_SIZE)? as usize,
        ))
    }

    /// The GPU that an address belongs to; `None` for managed memory, which the processor can access too.
    pub(super) fn gpu_of(&self, addr: usize) -> Option<c_int> {
        let is_device = self.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr)? == CU_MEMORYTYPE_DEVICE;
        let is_managed = self.attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, addr).is_some_and(|it| it != 0);
        if !is_device || is_managed {
            return None;
        }
        self.attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr)
    }

    /// Whether the driver has pinned a byte of host memory.
    pub(super) fn has_pinned(&self, addr: usize) -> bool {
        self.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) == Some(CU_MEMORYTYPE_HOST)
    }
}

/// The context of a GPU is current on this thread, which may belong to the program. Dropping restores the previous one.
pub(super) struct Entered {
    driver: &'static Driver,
    capture_mode: c_int,
}

impl Entered {
    pub(super) fn new(driver: &'static Driver, context: Handle) -> Result<Entered, c_int> {
        // SAFETY: a context that was retained, and is not released while it is current here.
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
