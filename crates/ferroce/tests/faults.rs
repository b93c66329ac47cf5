//! A lossy network: data of reliable connections arrives complete, once and in order.

mod support;

use ferroce::{Config, Device, FaultConfig, WcOpcode, wr};
use support::{LOOPBACKS, V4, join, pattern, success, watched};

fn bad_network(seed: u64) -> Config {
    let faults: FaultConfig = format!("loss=3%,reorder=3%,duplicate=3%,corrupt=1%,seed={seed}")
        .parse()
        .expect("the faults are understood");
    Config::default().with(|c| (c.addresses, c.faults) = (Some(LOOPBACKS.to_vec()), Some(faults)))
}

#[test]
fn everything_arrives_over_a_bad_network() {
    watched(|| {
        for seed in 1..=3 {
            println!("seed {seed}");
            let device = Device::open_with(bad_network(seed)).unwrap();
            let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1024).unwrap());
            let peer_cq = device.create_cq(1024).unwrap();
            // A short timer, because only the timer detects the loss of a last packet.
            let make = |cq| pd.rc(cq).address(V4).timeout(10).create().unwrap();
            let (a, b) = (make(&cq), make(&peer_cq));
            join(&a, &b);
            let region =
                |len| pd.region(len).remote_read().remote_write().remote_atomic().register().unwrap();
            let (local, remote, inbox) = (region(1 << 20), region(1 << 20), region(20 * 5000));
            let data = pattern(seed, 1 << 20);
            local.write(0, &data).unwrap();
            let whole = [local.sge(..).unwrap()];

            a.write(1, &whole, remote.remote()).unwrap();
            success(&cq);
            assert!(remote.to_vec() == data, "WRITE");
            local.fill(0);
            a.read(2, &whole, remote.remote()).unwrap();
            success(&cq);
            assert!(local.to_vec() == data, "READ");

            for n in 0..20 {
                b.post_recv(&[wr::recv(n, &[inbox.sge(n * 5000..(n + 1) * 5000).unwrap()])]).unwrap();
            }
            for n in 0..20 {
                a.send_from(n, &[local.sge(n * 5000..(n + 1) * 5000).unwrap()]).unwrap();
            }
            for n in 0..20 {
                assert_eq!((success(&peer_cq).wr_id, success(&cq).wr_id), (n, n), "in order");
            }
            assert!(inbox.to_vec() == data[..20 * 5000], "SEND");

            let (old, counter) = (region(8), region(8));
            for n in 0..100 {
                a.fetch_add(n, old.sge(..).unwrap(), counter.remote(), 1).unwrap();
                assert_eq!(success(&cq).opcode, WcOpcode::FetchAdd);
                assert_eq!(old.load_u64(0).unwrap(), n, "each atomic ran exactly once");
            }
            let counters = a.counters();
            assert!(counters.retransmitted > 0, "the network was not bad at all: {counters:?}");
        }
    });
}
