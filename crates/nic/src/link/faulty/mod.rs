//! A wrapper that injects repeatable faults into any link.
//!
//! Faults apply to the packets that this side sends. The fate of the n-th packet depends only on the seed and on n, so a seed
//! reproduces a failure that it found.

mod config;
mod held;

use super::{Capabilities, Effort, Link, LinkCounters, RxBatch, Sleep, TxBatch, TxView, now};
use ferroce_os::lock::Mutex;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::ECN_CE;
use ferroce_proto::{Gid, Time};
use held::{Held, HeldBack};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use config::{FaultConfig, FaultConfigError};

/// A reordered packet is overtaken by at most this many packets...
const MAX_OVERTAKING: u32 = 8;
/// ...or sent after this time, if fewer packets follow.
const REORDER_PATIENCE_NS: u64 = 1_000_000;
/// The byte of the BTH that the ICRC does not cover: no bit is flipped there.
const UNCOVERED_BYTE: u32 = 4;

/// A link with faults in its outgoing packets.
pub struct Faulty {
    inner: Arc<dyn Link>,
    config: FaultConfig,
    state: Mutex<State>,
}

struct State {
    rng: StdRng,
    /// A separate generator for marks, so that they do not shift the other faults of a seed.
    marks: StdRng,
    held: HeldBack,
    out: TxBatch,
    losses: u64,
    duplicates: u64,
    corruptions: u64,
    reorders: u64,
    marked: u64,
}

/// The faults of one packet. All random numbers are drawn for every packet, so that one fault does not shift the others.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fate {
    is_lost: bool,
    is_duplicated: bool,
    flip_bit: Option<u32>,
    overtaken_by: Option<u32>,
    delay_ns: u64,
}

impl Fate {
    fn draw(rng: &mut StdRng, config: &FaultConfig) -> Fate {
        let mut hits = |probability: f64| rng.random::<f64>() < probability;
        let (is_lost, is_duplicated) = (hits(config.loss), hits(config.duplicate));
        let (is_corrupt, is_reordered) = (hits(config.corrupt), hits(config.reorder));
        let (bit, places) = (rng.random(), rng.random_range(1..=MAX_OVERTAKING));
        let jitter_ns = (rng.random::<f64>() * config.jitter_ns as f64) as u64;
        Fate {
            is_lost,
            is_duplicated,
            flip_bit: is_corrupt.then_some(bit),
            overtaken_by: is_reordered.then_some(places),
            delay_ns: config.delay_ns + jitter_ns,
        }
    }
}

impl Faulty {
    /// Wraps a link.
    pub fn new(inner: Arc<dyn Link>, config: FaultConfig) -> Faulty {
        let state = State {
            rng: StdRng::seed_from_u64(config.seed),
            marks: StdRng::seed_from_u64(!config.seed),
            held: HeldBack::default(),
            out: TxBatch::new(),
            losses: 0,
            duplicates: 0,
            corruptions: 0,
            reorders: 0,
            marked: 0,
        };
        Faulty { inner, config, state: Mutex::new(state) }
    }

    /// Removes lost packets when loss is the only fault. The others are not copied, so measurements show the cost of the loss and
    /// not that of this wrapper.
    fn lose(&self, state: &mut State, batch: &mut TxBatch) {
        let mut next = 0;
        for _ in 0..batch.len() {
            if Fate::draw(&mut state.rng, &self.config).is_lost {
                state.losses += 1;
                batch.remove(next);
            } else {
                next += 1;
            }
        }
    }

    fn apply(&self, state: &mut State, packet: &TxView<'_>, now: Time) {
        let fate = Fate::draw(&mut state.rng, &self.config);
        if fate.is_lost {
            state.losses += 1;
            return;
        }
        let mut route = *packet.route;
        if self.config.mark > 0.0 && state.marks.random::<f64>() < self.config.mark {
            route.traffic_class |= ECN_CE;
            state.marked += 1;
        }
        let packet = &TxView { route: &route, ..*packet };
        let flip_bit = fate.flip_bit.map(|bit| covered_bit(bit, packet.bytes.len()));
        state.corruptions += u64::from(flip_bit.is_some());
        self.dispatch(state, packet, flip_bit, &fate, now);
        if fate.is_duplicated {
            state.duplicates += 1;
            self.dispatch(state, packet, None, &fate, now);
        }
        while let Some(overtaken) = state.held.next_overtaken() {
            self.transmit(state, &overtaken.route, &overtaken.bytes, overtaken.flip_bit);
        }
    }

