//! Samples for the pages, and the processes that no longer answer.

use crate::counters::Report;
use crate::top::sample::{Device, DeviceId, DeviceRates, QpId, QpRates, Sample, Sampler};
use ferroce_nic::inspect;
use std::time::{Duration, Instant};

/// A younger sample serves further pages too, so that its rates cover a reasonable time.
const MAX_SAMPLE_AGE: Duration = Duration::from_millis(400);
/// How long a process stays on the page after its last answer.
const ENDED_SHOWN_FOR: Duration = Duration::from_secs(30);
/// Processes that are remembered.
const MAX_ENDED: usize = 100;

/// Takes samples when a page requests data.
#[derive(Default)]
pub(super) struct Watch {
    sampler: Sampler,
    taken: Option<Instant>,
    sample: Sample,
    gone: Vec<(Device, Instant)>,
}

/// The processes that a page shows.
pub(super) struct Observed {
    /// All processes, the gone ones last.
    pub(super) sample: Sample,
    /// Those that no longer answer, and for how long.
    pub(super) gone: Vec<(DeviceId, Duration)>,
}

impl Observed {
    /// For how long a device has not answered; none if it does.
    pub(super) fn gone_for(&self, id: DeviceId) -> Option<Duration> {
        self.gone.iter().find(|(gone, _)| *gone == id).map(|(_, since)| *since)
    }
}

impl Watch {
    /// The processes now, with the history of one queue pair.
    pub(super) fn observe(&mut self, history_of: Option<QpId>) -> Observed {
        if self.taken.is_none_or(|taken| taken.elapsed() >= MAX_SAMPLE_AGE) {
            let sample = self.sampler.take(history_of);
            self.update(sample, Instant::now());
        } else if let Some(id) = history_of
            && let Some(device) =
                self.sample.devices.iter_mut().find(|device| device.id() == (id.pid, id.slot))
            && let Some(mut now) = Report::of(inspect::whole(Some((id.slot, id.qpn))))
                .devices
                .into_iter()
                .find(|device| (device.pid, device.slot) == (id.pid, id.slot))
        {
            device.snapshot.objects.history = now.objects.history.take();
        }
        self.observed(Instant::now())
    }

    /// Replaces the sample, and remembers who is no longer in it.
    pub(super) fn update(&mut self, sample: Sample, now: Instant) {
        let is_there = |id: DeviceId| sample.devices.iter().any(|device| device.id() == id);
        let before = std::mem::take(&mut self.sample.devices).into_iter();
        self.gone.extend(before.map(|device| (without_rates(device), now)));
        self.gone
            .retain(|(device, since)| !is_there(device.id()) && now.duration_since(*since) < ENDED_SHOWN_FOR);
        let too_many = self.gone.len().saturating_sub(MAX_ENDED);
        self.gone.drain(..too_many);
        (self.sample, self.taken) = (sample, Some(now));
    }

    pub(super) fn observed(&self, now: Instant) -> Observed {
        let mut sample = self.sample.clone();
        sample.devices.extend(self.gone.iter().map(|(device, _)| device.clone()));
        let gone = self.gone.iter().map(|(device, since)| (device.id(), now.duration_since(*since)));
        Observed { sample, gone: gone.collect() }
    }

    /// Whether the last sample has a process.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.sample.devices.iter().any(|device| device.snapshot.pid == pid)
    }
}

/// A process that is gone has no rates.
fn without_rates(mut device: Device) -> Device {
    device.rates = DeviceRates::default();
    device.qp_rates.fill(QpRates::default());
    device.reason_rates.values_mut().for_each(|rate| *rate = 0.0);
    device
}
