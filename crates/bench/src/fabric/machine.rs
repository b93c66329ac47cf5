//! The machine, and its load by other programs.

use std::time::Duration;

use ferroce_cli::machine::{Machine as Facts, ProcessorTime, utc_now};
use serde_json::{Value, json};

/// Busy share above which other work distorts the figures.
const BUSY: f64 = 0.1;

/// The machine, just before the first round.
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    date: String,
    /// The path MTU that perftest takes by default; 0 if there is no device.
    active_mtu: u32,
    /// The busy share of CPU time, over one second before the first round.
    busy: f64,
    /// The share of CPU time that the hypervisor gave to other guests during the rounds.
    stolen: f64,
}

impl Machine {
    /// Observes the machine for a second.
    pub(crate) fn observe() -> Self {
        let before = ProcessorTime::now();
        std::thread::sleep(Duration::from_secs(1));
        let busy = before.zip(ProcessorTime::now()).and_then(|(before, after)| after.busy_since(before));
        let Facts { cpu, cores, kernel, .. } = Facts::describe();
        let date = utc_now().split(' ').next().unwrap_or_default().to_owned();
        let active_mtu = ferroce::Device::open().map_or(0, |device| device.attributes().active_mtu);
        Self { cpu, cores, kernel, date, active_mtu, busy: busy.unwrap_or(0.0), stolen: 0.0 }
    }

    /// Runs `work` and records the CPU time that was stolen during it.
    pub(crate) fn watch<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = ProcessorTime::now();
        let done = work();
        let stolen = before.zip(ProcessorTime::now()).and_then(|(before, after)| after.stolen_since(before));
        self.stolen = stolen.unwrap_or(0.0);
        done
    }

    /// A warning if the machine does other work.
    pub(crate) fn warning(&self) -> Option<String> {
        let percent = 100.0 * self.busy;
        (self.busy > BUSY).then(|| {
            format!("the machine is {percent:.0} % busy with other work: these figures are not valid")
        })
    }

    /// One sentence for the page.
    pub(crate) fn line(&self) -> String {
        let Self { cpu, cores, kernel, date, active_mtu, busy, stolen } = self;
        format!(
            "{cpu}, {cores} cores, {kernel}, {date}, path MTU {active_mtu}; {:.0} % busy with other things before the first round, {:.0} % of \
             its time taken by others on the same hardware during the rounds.",
            100.0 * busy,
            100.0 * stolen
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { cpu, cores, kernel, date, active_mtu, busy, stolen } = self;
        json!({"cpu": cpu, "cores": cores, "kernel": kernel, "date": date, "active_mtu": active_mtu, "busy": busy, "stolen": stolen})
    }
}

#[cfg(test)]
pub(crate) fn example() -> Machine {
    Machine {
        cpu: "Z80".to_owned(),
        cores: 2,
        kernel: "Linux 6.1".to_owned(),
        date: "2026-01-31".to_owned(),
        active_mtu: 1024,
        busy: 0.25,
        stolen: 0.03,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_reported() {
        assert!(example().warning().is_some_and(|warning| warning.contains("25 % busy")));
        assert!(Machine { busy: 0.05, ..example() }.warning().is_none());
    }
}
