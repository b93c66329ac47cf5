//! Memory of a GPU, with a fake CUDA driver that needs no GPU.

mod support;

use ferroce::{Access, Refusal, WcStatus};
use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::{Pair, V4, watched};

const LEN: usize = 100_000;

/// A driver library whose device memory faults on plain access.
struct Driver(*mut c_void);

impl Driver {
    /// Builds and loads it; `None`, with the reason printed, if this machine has no C compiler.
    fn load() -> Option<Driver> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ffi/ibverbs/tests/c/fake_cuda.c");
        // The test also runs as a user who may not write to cargo's folder.
        let library = std::env::temp_dir().join(format!("ferroce-libcuda.so.1.{}", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&library).arg(source);
        let Ok(built) = cc.status() else {
            println!("SKIPPED: cc is missing; it is in the package gcc");
            return None;
        };
        assert!(built.success(), "cc fake_cuda.c: {built}");
        let name = CString::new(library.as_os_str().as_bytes()).expect("a path of ours");
        // SAFETY: a library without constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        std::fs::remove_file(library).expect("it was just built");
        assert!(!handle.is_null());
        Some(Driver(handle))
    }

    fn function(&self, name: &std::ffi::CStr) -> *mut c_void {
        // SAFETY: the library stays loaded.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    fn allocate(&self, len: usize) -> u64 {
        let mut start = 0_u64;
        // SAFETY: the type that fake_cuda.c gives it, as below.
        let allocate: extern "C" fn(*mut u64, usize) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemAlloc_v2")) };
        assert_eq!(allocate(&mut start, len), 0);
        start
    }

    fn put(&self, start: u64, bytes: &[u8]) {
        // SAFETY: as above.
        let copy: extern "C" fn(u64, *const u8, usize) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemcpyHtoD_v2")) };
        assert_eq!(copy(start, bytes.as_ptr(), bytes.len()), 0);
    }

    fn get(&self, start: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        let copy: extern "C" fn(*mut u8, u64, usize) -> c_int =
            unsafe { std::mem::transmute(self.function(c"cuMemcpyDtoH_v2")) };
        assert_eq!(copy(bytes.as_mut_ptr(), start, len), 0);
        bytes
    }
}

#[test]
fn peers_and_local_work_requests_reach_memory_of_a_gpu() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        // SAFETY: the address is refused, or it stays allocated until the process ends.
        let register = |start| unsafe {
            b.pd.register_gpu(start, LEN, Access::LOCAL_WRITE | Access::REMOTE, Arc::new(()))
        };
        let refused = |start| match register(start).unwrap_err().refusal() {
            Some(Refusal::Invalid { attribute: "addr", why }) => *why,
            other => panic!("{other:?}"),
        };
        assert!(refused(4096).contains("has not loaded the CUDA driver"));
        let Some(driver) = Driver::load() else { return };
        let local = a.open_region(LEN);
        assert_eq!(refused(local.remote().addr), "is not a CUDA device pointer");
        let start = driver.allocate(LEN);
        let region = register(start).unwrap();
        assert_eq!((region.len(), region.remote().addr), (LEN, start));
        let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
        local.write(0, &bytes).unwrap();
        a.qp.write(1, &[local.sge(..).unwrap()], region.remote()).unwrap();
        a.success();
        assert!(driver.get(start, LEN) == bytes);
        driver.put(start, &[7; LEN]);
        a.qp.read(2, &[local.sge(..).unwrap()], region.remote()).unwrap();
        a.success();
        assert!(local.to_vec() == [7; LEN]);
        a.qp.fetch_add(3, local.sge(..8).unwrap(), region.remote(), 1).unwrap();
        a.success();
        assert_eq!(driver.get(start, 8), [8, 7, 7, 7, 7, 7, 7, 7]);
        // The region is the source of a message. After its deregistration, the peer's access is refused.
        let received = a.qp.recv(a.pd.buffer(LEN).unwrap()).unwrap();
        b.qp.send_from(4, &[region.sge(..).unwrap()]).unwrap();
        assert!(received.wait().unwrap().buffer[..] == driver.get(start, LEN));
        b.success();
        let remote = region.remote();
        drop(region);
        a.qp.read(5, &[local.sge(..8).unwrap()], remote).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}