    /// Sends a packet, or holds it back.
    fn dispatch(
        &self,
        state: &mut State,
        packet: &TxView<'_>,
        flip_bit: Option<u32>,
        fate: &Fate,
        now: Time,
    ) {
        let held = || Held { route: *packet.route, bytes: packet.bytes.to_vec(), flip_bit };
        let accepted = match fate {
            Fate { delay_ns: 0, overtaken_by: None, .. } => {
                state.held.on_passed();
                self.transmit(state, packet.route, packet.bytes, flip_bit);
                true
            }
            Fate { delay_ns, overtaken_by: None, .. } => state.held.delay(held(), now + *delay_ns),
            Fate { delay_ns, overtaken_by: Some(places), .. } => {
                state.reorders += 1;
                state.held.reorder(held(), *places, now + *delay_ns + REORDER_PATIENCE_NS)
            }
        };
        state.losses += u64::from(!accepted);
    }

    fn transmit(&self, state: &mut State, route: &Route, bytes: &[u8], flip_bit: Option<u32>) {
        if !state.out.has_room(bytes.len()) {
            self.inner.send(&mut state.out);
        }
        state.out.reserve(route, bytes.len()).copy_from_slice(bytes);
        if let Some(bit) = flip_bit {
            state.out.corrupt_last(bit);
        }
    }

    /// Sends the held packets whose time has come.
    fn release(&self, state: &mut State, now: Time) {
        while let Some(held) = state.held.next_due(now) {
            self.transmit(state, &held.route, &held.bytes, held.flip_bit);
        }
    }
}

impl Link for Faulty {
    fn send(&self, batch: &mut TxBatch) {
        let mut state = self.state.lock();
        if self.config.only_loses() {
            self.lose(&mut state, batch);
            return self.inner.send(batch);
        }
        let now = now();
        self.release(&mut state, now);
        for packet in batch.packets() {
            self.apply(&mut state, &packet, now);
        }
        batch.clear();
        self.inner.send(&mut state.out);
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { external_payloads: self.config.only_loses() && inner.external_payloads }
    }

    fn receive(&self, rx: &mut RxBatch, effort: Effort) -> usize {
        if !self.config.only_loses()
            && let Some(mut state) = self.state.try_lock()
            && !state.held.is_empty()
        {
            self.release(&mut state, now());
            self.inner.send(&mut state.out);
        }
        self.inner.receive(rx, effort)
    }

    fn prepare_sleep(&self) -> Sleep {
        let own = self.state.lock().held.deadline();
        self.inner.prepare_sleep().until(own)
    }
    fn end_sleep(&self) {
        self.inner.end_sleep();
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        let state = self.state.lock();
        counters.injected_losses += state.losses;
        counters.injected_duplicates += state.duplicates;
        counters.injected_corruptions += state.corruptions;
        counters.injected_reorders += state.reorders;
        counters.injected_marks += state.marked;
        counters
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }
    fn join_multicast(&self, group: Gid) -> io::Result<()> {
        self.inner.join_multicast(group)
    }
    fn leave_multicast(&self, group: Gid) -> io::Result<()> {
        self.inner.leave_multicast(group)
    }
    fn report_outer_fields(&self) {
        self.inner.report_outer_fields();
    }
    fn flush(&self) {
        let mut state = self.state.lock();
        self.release(&mut state, Time(u64::MAX));
        self.inner.send(&mut state.out);
        self.inner.flush();
    }
}

/// A bit of a packet of `len` bytes that the ICRC covers.
fn covered_bit(random: u32, len: usize) -> u32 {
    let bit = random % (len as u32 * 8);
    if bit / 8 == UNCOVERED_BYTE { bit + 8 } else { bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_does_not_shift_the_others() {
        let all = FaultConfig { loss: 0.1, reorder: 0.1, duplicate: 0.1, corrupt: 0.1, ..Default::default() };
        let only_loss = FaultConfig { loss: 0.1, ..Default::default() };
        let (mut a, mut b) = (StdRng::seed_from_u64(7), StdRng::seed_from_u64(7));
        let mut losses = 0;
        for _ in 0..1000 {
            let (of_all, of_loss) = (Fate::draw(&mut a, &all), Fate::draw(&mut b, &only_loss));
            assert_eq!(of_all.is_lost, of_loss.is_lost);
            losses += u32::from(of_loss.is_lost);
        }
        assert!((50..150).contains(&losses), "{losses} of 1000 lost at 10 %");
    }

    #[test]
    fn damage_never_hits_the_uncovered_byte() {
        for random in 0..(12 * 8 * 3) {
            let bit = covered_bit(random, 12);
            assert!(bit / 8 != UNCOVERED_BYTE && bit < 12 * 8);
        }
    }
}
