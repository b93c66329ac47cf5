//! The shortest ways: for each switch and host, the ports that lead closer.

use super::{Adjacent, Impossible, Topology};
use std::collections::HashMap;

/// Ports by switch and destination.
#[derive(Debug)]
pub struct Routes {
    hosts: u32,
    ports: Vec<Vec<Adjacent>>,
    /// Sets of ports, shared by all switches.
    sets: Vec<Vec<u16>>,
    /// Index of the set, by switch and host.
    table: Vec<u32>,
}

/// The links of one shortest way.
#[derive(Clone, Debug)]
pub struct Way(Vec<(u64, u64)>);

impl Way {
    /// Number of links.
    pub fn hops(&self) -> u32 {
        self.0.len() as u32
    }

    /// Propagation delay of one direction.
    pub fn delay_ns(&self) -> u64 {
        self.0.iter().map(|(_, delay)| delay).sum()
    }

    /// Bits per second, link by link.
    pub fn rates(&self) -> Vec<u64> {
        self.0.iter().map(|(rate, _)| *rate).collect()
    }

    /// Picoseconds that a packet of `bytes` needs without queues, store and forward.
    pub fn transit_ps(&self, bytes: u32) -> u64 {
        self.0.iter().map(|(rate, delay)| serial_ps(bytes, *rate) + delay * 1000).sum()
    }

    /// The slowest link in bits per second.
    pub fn bottleneck(&self) -> u64 {
        self.0.iter().map(|(rate, _)| *rate).min().unwrap_or(1)
    }
}

/// Picoseconds that `bytes` occupy a wire.
pub(crate) fn serial_ps(bytes: u32, rate: u64) -> u64 {
    (u128::from(bytes) * 8_000_000_000_000 / u128::from(rate.max(1))) as u64
}

impl Routes {
    /// Finds all shortest ways by breadth-first search from each host.
    pub fn new(topology: &Topology) -> Result<Routes, Impossible> {
        let ports = topology.ports();
        let (hosts, switches) = (topology.hosts, topology.tiers.len());
        let mut table = vec![u32::MAX; switches * hosts as usize];
        let mut sets: Vec<Vec<u16>> = Vec::new();
        let mut numbers: HashMap<Vec<u16>, u32> = HashMap::new();
        let (mut distance, mut queue) = (vec![u32::MAX; ports.len()], Vec::new());
        for to in 0..hosts {
            distance.fill(u32::MAX);
            queue.clear();
            distance[to as usize] = 0;
            queue.push(to);
            let mut at = 0;
            while let Some(&node) = queue.get(at) {
                at += 1;
                if node < hosts && node != to {
                    continue; // hosts do not forward
                }
                for next in &ports[node as usize] {
                    if distance[next.node as usize] == u32::MAX {
                        distance[next.node as usize] = distance[node as usize] + 1;
                        queue.push(next.node);
                    }
                }
            }
            if let Some(from) = (0..hosts).find(|host| distance[*host as usize] == u32::MAX) {
                return Err(Impossible::Unreachable(from, to));
            }
            for switch in 0..switches {
                let node = hosts as usize + switch;
                if distance[node] == u32::MAX {
                    continue;
                }
                let closer =
                    |next: &Adjacent| distance[next.node as usize].saturating_add(1) == distance[node];
                let set: Vec<u16> =
                    (0u16..).zip(&ports[node]).filter(|(_, next)| closer(next)).map(|(at, _)| at).collect();
                let number = *numbers.entry(set).or_insert_with_key(|set| {
                    sets.push(set.clone());
                    sets.len() as u32 - 1
                });
                table[switch * hosts as usize + to as usize] = number;
            }
        }
        Ok(Routes { hosts, ports, sets, table })
    }

    /// The ports of a switch that lead to a host. Packets only reach switches that have one.
    #[inline]
    pub fn ports(&self, switch: u32, to: u32) -> &[u16] {
        &self.sets[self.table[(switch * self.hosts + to) as usize] as usize]
    }

    /// The ports of every node.
    pub fn adjacent(&self) -> &[Vec<Adjacent>] {
        &self.ports
    }

    /// One of the shortest ways; all have the same number of links.
    pub fn way(&self, from: u32, to: u32) -> Way {
        let mut links = Vec::new();
        let mut node = from;
        while node != to {
            let port = match node.checked_sub(self.hosts) {
                None => 0,
                Some(switch) => usize::from(self.ports(switch, to)[0]),
            };
            let next = self.ports[node as usize][port];
            links.push((next.rate, next.delay_ns));
            node = next.node;
        }
        Way(links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Link;

    #[test]
    fn a_missing_link_is_named() {
        let link = |a, b| Link { a, b, rate: 1_000_000_000, delay_ns: 1 };
        let topology = Topology { hosts: 2, tiers: vec![1, 1], links: vec![link(0, 2), link(1, 3)] };
        let error = Routes::new(&topology).expect_err("two islands");
        assert_eq!(error.to_string(), "there is no way from host 1 to host 0; add the missing link");
    }
}
