//! How deregistration waits for local peers that access a region, and never for a dead one.
//!
//! To access a region of a local peer, a process first writes the number of its descriptor into a word of the local peer's segment that
//! belongs to its own slot, then checks that the descriptor is still valid, and clears the word afterwards. Deregistration first invalidates
//! the descriptor, then waits until no word of a living process holds the descriptor's number.

use super::segment::{ACCESSES_PER_SLOT, SLOTS, ShmSegment};
use crate::registry::Registry;
use ferroce_os::sync::{Ordering, spin_loop, yield_now};
use std::time::Duration;

/// The word that announces an access in progress.
#[derive(Clone, Copy, Debug)]
pub struct AccessToken(usize);

/// Announces an access by `slot` to the region behind `descriptor`, until it is [ended](end). Returns `None` if all words
/// are in use. `free` is where the caller found a free word the last time: so queue pairs that different threads use do not contend for
/// one word.
#[inline(always)]
pub(crate) fn begin(
    segment: &ShmSegment,
    slot: u8,
    descriptor: usize,
    free: &mut usize,
) -> Option<AccessToken> {
    if !occupy(segment, slot, descriptor, *free) {
        *free = another(segment, slot, descriptor, *free)?;
    }
    Some(AccessToken(*free))
}

/// Announces the access in any word other than `taken`.
#[inline(never)]
fn another(segment: &ShmSegment, slot: u8, descriptor: usize, taken: usize) -> Option<usize> {
    let mut others = taken + 1..taken + ACCESSES_PER_SLOT;
    others.find(|&index| occupy(segment, slot, descriptor, index)).map(|index| index % ACCESSES_PER_SLOT)
}

#[inline(always)]
fn occupy(segment: &ShmSegment, slot: u8, descriptor: usize, index: usize) -> bool {
    // A full barrier: the descriptor's version must be read after it.
    let word = segment.access(slot, index);
    word.compare_exchange(0, descriptor as u32 + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// The access is done.
#[inline]
pub(crate) fn end(segment: &ShmSegment, slot: u8, AccessToken(index): AccessToken) {
    segment.access(slot, index).store(0, Ordering::Release);
}

/// Announces a new life of `slot` at a segment. What an earlier one held there when it died is free.
pub(crate) fn attach(segment: &ShmSegment, slot: u8, instance: u64) {
    if segment.accessor(slot).load(Ordering::Acquire) != instance {
        clear(segment, slot);
        segment.accessor(slot).store(instance, Ordering::Release);
    }
}

fn clear(segment: &ShmSegment, slot: u8) {
    (0..ACCESSES_PER_SLOT).for_each(|index| segment.access(slot, index).store(0, Ordering::Release));
}

/// Waits until nobody accesses the region behind `descriptor` any more. Its descriptor is no longer valid.
pub(crate) fn wait_for(segment: &ShmSegment, descriptor: usize, registry: &Registry) {
    for slot in 0..SLOTS {
        let slot = slot as u8;
        let is_held = || {
            (0..ACCESSES_PER_SLOT)
                .any(|i| segment.access(slot, i).load(Ordering::SeqCst) == descriptor as u32 + 1)
        };
        let mut looks = 0_u32;
        while is_held() {
            looks += 1;
            match looks {
                ..1000 => spin_loop(),
                1000..2000 => yield_now(),
                _ => {
                    if !lives(segment, slot, registry) {
                        clear(segment, slot);
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }
}

/// Whether the process that announced itself for `slot` is still there, and not another in its segment.
fn lives(segment: &ShmSegment, slot: u8, registry: &Registry) -> bool {
    let instance = segment.accessor(slot).load(Ordering::Acquire);
    registry.is_alive(slot)
        && ShmSegment::open(registry.directory(), slot).is_ok_and(|now| now.instance() == instance)
}
