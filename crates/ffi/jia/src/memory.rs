//! Allocation, and copies that bypass page faults.

use crate::messages::{readable, writable};
use crate::process::{fail, named, run};
use ferroce_dsm::{Job, PAGE, Placement};
use std::ffi::{c_int, c_uchar, c_ulong, c_void};

/// The flags of `jia_falloc`, as numbered in include/jia.h.
const CYCLIC: c_int = 0;
const ON_HOME: c_int = 1;
const ROTATING: c_int = 2;
const RANDOM: c_int = 3;
const TRIPS: c_int = 4;
const SHARES: c_int = 5;

fn alloc(call: &'static str, bytes: c_ulong, placement: &Placement) -> c_ulong {
    run(call, |job: &Job| Ok(job.alloc(bytes as usize, placement)? as usize as c_ulong))
}

/// Blocks round-robin. Block size 0 means one page: programs divide sizes by the number of processes.
fn cyclic(block: c_ulong, first: c_int) -> Placement {
    Placement::Cyclic { block: (block as usize).max(1), first: named("process", first) }
}

/// Reads a list of sizes from C.
///
/// # Safety
/// `sizes` points to `count` numbers.
unsafe fn sizes(call: &str, sizes: *const c_int, count: c_int) -> Vec<usize> {
    if sizes.is_null() || count <= 0 {
        fail(&format!("{call}: a list of sizes is missing"));
    }
    // SAFETY: the caller's promise, and not null.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, count as usize) };
    let size =
        |&size: &c_int| usize::try_from(size).unwrap_or_else(|_| fail(&format!("{call}: size {size}")));
    sizes.iter().map(size).collect()
}

/// Pages round-robin over all processes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_alloc(bytes: c_ulong) -> c_ulong {
    alloc("jia_alloc", bytes, &Placement::Cyclic { block: PAGE, first: 0 })
}

/// All on process 0.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_alloc1(bytes: c_ulong) -> c_ulong {
    alloc("jia_alloc1", bytes, &Placement::On(0))
}

/// Blocks round-robin, from process 0.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_alloc2(bytes: c_ulong, block: c_ulong) -> c_ulong {
    alloc("jia_alloc2", bytes, &cyclic(block, 0))
}

/// All on one process.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_alloc2p(bytes: c_ulong, home: c_int) -> c_ulong {
    alloc("jia_alloc2p", bytes, &Placement::On(named("process", home)))
}

/// Blocks round-robin, from process `first`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_alloc3(bytes: c_ulong, block: c_ulong, first: c_int) -> c_ulong {
    alloc("jia_alloc3", bytes, &cyclic(block, first))
}

/// Blocks round-robin, with another size in each round.
///
/// # Safety
/// `blocks` points to `count` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_alloc4(
    bytes: c_ulong,
    blocks: *const c_int,
    count: c_int,
    first: c_int,
) -> c_ulong {
    // SAFETY: the caller's promise.
    let blocks = unsafe { sizes("jia_alloc4", blocks, count) };
    alloc("jia_alloc4", bytes, &Placement::Trips { blocks, first: named("process", first) })
}

/// `shares[i]` bytes on process i.
///
/// # Safety
/// `shares` points to `count` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_alloc_array(
    bytes: c_ulong,
    shares: *const c_int,
    count: c_int,
) -> c_ulong {
    // SAFETY: the caller's promise.
    let shares = unsafe { sizes("jia_alloc_array", shares, count) };
    alloc("jia_alloc_array", bytes, &Placement::Shares(shares))
}

/// All on one process, chosen at random.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_alloc_random(bytes: c_ulong) -> c_ulong {
    alloc("jia_alloc_random", bytes, &Placement::Random)
}

/// The implementation of `jia_falloc` in the header.
///
/// # Safety
/// `blocks` points to `count` numbers if the flag requires them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferroce_jia_place(
    bytes: c_ulong,
    flag: c_int,
    block: c_ulong,
    blocks: *const c_int,
    count: c_int,
    home: c_int,
) -> c_ulong {
    let call = "jia_falloc";
    let placement = match flag {
        CYCLIC => cyclic(block, home),
        ON_HOME => Placement::On(named("process", home)),
        ROTATING => Placement::Rotating,
        RANDOM => Placement::Random,
        TRIPS => {
            // SAFETY: the caller's promise, for this flag.
            let blocks = unsafe { sizes(call, blocks, count) };
            Placement::Trips { blocks, first: named("process", home) }
        }
        // SAFETY: as above.
        SHARES => Placement::Shares(unsafe { sizes(call, blocks, count) }),
        other => fail(&format!("{call}: flag {other} does not exist")),
    };
    alloc(call, bytes, &placement)
}

/// Frees memory; all processes call it. NULL has no effect, as with `free`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_free(memory: *mut c_void) {
    if !memory.is_null() {
        run("jia_free", |job| job.free(memory.cast()));
    }
}

/// Copies out of shared memory.
///
/// # Safety
/// `into` points to `bytes` bytes of private memory that no other thread accesses.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_get(
    into: *mut c_void,
    shared: *const c_void,
    bytes: c_ulong,
) -> *mut c_uchar {
    if bytes > 0 {
        // SAFETY: the caller's promise. The buffer may be uninitialised, so its bytes are only written.
        run("jia_get", |job| job.get(unsafe { writable(into, bytes as usize) }, shared.cast()));
    }
    into.cast()
}

/// Copies into shared memory.
///
/// # Safety
/// `from` points to `bytes` bytes of private memory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_put(from: *const c_void, shared: *mut c_void, bytes: c_ulong) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        run("jia_put", |job| job.put(shared.cast(), unsafe { readable(from, bytes as usize) }));
    }
}
