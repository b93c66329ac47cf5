//! The keys of a scenario file. Unknown keys are mistakes.

use ferroce_proto::wire::{Aeth, ETHERNET_OVERHEAD};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: String,
    #[serde(default)]
    pub(super) about: String,
    #[serde(default = "one")]
    pub(super) seed: u64,
    /// Flows start before this time.
    pub(super) duration: String,
    /// The run ends at this time; without it at `duration`.
    pub(super) limit: Option<String>,
    pub(super) sample: Option<String>,
    pub(super) control: Option<String>,
    #[serde(default)]
    pub(super) loss: f64,
    pub(super) topology: Shape,
    #[serde(default)]
    pub(super) switch: Switch,
    #[serde(default)]
    pub(super) host: Host,
    #[serde(default)]
    pub(super) workload: Vec<Workload>,
    #[serde(default)]
    pub(super) variant: Vec<Variant>,
    /// Commands of `ferroce fabric live`.
    #[serde(default)]
    pub(super) run: Vec<super::live::RunTable>,
}

fn one() -> u64 {
    1
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Shape {
    Star {
        hosts: u32,
        rate: String,
        delay: String,
    },
    Dumbbell {
        left: u32,
        right: u32,
        rate: String,
        trunk_rate: Option<String>,
        delay: String,
        trunk_delay: Option<String>,
    },
    ParkingLot {
        hosts: Vec<u32>,
        rate: String,
        trunk_rate: Option<String>,
        delay: String,
    },
    LeafSpine {
        leaves: u32,
        spines: u32,
        hosts_per_leaf: u32,
        rate: String,
        trunk_rate: Option<String>,
        delay: String,
    },
    FatTree {
        k: Option<u32>,
        pods: Option<u32>,
        tors: Option<u32>,
        aggs: Option<u32>,
        cores_per_agg: Option<u32>,
        hosts_per_tor: Option<u32>,
        rate: String,
        trunk_rate: Option<String>,
        delay: String,
    },
    File {
        path: String,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Switch {
    pub(super) buffer: String,
    pub(super) pfc: bool,
    pub(super) alpha: f64,
    pub(super) egress_alpha: f64,
    pub(super) reserve: String,
    pub(super) headroom: Option<String>,
    pub(super) balance: String,
    pub(super) ecn: Option<Ecn>,
}

impl Default for Switch {
    fn default() -> Switch {
        Switch {
            buffer: "32MB".into(),
            pfc: true,
            alpha: 0.125,
            egress_alpha: 1.0,
            reserve: "4kB".into(),
            headroom: None,
            balance: "ecmp".into(),
            ecn: None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ecn {
    pub(super) kmin: String,
    pub(super) kmax: String,
    pub(super) pmax: f64,
    /// The port rate for which the thresholds are given; they scale with the rate of a port.
    pub(super) at: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Host {
    pub(super) model: String,
    pub(super) mtu: u32,
    pub(super) header: u32,
    pub(super) ack: u32,
    pub(super) telemetry: u32,
    pub(super) recovery: String,
    pub(super) ack_every: u32,
    pub(super) rto: String,
    pub(super) rto_low: Option<String>,
    pub(super) nack_interval: String,
    pub(super) reorder: u32,
    pub(super) ack_priority: u8,
    pub(super) base_rtt: Option<String>,
}

impl Default for Host {
    /// ferroce over Ethernet. An ACK has an AETH instead of a payload.
    fn default() -> Host {
        Host {
            model: "light".into(),
            mtu: 1024,
            header: ETHERNET_OVERHEAD,
            ack: ETHERNET_OVERHEAD + Aeth::LEN as u32,
            telemetry: 42,
            recovery: "go-back-n".into(),
            ack_every: 1,
            rto: "4ms".into(),
            rto_low: None,
            nack_interval: "500us".into(),
            reorder: 0,
            ack_priority: 0,
            base_rtt: None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Workload {
    Poisson {
        cdf: String,
        load: f64,
        #[serde(default = "three")]
        priority: u8,
    },
    Incast {
        fan_in: u32,
        size: String,
        to: Option<u32>,
        start: Option<String>,
        /// Offered load of the incasts as a share of the rate of all hosts; without it there is one incast.
        load: Option<f64>,
        #[serde(default = "three")]
        priority: u8,
    },
    AllToAll {
        size: String,
        hosts: Option<u32>,
        start: Option<String>,
        #[serde(default = "three")]
        priority: u8,
    },
    AllReduce {
        size: String,
        hosts: Option<u32>,
        start: Option<String>,
        #[serde(default = "three")]
        priority: u8,
    },
    /// Single flows: sender, receiver, size, start.
    Flows {
        flows: Vec<(u32, u32, String, String)>,
        #[serde(default = "three")]
        priority: u8,
    },
    Trace {
        path: String,
        #[serde(default = "three")]
        priority: u8,
    },
}

fn three() -> u8 {
    3
}

impl Workload {
    /// The priority, clamped to those that carry data; [`super::traffic`] refuses others.
    pub(super) fn priority(&self) -> u8 {
        self.stated_priority().clamp(1, 7)
    }

    pub(super) fn stated_priority(&self) -> u8 {
        match self {
            Workload::Poisson { priority, .. }
            | Workload::Incast { priority, .. }
            | Workload::AllToAll { priority, .. }
            | Workload::AllReduce { priority, .. }
            | Workload::Flows { priority, .. }
            | Workload::Trace { priority, .. } => *priority,
        }
    }
}

/// What one run changes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variant {
    pub(super) name: Option<String>,
    pub(super) control: Option<String>,
    pub(super) pfc: Option<bool>,
    pub(super) ecn: Option<Ecn>,
    pub(super) balance: Option<String>,
    pub(super) recovery: Option<String>,
    pub(super) model: Option<String>,
    pub(super) reorder: Option<u32>,
    pub(super) rto: Option<String>,
    pub(super) rto_low: Option<String>,
    pub(super) loss: Option<f64>,
    /// Replaces `fan_in` of every incast.
    pub(super) fan_in: Option<u32>,
    /// Replaces `size` of every collective and incast.
    pub(super) size: Option<String>,
    /// Replaces `load` of every Poisson workload.
    pub(super) load: Option<f64>,
}
