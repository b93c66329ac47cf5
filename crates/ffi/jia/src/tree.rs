//! Broadcasts and reductions over a tree of messages.
//!
//! Processes are numbered from the root. The parent of process r is r without its lowest set bit, so a message takes at most
//! log2(n) hops. The tags of both are negative, so they never match a program's own messages. Messages of one sender and tag keep
//! their order, so two broadcasts cannot be confused.

use crate::messages::{length, readable, writable};
use crate::process::{fail, named, run};
use ferroce_dsm::{Error, Job};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

const BROADCAST_TAG: i32 = -2;
const REDUCE_TAG: i32 = -3;

/// Whether broadcasts use a tree. With `jia_config(BROADCAST, OFF)` the root sends to all, which can be faster for a
/// short message to few processes.
static TREE: AtomicBool = AtomicBool::new(true);

/// Set by `jia_config`.
pub(crate) fn shape(tree: bool) {
    TREE.store(tree, Ordering::Relaxed);
}

/// The parent of this process, counted from the root; the root has none.
fn parent(relative: u32) -> Option<u32> {
    (relative != 0).then(|| relative & (relative - 1))
}

/// The children of this process. The one with the largest subtree comes first, since its path is the longest.
fn children(relative: u32, size: u32) -> impl Iterator<Item = u32> {
    let lowest = if relative == 0 { size.next_power_of_two() } else { relative & relative.wrapping_neg() };
    let bits = std::iter::successors(Some(lowest / 2), |bit| Some(bit / 2)).take_while(|&bit| bit > 0);
    bits.map(move |bit| relative + bit).filter(move |&child| child < size)
}

fn broadcast(job: &Job, bytes: &mut [u8], root: u32) -> Result<(), Error> {
    let (size, tree) = (job.size(), TREE.load(Ordering::Relaxed));
    let relative = (job.rank() + size - root) % size;
    let absolute = |relative: u32| (relative + root) % size;
    if let Some(above) = parent(relative) {
        let above = if tree { above } else { 0 };
        let (arrived, ..) = job.recv(Some(absolute(above)), Some(BROADCAST_TAG), bytes)?;
        same_length("jia_bcast", arrived, bytes.len());
    }
    let below: Vec<u32> = match (tree, relative) {
        (true, _) => children(relative, size).collect(),
        (false, 0) => (1..size).collect(),
        (false, _) => Vec::new(),
    };
    below.into_iter().try_for_each(|child| job.send(absolute(child), BROADCAST_TAG, bytes))
}

fn same_length(call: &str, arrived: usize, wanted: usize) {
    if arrived != wanted {
        fail(&format!("{call}: {wanted} bytes here, but {arrived} at another process"));
    }
}

/// Combines the second list of numbers into the first.
type Combine = fn(&mut [u8], &[u8]);

fn fold<const N: usize, T>(
    into: &mut [u8],
    from: &[u8],
    read: fn([u8; N]) -> T,
    write: fn(T) -> [u8; N],
    combine: fn(T, T) -> T,
) {
    for (a, b) in into.chunks_exact_mut(N).zip(from.chunks_exact(N)) {
        let (Ok(left), Ok(right)) = (<[u8; N]>::try_from(&*a), <[u8; N]>::try_from(b)) else { continue };
        a.copy_from_slice(&write(combine(read(left), read(right))));
    }
}

/// The size of a number, and the function that combines two, for an operation of jia.h.
fn operation(number: c_int) -> Option<(usize, Combine)> {
    macro_rules! of {
        ($type:ty, $combine:expr) => {
            (size_of::<$type>(), |into, from| {
                fold(into, from, <$type>::from_ne_bytes, <$type>::to_ne_bytes, $combine)
            })
        };
    }
    Some(match number {
        0 => of!(c_int, c_int::wrapping_add),
        1 => of!(c_int, Ord::max),
        2 => of!(c_int, Ord::min),
        10 => of!(f32, |a, b| a + b),
        11 => of!(f32, f32::max),
        12 => of!(f32, f32::min),
        20 => of!(f64, |a, b| a + b),
        21 => of!(f64, f64::max),
        22 => of!(f64, f64::min),
        _ => return None,
    })
}

