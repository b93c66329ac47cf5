//! The presets: which algorithm, with whose values.

use super::Value::{Bytes, Number, Rate, Share, Time};
use super::{Controller, FixedWindow, HalvingWindow, Path, Preset, window_of};
use super::{cubic, dcqcn, dctcp, halving, hpcc, irn, powertcp, swift, theta, timely, vegas};
use alloc::boxed::Box;

macro_rules! boxed {
    ($module:ident::$type:ident) => {
        |values: &[f64], path: &Path| {
            Controller::Boxed(Box::new($module::$type::new($module::Params::new(values), path)))
        }
    };
}

const DCQCN_NIC: &[(&str, super::Value)] = &[
    ("cnp_interval", Time(4e3)),
    ("decrease_interval", Time(4e3)),
    ("alpha_interval", Time(1e3)),
    ("alpha_timer", Number(1.0)),
    ("g", Number(5.0 / 1024.0)),
    ("increase_interval", Time(300e3)),
    ("byte_counter", Bytes(0.0)),
    ("fast_recovery", Number(1.0)),
    ("rai", Share(0.0002)),
    ("rhai", Share(0.002)),
    ("hai_grows", Number(0.0)),
    ("min_rate", Rate(1e6)),
    ("clamp_target", Number(0.0)),
];

/// HPCC's simulator: the NIC's algorithm, but each ACK echoes the mark, the first CNP only starts the timer of the cuts, and the
/// lowest rate is higher.
const DCQCN_HPCC: &[(&str, super::Value)] = &[
    ("delay_first", Number(1.0)),
    ("decrease_interval", Time(4e3)),
    ("alpha_interval", Time(1e3)),
    ("alpha_timer", Number(1.0)),
    ("increase_interval", Time(300e3)),
    ("byte_counter", Bytes(0.0)),
    ("fast_recovery", Number(1.0)),
    ("rai", Share(0.0002)),
    ("rhai", Share(0.002)),
    ("hai_grows", Number(0.0)),
    ("min_rate", Share(0.001)),
    ("clamp_target", Number(0.0)),
    ("echo", Number(1.0)),
];

/// Every controller that a user can choose.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "dcqcn-paper",
        citation: "Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015; rhai of the authors' simulator",
        params: dcqcn::Params::TABLE,
        overrides: &[],
        build: boxed!(dcqcn::Dcqcn),
    },
    Preset {
        name: "dcqcn-nic",
        citation: "defaults of ConnectX-4 and later NICs; increases scaled from 25 Gb/s to the line rate, no byte counter, as in HPCC's simulator",
        params: dcqcn::Params::TABLE,
        overrides: DCQCN_NIC,
        build: boxed!(dcqcn::Dcqcn),
    },
    Preset {
        name: "dcqcn-hpcc",
        citation: "\"dcqcn\" of the simulator published with Li et al., HPCC, SIGCOMM 2019: ACKs echo the mark",
        params: dcqcn::Params::TABLE,
        overrides: DCQCN_HPCC,
        build: boxed!(dcqcn::Dcqcn),
    },
    Preset {
        name: "timely",
        citation: "Mittal et al., TIMELY, SIGCOMM 2015; values of HPCC's simulator",
        params: timely::Params::TABLE,
        overrides: &[],
        build: boxed!(timely::Timely),
    },
    Preset {
        name: "swift",
        citation: "Kumar et al., Swift, SIGCOMM 2020; values of Google's isekai",
        params: swift::Params::TABLE,
        overrides: &[],
        build: boxed!(swift::Swift),
    },
    Preset {
        name: "dctcp",
        citation: "Alizadeh et al., Data Center TCP, SIGCOMM 2010; line-rate start as in HPCC's simulator",
        params: dctcp::Params::TABLE,
        overrides: &[],
        build: boxed!(dctcp::Dctcp),
    },
    Preset {
        name: "powertcp-delay",
        citation: "Addanki et al., PowerTCP, NSDI 2022, theta version; values of ns3-datacenter",
        params: theta::Params::TABLE,
        overrides: &[],
        build: boxed!(theta::ThetaPowerTcp),
    },
    Preset {
        name: "hpcc",
        citation: "Li et al., HPCC: High Precision Congestion Control, SIGCOMM 2019; max_stage 0 as in its evaluation",
        params: hpcc::Params::TABLE,
        overrides: &[],
        build: boxed!(hpcc::Hpcc),
    },
    Preset {
        name: "powertcp",
        citation: "Addanki et al., PowerTCP, NSDI 2022; values of ns3-datacenter",
        params: powertcp::Params::TABLE,
        overrides: &[],
        build: boxed!(powertcp::PowerTcp),
    },
    Preset {
        name: "irn",
        citation: "Mittal et al., Revisiting Network Support for RDMA, SIGCOMM 2018: the BDP bound",
        params: irn::Params::TABLE,
        overrides: &[],
        build: boxed!(irn::Irn),
    },
    Preset {
        name: "cubic",
        citation: "RFC 9438",
        params: cubic::Params::TABLE,
        overrides: &[],
        build: boxed!(cubic::Cubic),
    },
    Preset {
        name: "vegas",
        citation: "Brakmo and Peterson, TCP Vegas, JSAC 1995; values of Linux",
        params: vegas::Params::TABLE,
        overrides: &[],
        build: boxed!(vegas::Vegas),
    },
    Preset {
        name: "loss-window",
        citation: "ferroce's default: a window that halves on loss",
        params: halving::Params::TABLE,
        overrides: &[],
        build: |values, _| HalvingWindow::new(window_of(halving::Params::new(values).window)).into(),
    },
    Preset {
        name: "fixed",
        citation: "no control: a window that never changes",
        params: halving::Params::TABLE,
        overrides: &[("window", Bytes(4294967295.0))],
        build: |values, _| FixedWindow { bytes: window_of(halving::Params::new(values).window) }.into(),
    },
];
