//! Traffic patterns.

use super::{Flow, NEVER, SizeCdf};
use crate::packet::NONE;
use crate::rng::{Pcg32, Purpose};

/// Flows that arrive at random.
#[derive(Clone, Debug)]
pub struct Poisson {
    /// Their sizes.
    pub sizes: SizeCdf,
    /// Offered load as a share of each host's rate.
    pub load: f64,
    /// Rate of a host in bits per second.
    pub host_rate: u64,
    /// Number of hosts.
    pub hosts: u32,
    /// Flows start before this time, in picoseconds.
    pub until_ps: u64,
}

/// Every host sends to random other hosts, with exponential times between two flows.
pub fn poisson(poisson: &Poisson, seed: u64, template: Flow) -> impl Iterator<Item = Flow> + '_ {
    let bytes_per_ps = poisson.host_rate as f64 / 8e12 * poisson.load;
    let gap_ps = poisson.sizes.mean() / bytes_per_ps;
    (0..poisson.hosts).flat_map(move |from| {
        let instance = u64::from(template.group) << 32 | u64::from(from);
        let mut arrivals = Pcg32::stream(seed, Purpose::Arrivals, instance);
        let mut sizes = Pcg32::stream(seed, Purpose::Sizes, instance);
        let mut pairs = Pcg32::stream(seed, Purpose::Pairs, instance);
        let mut now = 0.0;
        std::iter::from_fn(move || {
            now += arrivals.exponential(gap_ps);
            let start_ps = now as u64;
            let other = pairs.below(poisson.hosts - 1);
            let to = if other < from { other } else { other + 1 };
            let bytes = poisson.sizes.draw(&mut sizes);
            (start_ps < poisson.until_ps).then_some(Flow {
                start_ps,
                bytes,
                from,
                to,
                then: NONE,
                ..template
            })
        })
    })
}

/// Many hosts send to one.
#[derive(Clone, Copy, Debug)]
pub struct Incast {
    /// Senders.
    pub fan_in: u32,
    /// Bytes of each.
    pub bytes: u64,
    /// The receiver; without it, each incast has a random one.
    pub to: Option<u32>,
    /// Start of the first one, in picoseconds.
    pub start_ps: u64,
    /// Mean time between two incasts; without it there is one.
    pub every_ps: Option<f64>,
    /// Number of hosts.
    pub hosts: u32,
    /// Incasts start before this time.
    pub until_ps: u64,
}

/// Incasts. With a fixed receiver, the senders are the hosts after it; else they are chosen at random.
pub fn incast(incast: &Incast, seed: u64, template: Flow) -> Vec<Flow> {
    let mut rng = Pcg32::stream(seed, Purpose::Pairs, u64::from(template.group) << 32 | 0xffff_ffff);
    let mut flows = Vec::new();
    let mut now = incast.start_ps as f64;
    while (now as u64) < incast.until_ps && flows.len() <= super::MAX_FLOWS {
        let to = incast.to.unwrap_or_else(|| rng.below(incast.hosts));
        let mut others: Vec<u32> = (1..incast.hosts).map(|step| (to + step) % incast.hosts).collect();
        if incast.to.is_none() {
            for at in 0..incast.fan_in.min(incast.hosts - 1) {
                let with = at + rng.below(incast.hosts - 1 - at);
                others.swap(at as usize, with as usize);
            }
        }
        let senders = others.iter().take(incast.fan_in as usize);
        flows.extend(senders.map(|from| Flow {
            start_ps: now as u64,
            bytes: incast.bytes,
            from: *from,
            to,
            then: NONE,
            ..template
        }));
        let Some(every) = incast.every_ps else { break };
        now += rng.exponential(every);
    }
    flows
}

/// A collective operation of hosts 0 to `hosts` − 1.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Number of hosts that take part.
    pub hosts: u32,
    /// Bytes of each host.
    pub bytes: u64,
    /// Start, in picoseconds.
    pub start_ps: u64,
}

/// Every host sends an equal part of its bytes to every other host. Host i begins with host i + 1; with one order for all,
/// the first messages would be an incast.
pub fn all_to_all(collective: &Collective, template: Flow) -> Vec<Flow> {
    let Collective { hosts, bytes, start_ps } = *collective;
    let part = (bytes / u64::from(hosts.max(2) - 1)).max(1);
    let pairs = (1..hosts).flat_map(|step| (0..hosts).map(move |from| (from, (from + step) % hosts)));
    pairs.map(|(from, to)| Flow { start_ps, bytes: part, from, to, then: NONE, ..template }).collect()
}

/// Ring all-reduce: 2(n − 1) steps, in each of which every host sends 1/n of its bytes to the next host. A host's step
/// begins when it has received the previous step of the host before it. `first` is the number of the first flow.
pub fn ring_all_reduce(collective: &Collective, first: u32, template: Flow) -> Vec<Flow> {
    let Collective { hosts, bytes, start_ps } = *collective;
    let part = (bytes / u64::from(hosts)).max(1);
    let steps = 2 * (hosts - 1);
    let number = |step: u32, host: u32| first + step * hosts + host % hosts;
    let all = (0..steps).flat_map(|step| (0..hosts).map(move |host| (step, host)));
    all.map(|(step, from)| Flow {
        start_ps: if step == 0 { start_ps } else { NEVER },
        bytes: part,
        from,
        to: (from + 1) % hosts,
        then: if step + 1 < steps { number(step + 1, from + 1) } else { NONE },
        ..template
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: Flow = Flow { start_ps: 0, bytes: 0, from: 0, to: 0, then: NONE, priority: 3, group: 0 };

    #[test]
    fn poisson_offers_its_load() {
        let sizes = SizeCdf::named("alistorage").expect("a table");
        let all =
            Poisson { sizes, load: 0.5, host_rate: 100_000_000_000, hosts: 16, until_ps: 20_000_000_000 };
        let flows: Vec<Flow> = poisson(&all, 1, TEMPLATE).collect();
        let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let offered = bytes as f64 / (16.0 * 12.5e9 * 0.02);
        assert!((offered - 0.5).abs() < 0.03, "{offered}");
        assert!(flows.iter().all(|flow| flow.from != flow.to && flow.to < 16));
    }

    #[test]
    fn incast_and_collectives_have_their_pairs() {
        let one =
            Incast { fan_in: 3, bytes: 5, to: Some(2), start_ps: 7, every_ps: None, hosts: 4, until_ps: 8 };
        let senders: Vec<u32> = incast(&one, 1, TEMPLATE).iter().map(|flow| flow.from).collect();
        assert_eq!(senders, [3, 0, 1]);
        let random = incast(&Incast { to: None, ..one }, 1, TEMPLATE);
        assert_eq!(random.len(), 3);
        assert!(random.iter().all(|flow| flow.from != flow.to && flow.from < 4));
        let collective = Collective { hosts: 4, bytes: 1200, start_ps: 0 };
        let flows = all_to_all(&collective, TEMPLATE);
        assert_eq!((flows.len(), flows[0].bytes), (12, 400));
        let ring = ring_all_reduce(&collective, 10, TEMPLATE);
        assert_eq!(ring.len(), 24);
        // Every flow but those of the first step follows exactly one other.
        let mut followers: Vec<u32> =
            ring.iter().map(|flow| flow.then).filter(|then| *then != NONE).collect();
        followers.sort_unstable();
        assert_eq!(followers, (14..34).collect::<Vec<u32>>());
        for flow in ring.iter().filter(|flow| flow.then != NONE) {
            assert_eq!(ring[flow.then as usize - 10].from, flow.to);
        }
    }
}
