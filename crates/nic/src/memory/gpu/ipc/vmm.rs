//! Memory of `cuMemCreate`, which other processes open by a descriptor.
//!
//! NCCL and PyTorch's expandable segments allocate such memory. A local peer copies the descriptor out of the owner (`pidfd_getfd`). This
//! requires the right to trace the owner, as does every copy between processes by the kernel.

use super::super::driver::{Driver, check, vmm};
use super::{Close, Exported, WhyNot};
use crate::memory::across::is_readable;
use ferroce_shm::{GpuHandle, Owner};
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_int = 1;
const CU_MEM_LOCATION_TYPE_DEVICE: c_int = 1;
const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: c_int = 3;

/// The number of descriptors that this process has exported. It is part of each handle: a local peer that still has freed memory open
/// recognises new memory at the same address by it, even if the number of the descriptor is the same.
static EXPORTS: AtomicU64 = AtomicU64::new(0);

/// Exports the mapping that contains an address. The context of its GPU is current.
pub(super) fn export(driver: &Driver, addr: usize) -> Option<Exported> {
    let functions = vmm()?;
    let (start, len) = driver.mapping_of(addr)?;
    let (mut allocation, mut fd) = (0, -1);
    // SAFETY: the driver writes to these numbers only, and checks the address. The retained allocation is released.
    let exported = unsafe {
        check((functions.retain)(&mut allocation, addr as *mut c_void)).ok()?;
        let exported = (functions.export)(&mut fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        (functions.release)(allocation);
        exported
    };
    check(exported).ok()?;
    // SAFETY: a new descriptor, owned by this function.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Child processes must not inherit it.
    // SAFETY: a call without pointers.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    let serial = EXPORTS.fetch_add(1, Relaxed);
    let handle = GpuHandle::Fd { fd: fd.as_raw_fd().cast_unsigned(), serial };
    Some(Exported { start, len, handle, fd: Some(fd) })
}

/// Maps `len` bytes of the allocation that a descriptor of the owner leads to. The context of the GPU is current.
pub(super) fn open(
    gpu: u8,
    owner: Option<&Owner>,
    fd: u32,
    len: usize,
) -> Result<(usize, usize, Close), WhyNot> {
    let functions = vmm().ok_or_else(|| WhyNot::Fd(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))?;
    let fd = copy_of(owner, fd).map_err(WhyNot::Fd)?;
    let failed = |function| move |status| WhyNot::Driver(function, status);
    let (mut allocation, mut start) = (0, 0);
    // SAFETY: the driver writes to these numbers only. It checks the descriptor, which it does not keep, and the length. On errors the
    // reservation and the allocation are released.
    unsafe {
        let by = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        check((functions.import)(&mut allocation, fd.as_raw_fd() as *mut c_void, by))
            .map_err(failed("cuMemImportFromShareableHandle"))?;
        let reserved = check((functions.reserve)(&mut start, len, 0, 0, 0));
        let mapped = reserved.and_then(|()| {
            let mapped = check((functions.map)(start, len, 0, allocation, 0));
            mapped.inspect_err(|_| {
                (functions.free)(start, len);
            })
        });
        // The mapping keeps the memory.
        (functions.release)(allocation);
        mapped.map_err(failed("cuMemMap"))?;
        let access = [CU_MEM_LOCATION_TYPE_DEVICE, gpu.into(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE];
        if let Err(status) = check((functions.set_access)(start, len, &access, 1)) {
            close(start, len);
            return Err(WhyNot::Driver("cuMemSetAccess", status));
        }
    }
    Ok((start as usize, len, Close::Mapping(len)))
}

/// Unmaps what [`open`] mapped. The context of the GPU is current.
pub(super) fn close(start: u64, len: usize) {
    let Some(functions) = vmm() else { return };
    // SAFETY: `open` mapped it, and no copy uses it.
    unsafe {
        (functions.unmap)(start, len);
        (functions.free)(start, len);
    }
}

/// A copy of a descriptor of another process.
fn copy_of(owner: Option<&Owner>, fd: u32) -> io::Result<OwnedFd> {
    let owner = owner.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let new = |result: c_long| match c_int::try_from(result) {
        // SAFETY: the kernel has just created it for this process.
        Ok(new) if new >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(new) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a call without pointers.
    let process = new(unsafe { libc::syscall(libc::SYS_pidfd_open, owner.process, 0) })?;
    // The PID may have been reused before this call; the pidfd keeps referring to the process whose mark is checked here.
    if !is_readable(owner) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: as above.
    new(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}