fn reduce(job: &Job, own: &mut [u8], combine: Combine, root: u32) -> Result<(), Error> {
    let size = job.size();
    let relative = (job.rank() + size - root) % size;
    let absolute = |relative: u32| (relative + root) % size;
    let mut theirs = vec![0; own.len()];
    // Always in the same order, so that floating-point sums are the same in every run.
    for child in children(relative, size) {
        let (arrived, ..) = job.recv(Some(absolute(child)), Some(REDUCE_TAG), &mut theirs)?;
        same_length("jia_reduce", arrived, own.len());
        combine(own, &theirs);
    }
    parent(relative).map_or(Ok(()), |above| job.send(absolute(above), REDUCE_TAG, own))
}

/// Sends the root's bytes to all processes.
///
/// # Safety
/// `bytes` points to `len` bytes that no other thread accesses.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_bcast(bytes: *mut c_void, len: c_int, root: c_int) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { writable(bytes, length("jia_bcast", len)) };
    run("jia_bcast", |job| broadcast(job, bytes, known_root("jia_bcast", job, root)));
}

/// Combines the numbers of all processes into one list at the root.
///
/// # Safety
/// `numbers` points to `count` numbers of the operation's kind, and so does `result` at the root.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_reduce(
    numbers: *const c_void,
    result: *mut c_void,
    count: c_int,
    kind: c_int,
    root: c_int,
) {
    let call = "jia_reduce";
    let Some((width, combine)) = operation(kind) else {
        fail(&format!("{call}: operation {kind} does not exist"));
    };
    let bytes = length(call, count) * width;
    // SAFETY: the caller's promise.
    let mut own = unsafe { readable(numbers, bytes) }.to_vec();
    run(call, |job| {
        let root = known_root(call, job, root);
        reduce(job, &mut own, combine, root)?;
        if job.rank() == root {
            // SAFETY: the caller's promise, for the root.
            unsafe { writable(result, bytes) }.copy_from_slice(&own);
        }
        Ok(())
    });
}

fn known_root(call: &str, job: &Job, root: c_int) -> u32 {
    let root = named("process", root);
    if root >= job.size() {
        fail(&format!("{call}: process {root} does not exist; the job has {}", job.size()));
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_below_exactly_one_other() {
        for size in 1..70 {
            let mut above = vec![None; size as usize];
            for relative in 0..size {
                for child in children(relative, size) {
                    assert_eq!(above[child as usize].replace(relative), None, "{child} of {size}");
                    assert_eq!(parent(child), Some(relative), "{child} of {size}");
                }
            }
            assert_eq!(above.iter().filter(|above| above.is_none()).count(), 1, "only the root, of {size}");
        }
    }

    #[test]
    fn numbers_are_combined() {
        let check = |kind, mine: &[u8], theirs: &[u8], wanted: &[u8]| {
            let (_, combine) = operation(kind).expect("an operation");
            let mut own = mine.to_vec();
            combine(&mut own, theirs);
            assert_eq!(own, wanted, "operation {kind}");
        };
        let whole = |a: i32| a.to_ne_bytes();
        check(0, &whole(2), &whole(-5), &whole(-3));
        check(1, &whole(2), &whole(-5), &whole(2));
        check(2, &whole(2), &whole(-5), &whole(-5));
        let real = |a: f64| a.to_ne_bytes();
        check(20, &real(0.5), &real(2.0), &real(2.5));
        check(21, &real(0.5), &real(2.0), &real(2.0));
        check(22, &real(0.5), &real(2.0), &real(0.5));
        assert!(operation(3).is_none() && operation(23).is_none());
    }
}
