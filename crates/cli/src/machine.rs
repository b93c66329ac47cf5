//! Describes the machine that was measured, its CPU time, and the date.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The facts that a measurement needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Main memory.
    pub memory_bytes: u64,
    /// Operating system and kernel version.
    pub kernel: String,
    /// Whether the processor is a virtual one.
    pub virtualised: bool,
    /// Maximum size of a socket's receive buffer in bytes.
    pub rmem_max_bytes: u64,
    /// Version of this program.
    pub ferroce: String,
    /// Whether it was built with optimisation; figures without it are meaningless.
    pub optimised: bool,
}

impl Machine {
    /// Describes this machine; unreadable values are reported as unknown.
    pub fn describe() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| cpu_field(&cpuinfo, name).unwrap_or_default().to_owned();
        let cpu = [field("model name"), field("Model"), std::env::consts::ARCH.to_owned()];
        let uname = rustix::system::uname();
        Machine {
            cpu: cpu.into_iter().find(|name| !name.is_empty()).unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(&read("/proc/meminfo")),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            virtualised: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            rmem_max_bytes: read("/proc/sys/net/core/rmem_max").trim().parse().unwrap_or(0),
            ferroce: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
        }
    }
}

/// Time of all processors together, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessorTime {
    all: u64,
    /// Idle; includes waiting for disks.
    idle: u64,
    /// Runnable, but the hypervisor ran other guests.
    stolen: u64,
}

impl ProcessorTime {
    /// The total up to now; `None` if the kernel does not report it.
    pub fn now() -> Option<ProcessorTime> {
        ProcessorTime::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<ProcessorTime> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        // The fields behind these count the time of guests a second time.
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).take(8).collect();
        Some(ProcessorTime {
            all: ticks.iter().sum(),
            idle: ticks.get(3)? + ticks.get(4)?,
            stolen: *ticks.get(7)?,
        })
    }

    /// The share that was stolen since `before`.
    pub fn stolen_since(self, before: ProcessorTime) -> Option<f64> {
        self.share_since(before, |time| time.stolen)
    }

    /// The share since `before` in which processors were not idle.
    pub fn busy_since(self, before: ProcessorTime) -> Option<f64> {
        self.share_since(before, |time| time.idle).map(|idle| 1.0 - idle)
    }

    fn share_since(self, before: ProcessorTime, part: fn(ProcessorTime) -> u64) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(part(self).checked_sub(part(before))? as f64 / all as f64)
    }
}

fn cpu_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, v)| v.trim())
}

fn memory_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// The present moment as `2026-03-21 14:05:09 UTC`.
pub fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// A time in seconds since 1970 as date.
pub(crate) fn utc(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Date of the proleptic Gregorian calendar, that many days after 1970-01-01. Years are counted from March, so
/// that the leap day is the last of a year and all months begin at the same offset in every year.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_measured() {
        let at = |text: &str| ProcessorTime::parse(text);
        let before = at("cpu  1000 0 500 8000 100 0 10 20 5 0\ncpu0 1 2 3\n").unwrap();
        let after = at("cpu  1050 0 550 8050 100 0 10 70 9 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!((after.stolen_since(before), after.busy_since(before)), (Some(0.25), Some(0.75)));
        assert_eq!(before.stolen_since(after), None);
        assert_eq!(before.stolen_since(before), None);
        assert_eq!(at("cpu 1 2 3\n"), None);
        assert_eq!(at(""), None);
        assert!(ProcessorTime::now().is_some());
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil_date(0);
        for days in 1..200 * 365 {
            let date = civil_date(days);
            let next = date.2 == before.2 + 1 && date.1 == before.1
                || date.2 == 1
                    && date.1 == before.1 % 12 + 1
                    && date.0 == before.0 + u64::from(before.1 == 12);
            assert!(next, "{before:?} then {date:?}");
            before = date;
        }
    }

    #[test]
    fn odd_proc_files_are_harmless() {
        assert_eq!(memory_bytes(""), 0);
        assert_eq!(memory_bytes("MemTotal:       16 kB\n"), 16384);
        assert_eq!(cpu_field("model name\t: A: B\n", "model name"), Some("A: B"));
    }
}
