//! Splits a loop: evenly, or by the measured speed of each process.

use crate::process::{guarded, run};
use ferroce_dsm::{Error, Job, Statistics};
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const TAG: i32 = -4;
/// Differences below this are ignored: moving work moves pages, too.
const TOLERANCE: f64 = 0.05;

static BY_SPEED: AtomicBool = AtomicBool::new(false);
static SPEED: Mutex<Speed> = Mutex::new(Speed { shares: Vec::new(), since: None });

struct Speed {
    /// Share of the work of each process; empty means equal shares.
    shares: Vec<f64>,
    /// The start of the current section, and the waiting time of this process until then, in nanoseconds.
    since: Option<(Instant, u64)>,
}

/// Set by `jia_config(LOADBAL, …)`.
pub(crate) fn switch(on: bool) {
    BY_SPEED.store(on, Ordering::Relaxed);
}

fn waited_ns(statistics: &Statistics) -> u64 {
    statistics.lock_wait_ns + statistics.barrier_wait_ns + statistics.fault_ns
}

/// The first index of each process' share of `count`, followed by `count`.
fn bounds(shares: &[f64], count: i64) -> Vec<i64> {
    let mut sum = 0.0;
    let inner = shares.iter().map(|share| {
        sum += share;
        ((sum * count as f64).round() as i64).clamp(0, count)
    });
    let mut bounds: Vec<i64> = std::iter::once(0).chain(inner).collect();
    bounds.last_mut().into_iter().for_each(|last| *last = count);
    bounds
}

/// The new shares, from the old ones and the time that each process needed.
fn renewed(shares: &[f64], busy: &[f64]) -> Vec<f64> {
    let (least, most) = busy.iter().fold((f64::MAX, 0.0_f64), |(a, b), &t| (a.min(t), b.max(t)));
    if least <= 0.0 || most - least <= TOLERANCE * most {
        return shares.to_vec();
    }
    let speeds: Vec<f64> = shares.iter().zip(busy).map(|(share, time)| share.max(1e-3) / time).collect();
    let all: f64 = speeds.iter().sum();
    speeds.into_iter().map(|speed| speed / all).collect()
}

/// Exchanges the times of all processes.
fn exchange(job: &Job, busy: f64) -> Result<Vec<f64>, Error> {
    let others = (0..job.size()).filter(|&rank| rank != job.rank());
    others.clone().try_for_each(|rank| job.send(rank, TAG, &busy.to_ne_bytes()))?;
    let mut all = vec![busy; job.size() as usize];
    for rank in others {
        let mut bytes = [0; 8];
        job.recv(Some(rank), Some(TAG), &mut bytes)?;
        all[rank as usize] = f64::from_ne_bytes(bytes);
    }
    Ok(all)
}

/// Computes this process' part of a loop.
///
/// # Safety
/// Both point to numbers: the first and the last index.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn jia_divtask(begin: *mut c_int, end: *mut c_int) {
    // SAFETY: the caller's promise.
    let (first, last) = unsafe { (i64::from(*begin), i64::from(*end)) };
    let (from, to) = run("jia_divtask", |job| {
        let mut speed = SPEED.lock();
        let size = job.size() as usize;
        speed.since.get_or_insert_with(|| (Instant::now(), waited_ns(&job.statistics())));
        let even = vec![1.0 / size as f64; size];
        let shares = match speed.shares.is_empty() || !BY_SPEED.load(Ordering::Relaxed) {
            true => &even,
            false => &speed.shares,
        };
        let bounds = bounds(shares, (last - first + 1).max(0));
        let rank = job.rank() as usize;
        Ok((first + bounds[rank], first + bounds[rank + 1] - 1))
    });
    // SAFETY: the caller's promise. Both results lie between `first - 1` and `last`, which fit.
    unsafe { (*begin, *end) = (from as c_int, to as c_int) };
}

/// With LOADBAL on, measures the processes and computes the shares for the next loops. All processes call it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_loadcheck() {
    if !BY_SPEED.load(Ordering::Relaxed) {
        return guarded("jia_loadcheck", || Ok(()));
    }
    run("jia_loadcheck", |job| {
        let waited = waited_ns(&job.statistics());
        let (since, before) = SPEED.lock().since.unwrap_or((Instant::now(), waited));
        let busy = since.elapsed().as_secs_f64() - (waited.saturating_sub(before)) as f64 * 1e-9;
        let all = exchange(job, busy.max(0.0))?;
        let mut speed = SPEED.lock();
        if speed.shares.is_empty() {
            speed.shares = vec![1.0 / all.len() as f64; all.len()];
        }
        speed.shares = renewed(&speed.shares, &all);
        speed.since = Some((Instant::now(), waited_ns(&job.statistics())));
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_loop_without_overlap() {
        assert_eq!(bounds(&[0.5, 0.5], 7), [0, 4, 7]);
        assert_eq!(bounds(&[0.25; 4], 2), [0, 1, 1, 2, 2]);
        assert_eq!(bounds(&[0.9, 0.1], 10), [0, 9, 10]);
        assert_eq!(bounds(&[1.0], 0), [0, 0]);
    }

    #[test]
    fn the_faster_gets_more() {
        let shares = renewed(&[0.5, 0.5], &[1.0, 3.0]);
        assert!((shares[0] - 0.75).abs() < 1e-9 && (shares[1] - 0.25).abs() < 1e-9, "{shares:?}");
        assert_eq!(renewed(&[0.5, 0.5], &[1.0, 1.01]), [0.5, 0.5], "near enough");
        assert_eq!(renewed(&[0.5, 0.5], &[0.0, 1.0]), [0.5, 0.5], "nothing was measured");
    }
}
