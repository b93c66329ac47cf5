//! Bulk transfers over a network that loses and duplicates packets all the time, as in `ferroce perf loss`: with the usual retry counts, no
//! request may fail.
//!
//! The oldest packet is sent up to 40 times before a request fails: 8 expiries of the transport timer, with four probes each. At a loss of
//! 10 % in each direction, all of them fail together once in 10^28 times. So a failure is a bug, not bad luck.
//! `FERROCE_SIM_SEEDS=17..18` replays seed 17.

mod support;

use ferroce_proto::cc::HalvingWindow;
use ferroce_proto::verbs::{Mtu, WcStatus};
use ferroce_sim::{Faults, PairSetup, Wr};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use support::both_ready;

const SEEDS: u64 = 60;
const MESSAGES: u64 = 24;
const LEN: u32 = 64 * 1024;

fn transfer(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let rng = &mut rng;
    let setup = PairSetup {
        seed,
        mtu: *[Mtu::B1024, Mtu::B4096].choose(rng).expect("not empty"),
        timeout: *[10, 14, 16].choose(rng).expect("not empty"),
        retry_cnt: 7,
        window: *[64 * 1024, 1 << 20].choose(rng).expect("not empty"),
        ..PairSetup::rc()
    };
    let pair = setup.connect_with(|| HalvingWindow::new(setup.window).into());
    let loss = rng.random_range(0.01..0.10);
    let duplication = *[0.0, loss].choose(rng).expect("not empty");
    pair.world.set_faults(Faults { loss, duplication, ..Faults::default() });
    for end in [&pair.a, &pair.b] {
        end.node.set_link_depth(*[1, 8, usize::MAX].choose(rng).expect("not empty"));
    }
    let kind = rng.random_range(0..3);
    for id in 0..MESSAGES {
        let local = pair.a.sge(0, LEN);
        match kind {
            0 => pair.a.qp.post(Wr::write(id, &pair.b.mr, 0).sge(local)),
            1 => pair.a.qp.post(Wr::read(id, &pair.b.mr, 0).sge(local)),
            _ => {
                pair.b.post_recv(id, 0, LEN);
                pair.a.qp.post(Wr::send(id).sge(local));
            }
        }
    }
    pair.run();
    let all: Vec<_> = (0..MESSAGES).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(
        pair.a.send_cq.statuses(),
        all,
        "{setup:?}, loss {loss}, duplication {duplication}, kind {kind}"
    );
    both_ready(&pair);
}

#[test]
fn no_request_uses_up_its_retries() {
    for seed in support::seeds(0..SEEDS) {
        println!("FERROCE_SIM_SEEDS={seed}..{}", seed + 1);
        transfer(seed);
    }
}
