//! Two sides that poll need two cores. The scheduler cannot see that a polling process only waits. It may put both on
//! one core and let each use a whole time slice: then a latency of two microseconds becomes four milliseconds.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which of the two sides of the suite this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The measuring one.
    Client,
    /// The other one.
    Server,
}

/// Pins this thread to one core until it is dropped.
pub(crate) struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// Pins to the side's core. Has no effect with a single core, or where it is not allowed.
    pub(crate) fn to_core_of(side: Side) -> Pinned {
        let Ok(before) = sched_getaffinity(None) else { return Pinned { before: None } };
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).collect();
        let Some((first, second)) = two_cores(&allowed, siblings) else { return Pinned { before: None } };
        let mut own = CpuSet::new();
        own.set(if side == Side::Client { first } else { second });
        Pinned { before: sched_setaffinity(None, &own).is_ok().then_some(before) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The old mask was allowed a moment ago; if it fails, the thread just stays pinned.
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Whether there is only one core: then a side that polls must yield, or the other never runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SingleCore(bool);

impl SingleCore {
    /// Reads the number of cores. Must be called before this thread is pinned: a pinned thread sees one core.
    pub(crate) fn new() -> SingleCore {
        SingleCore(std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1))
    }

    /// For a side that polls like a foreign program.
    pub(crate) fn ignored() -> SingleCore {
        SingleCore(false)
    }

    /// Must be called after an empty poll. Does nothing if there are several cores.
    #[inline]
    pub(crate) fn yield_core(self) {
        if self.0 {
            std::thread::yield_now();
        }
    }
}

/// Two of the allowed processors, if possible not two threads of one core.
fn two_cores(allowed: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Option<(usize, usize)> {
    let (&first, others) = allowed.split_first()?;
    let same_core = siblings(first);
    let second = others.iter().find(|cpu| !same_core.contains(cpu)).or(others.first())?;
    Some((first, *second))
}

/// The processors that share a core with this one.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(&std::fs::read_to_string(path).unwrap_or_default())
}

/// Reads `0,4-6`; ignores everything else.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        Some(from..=to.min(CpuSet::MAX_CPU))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_are_avoided() {
        let pairs = |cpu: usize| vec![cpu & !1, cpu | 1];
        assert_eq!(two_cores(&[0, 1, 2, 3], pairs), Some((0, 2)));
        assert_eq!(two_cores(&[0, 1], pairs), Some((0, 1)));
        assert_eq!(two_cores(&[5, 9], |cpu| vec![cpu]), Some((5, 9)));
        assert_eq!(two_cores(&[3], pairs), None);
        assert_eq!(two_cores(&[], pairs), None);
    }

    #[test]
    fn processor_lists() {
        assert_eq!(parse_list("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(parse_list(""), [] as [usize; 0]);
        assert_eq!(parse_list("x,2,3-,7-5"), [2]);
    }

    #[test]
    fn the_affinity_mask_is_restored() {
        let mask = || sched_getaffinity(None).map(|set| set.count());
        let before = mask();
        drop(Pinned::to_core_of(Side::Server));
        assert_eq!(mask(), before);
    }
}
