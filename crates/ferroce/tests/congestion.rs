//! Congestion control over real sockets: marks become CNPs, and every controller carries data whole.

mod support;

use ferroce::{Config, Congestion, Device, FaultConfig, Qp, Rc, Region};
use support::{LOOPBACKS, V4, join, pattern, success, watched};

const LEN: usize = 1 << 20;

/// Controllers that run without the help of switches.
const LIVE: [&str; 11] = [
    "dcqcn-paper",
    "dcqcn-nic",
    "dcqcn-hpcc",
    "timely",
    "swift",
    "dctcp",
    "powertcp-delay",
    "irn",
    "cubic",
    "vegas",
    "fixed,window=64KiB",
];

fn device(faults: &str) -> Device {
    let faults: FaultConfig = faults.parse().expect("the faults are understood");
    let config = Config::default().with(|c| {
        (c.addresses, c.faults, c.ecn) = (Some(LOOPBACKS.to_vec()), Some(faults), true);
    });
    Device::open_with(config).unwrap()
}

/// Writes a megabyte and reads it back through a queue pair with this congestion control.
fn run(device: &Device, choice: &str) -> (Qp<Rc>, Qp<Rc>) {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let choice: Congestion = choice.parse().unwrap();
    let make = || pd.rc(&cq).address(V4).congestion(choice.clone()).create().unwrap();
    let (a, b) = (make(), make());
    join(&a, &b);
    let region = || -> Region { pd.region(LEN).remote_read().remote_write().register().unwrap() };
    let (local, remote) = (region(), region());
    let data = pattern(7, LEN);
    local.write(0, &data).unwrap();
    a.write(1, &[local.sge(..).unwrap()], remote.remote()).unwrap();
    success(&cq);
    assert!(remote.to_vec() == data, "WRITE");
    local.fill(0);
    a.read(2, &[local.sge(..).unwrap()], remote.remote()).unwrap();
    success(&cq);
    assert!(local.to_vec() == data, "READ");
    (a, b)
}

#[test]
fn every_controller_carries_data_over_a_bad_network() {
    watched(|| {
        let device = device("loss=1%,mark=5%,reorder=1%,seed=11");
        for choice in LIVE {
            println!("{choice}");
            run(&device, &format!("{choice},line_rate=10Gb/s,base_rtt=50us"));
        }
    });
}

#[test]
fn marks_become_cnps_and_slow_down_the_sender() {
    watched(|| {
        let device = device("mark=100%");
        let (a, b) = run(&device, "dcqcn-paper,line_rate=1Gb/s,cnp_interval=1ms");
        let (sent, received) = (b.counters().cnps_sent, a.counters().cnps_received);
        assert!(sent > 0 && received > 0, "{sent} sent, {received} received");
        assert!(b.counters().ecn_marked >= 256, "{:?}", b.counters());
        let report = device.counters().queue_pairs.into_iter().find(|qp| qp.qpn == a.qpn().value()).unwrap();
        assert!(report.rate.is_some_and(|rate| rate < 125_000_000), "{report:?}");
    });
}

#[test]
fn a_choice_that_cannot_be_is_refused() {
    watched(|| {
        let config = Config::default().with(|c| c.addresses = Some(LOOPBACKS.to_vec()));
        let device = Device::open_with(config).unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let refused = pd.rc(&cq).congestion("dcqcn-paper".parse().unwrap()).create().unwrap_err();
        assert!(refused.to_string().contains("needs ECN"), "{refused}");
        pd.rc(&cq).congestion("swift".parse().unwrap()).create().unwrap();
    });
}

#[test]
fn the_page_names_every_controller() {
    let page = include_str!("../../../docs/use/congestion.md");
    for preset in ferroce_proto::cc::PRESETS {
        assert!(page.contains(&format!("`{}`", preset.name)), "docs/use/congestion.md lacks {}", preset.name);
    }
}
