//! Memory of a GPU for the buffers of a test, and the bandwidth of a bare copy to it, with which the figures are compared.

use crate::failure::Failure;
use ferroce_os::library_functions;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long the bare copy is measured.
const COPY_TIME: Duration = Duration::from_millis(200);

library_functions! {
    /// The functions of the CUDA driver that are used here. All return a `CUresult`.
    struct Driver {
        init = c"cuInit"(c_uint);
        device = c"cuDeviceGet"(*mut c_int, c_int);
        retain_primary_context = c"cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int);
        set_context = c"cuCtxSetCurrent"(*mut c_void);
        synchronize = c"cuCtxSynchronize"();
        allocate = c"cuMemAlloc_v2"(*mut u64, usize);
        free = c"cuMemFree_v2"(u64);
        allocate_host = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
        free_host = c"cuMemFreeHost"(*mut c_void);
        copy_to_device = c"cuMemcpyHtoD_v2"(u64, *const c_void, usize);
        copy_to_host = c"cuMemcpyDtoH_v2"(*mut c_void, u64, usize);
    }
}

const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;

/// The first GPU of this machine.
#[derive(Clone, Copy)]
struct Gpu {
    driver: &'static Driver,
    /// A `CUcontext`, which only the driver dereferences.
    context: usize,
}

fn failed(what: &str, status: c_int) -> Failure {
    Failure::new(format!("the CUDA driver cannot {what}: error {status}"))
}

fn check(what: &str, status: c_int) -> Result<(), Failure> {
    if status == 0 { Ok(()) } else { Err(failed(what, status)) }
}

impl Gpu {
    /// Opens it, and makes its context that of this thread.
    fn open() -> Result<Gpu, Failure> {
        static GPU: OnceLock<Result<Gpu, Failure>> = OnceLock::new();
        let gpu = GPU.get_or_init(Gpu::find).clone()?;
        // SAFETY: a context that is never released.
        check("use the GPU", unsafe { (gpu.driver.set_context)(gpu.context as *mut c_void) })?;
        Ok(gpu)
    }

    fn find() -> Result<Gpu, Failure> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        // SAFETY: loads the driver of the system, which stays loaded.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: as above.
        let found = if library.is_null() { None } else { unsafe { Driver::of(library) } };
        let found = found.ok_or_else(|| {
            Failure::new("--gpu needs the CUDA driver, and libcuda.so.1 cannot be loaded on this machine")
                .advise("Install the driver of the GPU, or leave --gpu out")
        })?;
        let driver = DRIVER.get_or_init(|| found);
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: the driver writes to these variables only.
        unsafe {
            let opened = check("be started", (driver.init)(0))
                .and_then(|()| check("find a GPU", (driver.device)(&mut device, 0)))
                .and_then(|()| check("open the GPU", (driver.retain_primary_context)(&mut context, device)));
            opened.map_err(|failure| failure.advise("Check the GPU: nvidia-smi"))?;
        }
        Ok(Gpu { driver, context: context as usize })
    }
}

/// Memory of the GPU.
pub(crate) struct Allocation {
    gpu: Gpu,
    start: u64,
    len: usize,
}

impl Allocation {
    /// Bytes that are all zero.
    pub(crate) fn zeroed(len: usize) -> Result<Arc<Allocation>, Failure> {
        let gpu = Gpu::open()?;
        let mut start = 0;
        // SAFETY: the driver writes the address only.
        check(&format!("allocate {len} bytes"), unsafe { (gpu.driver.allocate)(&mut start, len) })?;
        let allocation = Allocation { gpu, start, len };
        allocation.write(0, &vec![0; len])?;
        Ok(Arc::new(allocation))
    }

    /// Its device pointer.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    fn check_range(&self, at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
    }

    /// Copies bytes there, and waits for it.
    pub(crate) fn write(&self, at: usize, data: &[u8]) -> Result<(), Failure> {
        self.check_range(at, data.len());
        let driver = Gpu::open()?.driver;
        // SAFETY: the range is inside the allocation. A copy from pageable memory may still run when the first call returns.
        unsafe {
            check("copy", (driver.copy_to_device)(self.start + at as u64, data.as_ptr().cast(), data.len()))?;
            check("copy", (driver.synchronize)())
        }
    }

    /// Copies bytes from there.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) -> Result<(), Failure> {
        self.check_range(at, out.len());
        let driver = Gpu::open()?.driver;
        // SAFETY: as above; the call returns when `out` is complete.
        check("copy", unsafe {
            (driver.copy_to_host)(out.as_mut_ptr().cast(), self.start + at as u64, out.len())
        })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if Gpu::open().is_ok() {
            // SAFETY: this value owns the allocation, and nothing uses it any more.
            unsafe { (self.gpu.driver.free)(self.start) };
        }
    }
}

/// GB/s of copies of `len` bytes from pinned host memory to the GPU, one at a time, without RDMA.
pub(crate) fn bare_copy(len: usize) -> Result<f64, Failure> {
    let to = Allocation::zeroed(len)?;
    let driver = to.gpu.driver;
    let mut from = null_mut();
    // SAFETY: the driver writes the address only.
    check("pin host memory", unsafe { (driver.allocate_host)(&mut from, len, CU_MEMHOSTALLOC_PORTABLE) })?;
    // SAFETY: both buffers have `len` bytes, and the call returns when the copy is complete.
    let copy = || check("copy", unsafe { (driver.copy_to_device)(to.start, from, len) });
    let timed = copy().and_then(|()| {
        let (start, mut copies) = (Instant::now(), 0_u32);
        while start.elapsed() < COPY_TIME {
            copy()?;
            copies += 1;
        }
        Ok(f64::from(copies) * len as f64 / start.elapsed().as_secs_f64() / 1e9)
    });
    // SAFETY: this function allocated it, and nothing uses it any more.
    unsafe { (driver.free_host)(from) };
    timed
}
