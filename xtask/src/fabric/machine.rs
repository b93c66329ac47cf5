//! Where it was measured: a figure without it is no figure.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

/// Above this, others disturb what is measured.
const BUSY: f64 = 0.1;

/// The machine, just before the first round.
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    date: String,
    /// The share of its time in which it did something, over one second before the first round.
    busy: f64,
    /// The share of its processors' time that the machine below gave to others while it measured.
    stolen: f64,
}

impl Machine {
    /// Looks, for a second.
    pub(crate) fn look() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let before = text("/proc/stat");
        std::thread::sleep(Duration::from_secs(1));
        let date = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
        Self {
            cpu: cpu_model(&text("/proc/cpuinfo")).unwrap_or("unknown processor").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("Linux {}", text("/proc/sys/kernel/osrelease").trim()),
            date: date.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default(),
            busy: busy_share(&before, &text("/proc/stat")).unwrap_or(0.0),
            stolen: 0.0,
        }
    }

    /// Does what is to be measured, and looks what others took meanwhile.
    pub(crate) fn watch<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let text = || std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let before = text();
        let done = work();
        self.stolen = stolen_share(&before, &text()).unwrap_or(0.0);
        done
    }

    /// What to tell who measures a machine that does other things.
    pub(crate) fn warning(&self) -> Option<String> {
        let percent = 100.0 * self.busy;
        (self.busy > BUSY).then(|| {
            format!("the machine is {percent:.0} % busy with other things: do not trust these figures")
        })
    }

    /// One sentence for the page.
    pub(crate) fn line(&self) -> String {
        let Self { cpu, cores, kernel, date, busy, stolen } = self;
        format!(
            "{cpu}, {cores} cores, {kernel}, {date}; {:.0} % busy with other things before the first round, {:.0} % of its time taken by \
             others on the same hardware during the rounds.",
            100.0 * busy,
            100.0 * stolen
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { cpu, cores, kernel, date, busy, stolen } = self;
        json!({"cpu": cpu, "cores": cores, "kernel": kernel, "date": date, "busy": busy, "stolen": stolen})
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

/// Between two looks at /proc/stat.
fn busy_share(before: &str, after: &str) -> Option<f64> {
    let [(idle_before, all_before), (idle_after, all_after)] = [ticks(before)?, ticks(after)?];
    let all = all_after.checked_sub(all_before).filter(|all| *all > 0)?;
    Some(1.0 - idle_after.checked_sub(idle_before)? as f64 / all as f64)
}

/// The same of what was stolen.
fn stolen_share(before: &str, after: &str) -> Option<f64> {
    let stolen = |stat: &str| stat.split_whitespace().nth(8)?.parse::<u64>().ok();
    let all = ticks(after)?.1.checked_sub(ticks(before)?.1).filter(|all| *all > 0)?;
    Some(stolen(after)?.checked_sub(stolen(before)?)? as f64 / all as f64)
}

/// Idle ticks, waiting for disks included, and all ticks of all processors.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let ticks: Vec<u64> =
        stat.lines().next()?.split_whitespace().filter_map(|word| word.parse().ok()).take(8).collect();
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()))
}

#[cfg(test)]
pub(crate) fn example() -> Machine {
    Machine {
        cpu: "Z80".to_owned(),
        cores: 2,
        kernel: "Linux 6.1".to_owned(),
        date: "2026-01-31".to_owned(),
        busy: 0.25,
        stolen: 0.03,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named() {
        let text =
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor @ 2.60GHz\n";
        assert_eq!(cpu_model(text), Some("Intel(R) Xeon(R) Processor @ 2.60GHz"));
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn others_are_noticed() {
        let before = "cpu  1000 0 500 8000 100 0 10 20 0 0\ncpu0 1 2 3\n";
        let after = "cpu  1050 0 550 8090 110 0 10 20 0 0\ncpu0 1 2 3\n";
        assert_eq!(busy_share(before, after), Some(0.5));
        assert_eq!(busy_share(before, before), None);
        let robbed = "cpu  1050 0 550 8040 110 0 10 70 0 0\ncpu0 1 2 3\n";
        assert_eq!(stolen_share(before, robbed), Some(0.25));
        assert_eq!(stolen_share(before, after), Some(0.0));
        assert_eq!(stolen_share("", after), None);
        assert_eq!(busy_share("", after), None);
        assert!(example().warning().is_some_and(|warning| warning.contains("25 % busy")));
    }
}
