//! A GPU that is memory of the process, behind a fake CUDA driver.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../ffi/ibverbs/tests/support/fake_cuda.rs"]
mod fake_cuda;

use ferroce::{Access, GpuRegion, Pd};
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A driver library whose device memory faults on plain access.
pub(crate) struct Driver(*mut c_void);

impl Driver {
    /// Builds and loads it; `None`, with the reason printed, if this machine has no C compiler.
    pub(crate) fn load() -> Option<Driver> {
        // The test also runs as a user who may not write to cargo's folder.
        let library = std::env::temp_dir().join(format!("ferroce-libcuda.so.1.{}", std::process::id()));
        if !fake_cuda::build(&library) {
            return None;
        }
        let name = CString::new(library.as_os_str().as_bytes()).expect("a path of ours");
        // SAFETY: a library without constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        std::fs::remove_file(library).expect("it was just built");
        assert!(!handle.is_null());
        Some(Driver(handle))
    }

    pub(crate) fn function(&self, name: &std::ffi::CStr) -> *mut c_void {
        // SAFETY: the library stays loaded.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    pub(crate) fn allocate(&self, len: usize) -> u64 {
        let mut start = 0_u64;
        // SAFETY: the type that fake_cuda.c gives it, as below.
        let allocate: extern "C" fn(*mut u64, usize) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemAlloc_v2")) };
        assert_eq!(allocate(&mut start, len), 0);
        start
    }

    pub(crate) fn put(&self, start: u64, bytes: &[u8]) {
        // SAFETY: as above.
        let copy: extern "C" fn(u64, *const u8, usize) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemcpyHtoD_v2")) };
        assert_eq!(copy(start, bytes.as_ptr(), bytes.len()), 0);
    }

    pub(crate) fn get(&self, start: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        let copy: extern "C" fn(*mut u8, u64, usize) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemcpyDtoH_v2")) };
        assert_eq!(copy(bytes.as_mut_ptr(), start, len), 0);
        bytes
    }

    /// Number of copies that the NIC has issued, and of its waits for copies.
    pub(crate) fn counts(&self) -> [i64; 2] {
        [c"fake_copies", c"fake_waits"].map(|name| {
            // SAFETY: as above.
            let count: extern "C" fn() -> i64 = unsafe { std::mem::transmute(self.function(name)) };
            count()
        })
    }

    /// The same during `work`.
    pub(crate) fn counts_of(&self, work: impl FnOnce()) -> [i64; 2] {
        let before = self.counts();
        work();
        let after = self.counts();
        [after[0] - before[0], after[1] - before[1]]
    }

    pub(crate) fn free(&self, start: u64) {
        // SAFETY: as above.
        let free: extern "C" fn(u64) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemFree_v2")) };
        assert_eq!(free(start), 0);
    }

    /// Replaces memory as of `cuMemCreate` by other memory at the same address.
    pub(crate) fn replace(&self, start: u64) {
        // SAFETY: as above.
        let replace: extern "C" fn(u64) -> c_int =
            unsafe { std::mem::transmute(self.function(c"fake_replace")) };
        assert_eq!(replace(start), 0);
    }

    /// Allocations of other processes that this one has opened so far, and those that are open.
    pub(crate) fn opens(&self) -> [c_int; 2] {
        [c"fake_opens", c"fake_open_now"].map(|name| {
            // SAFETY: as above.
            let count: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.function(name)) };
            count()
        })
    }

    /// Whether other processes can open no memory that is registered from now on, and whether this one can open none.
    pub(crate) fn fail_ipc(&self, exports: bool, opens: bool) {
        // SAFETY: as above.
        let fail: extern "C" fn(c_int, c_int) =
            unsafe { std::mem::transmute(self.function(c"fake_fail_ipc")) };
        fail(exports.into(), opens.into());
    }

    /// Whether memory is allocated as with `cuMemCreate` from now on.
    pub(crate) fn allocate_vmm(&self, is_vmm: bool) {
        // SAFETY: as above.
        let allocate: extern "C" fn(c_int) =
            unsafe { std::mem::transmute(self.function(c"fake_allocate_vmm")) };
        allocate(is_vmm.into());
    }

    /// Registers a whole allocation.
    pub(crate) fn register(&self, pd: &Pd, start: u64, len: usize) -> GpuRegion {
        self.register_with(pd, start, len, Access::LOCAL_WRITE | Access::REMOTE)
    }

    /// The same with other rights.
    pub(crate) fn register_with(&self, pd: &Pd, start: u64, len: usize, access: Access) -> GpuRegion {
        // SAFETY: it stays allocated until the process ends.
        unsafe { pd.register_gpu(start, len, access, Arc::new(())) }.unwrap()
    }
}
