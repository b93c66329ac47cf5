//! Tests with a fake driver that copies immediately, and fails copies on request.

use super::driver::Driver;
use super::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const GPU: u8 = MAX_GPUS as u8 - 1;
const ILLEGAL_ADDRESS: c_int = 700;

static FAILS: AtomicBool = AtomicBool::new(false);
static WAITS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn made(handle: *mut Handle, _: c_uint) -> c_int {
    // SAFETY: the callers pass a number of theirs.
    unsafe { *handle = 1 };
    0
}

extern "C" fn copy_to_device(to: u64, from: *const c_void, len: usize, _: Handle) -> c_int {
    if FAILS.load(Relaxed) {
        return ILLEGAL_ADDRESS;
    }
    // SAFETY: the tests use memory of their own as that of the GPU.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, len) };
    0
}

extern "C" fn wait_for_stream(_: Handle) -> c_int {
    WAITS.fetch_add(1, Relaxed);
    0
}

static DRIVER: Driver = Driver {
    pointer_attribute: {
        extern "C" fn f(_: *mut c_void, _: c_int, _: u64) -> c_int {
            1
        }
        f
    },
    device: {
        extern "C" fn f(_: *mut c_int, _: c_int) -> c_int {
            0
        }
        f
    },
    retain_primary_context: {
        extern "C" fn f(_: *mut Handle, _: c_int) -> c_int {
            0
        }
        f
    },
    release_primary_context: {
        extern "C" fn f(_: c_int) -> c_int {
            0
        }
        f
    },
    push_context: {
        extern "C" fn f(_: Handle) -> c_int {
            0
        }
        f
    },
    pop_context: {
        extern "C" fn f(_: *mut Handle) -> c_int {
            0
        }
        f
    },
    exchange_capture_mode: {
        extern "C" fn f(_: *mut c_int) -> c_int {
            0
        }
        f
    },
    create_stream: made,
    pin: {
        extern "C" fn f(_: *mut c_void, _: usize, _: c_uint) -> c_int {
            0
        }
        f
    },
    create_event: made,
    record_event: {
        extern "C" fn f(_: Handle, _: Handle) -> c_int {
            0
        }
        f
    },
    wait_for_event: {
        extern "C" fn f(_: Handle) -> c_int {
            0
        }
        f
    },
    copy_to_device,
    copy_to_host: {
        extern "C" fn f(_: *mut c_void, _: u64, _: usize, _: Handle) -> c_int {
            0
        }
        f
    },
    wait_for_stream,
};

#[test]
fn messages_are_gathered_and_keep_their_failure() {
    Gpu::open(&DRIVER, GPU).unwrap();
    let mut memory = vec![0_u8; 64];
    let base = memory.as_mut_ptr() as usize;
    let place = |qp, at: usize, placement| {
        write(GPU, Span::at(base + at, 8), &[qp as u8; 8], MessagePart { qp, placement })
    };
    // SAFETY: nobody writes meanwhile.
    let at = |at: usize| unsafe { ((base + at) as *const u8).read_volatile() };
    // Nothing is visible before the last part, and a queue pair that stops leaves the others as they are.
    place(16, 0, Placement::More).unwrap();
    place(32, 8, Placement::More).unwrap();
    settle_stopped(48);
    assert_eq!((at(0), at(8), WAITS.load(Relaxed)), (0, 0, 0));
    settle_stopped(16);
    assert_eq!((at(0), at(8), WAITS.load(Relaxed)), (16, 0, 1));
    place(32, 16, Placement::Last).unwrap();
    assert_eq!((at(8), at(16)), (32, 32));
    // The copy fails with a part that may be repeated, such as an early READ response. The message fails all the same.
    place(32, 24, Placement::More).unwrap();
    FAILS.store(true, Relaxed);
    assert!(place(32, 40, Placement::Last).is_err());
    FAILS.store(false, Relaxed);
    assert!(place(32, 40, Placement::Last).is_err() && place(32, 32, Placement::More).is_err());
    assert!(place(16, 48, Placement::Last).is_ok(), "another queue pair");
    // Another queue pair may have the same address.
    settle_stopped(32);
    assert!(place(32, 56, Placement::Last).is_ok());
}
