//! The shortest paths: for each switch and destination, the ports that lead closer.
//!
//! All hosts of a switch are reached on the same paths up to that switch, so the table has one column per switch with hosts
//! instead of one per host.

use super::{Adjacent, Impossible, MAX_ROUTES, Topology};
use std::collections::HashMap;

/// Ports by switch and destination.
#[derive(Debug)]
pub struct Routes {
    hosts: u32,
    ports: Vec<Vec<Adjacent>>,
    /// Sets of ports, shared by all switches.
    sets: Vec<Vec<u16>>,
    /// Index of the set, by switch and group of hosts at one switch.
    table: Vec<u32>,
    groups: u32,
    access: Vec<Access>,
}

/// How a host is connected.
#[derive(Clone, Copy, Debug)]
struct Access {
    /// Hosts at the same node have the same group.
    group: u32,
    /// The node at the other end of its link.
    node: u32,
    /// Its port there.
    port: [u16; 1],
}

/// The links of one shortest path.
#[derive(Clone, Debug)]
pub struct ShortestPath(Vec<(u64, u64)>);

impl ShortestPath {
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
    /// Finds all shortest paths by breadth-first search from each switch with hosts.
    pub fn new(topology: &Topology) -> Result<Routes, Impossible> {
        let ports = topology.ports();
        let (hosts, switches) = (topology.hosts, topology.tiers.len());
        let (access, nodes) = access(&ports[..hosts as usize]);
        let entries = switches as u64 * nodes.len() as u64;
        if entries > MAX_ROUTES {
            return Err(Impossible::Routes(entries));
        }
        let groups = nodes.len();
        let mut table = vec![u32::MAX; switches * groups];
        let mut sets: Vec<Vec<u16>> = Vec::new();
        let mut numbers: HashMap<Vec<u16>, u32> = HashMap::new();
        let (mut distance, mut queue) = (vec![u32::MAX; ports.len()], Vec::new());
        for (group, &to) in nodes.iter().enumerate() {
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
                let host = access.iter().position(|access| access.group as usize == group).unwrap_or(0);
                return Err(Impossible::Unreachable(from, host as u32));
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
                table[switch * groups + group] = number;
            }
        }
        Ok(Routes { hosts, ports, sets, table, groups: groups as u32, access })
    }

    /// The ports of a switch on the shortest paths to a host. Every switch on such a path has one.
    #[inline]
    pub fn ports(&self, switch: u32, to: u32) -> &[u16] {
        let access = &self.access[to as usize];
        if access.node == self.hosts + switch {
            return &access.port;
        }
        &self.sets[self.table[(switch * self.groups + access.group) as usize] as usize]
    }

    /// The ports of every node.
    pub fn adjacent(&self) -> &[Vec<Adjacent>] {
        &self.ports
    }

    /// One of the shortest paths; all have the same number of links.
    pub fn shortest_path(&self, from: u32, to: u32) -> ShortestPath {
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
        ShortestPath(links)
    }
}

/// How the hosts are connected, and the nodes that have hosts, by group.
fn access(hosts: &[Vec<Adjacent>]) -> (Vec<Access>, Vec<u32>) {
    let (mut groups, mut nodes) = (HashMap::new(), Vec::new());
    let links = hosts.iter().filter_map(|ports| ports.first());
    let access = links.map(|&Adjacent { node, port, .. }| {
        let group = *groups.entry(node).or_insert_with(|| {
            nodes.push(node);
            nodes.len() as u32 - 1
        });
        Access { group, node, port: [port as u16] }
    });
    (access.collect(), nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{FatTree, Link};

    #[test]
    fn every_port_of_a_route_leads_closer_and_none_is_missing() {
        let tree = FatTree { pods: 3, tors: 2, aggs: 2, cores_per_agg: 2, hosts_per_tor: 3 };
        let topology = tree.build((1_000_000_000, 1), (1_000_000_000, 1));
        let routes = Routes::new(&topology).expect("connected");
        let hosts = topology.hosts;
        assert_eq!((hosts, routes.groups), (18, 6), "one group per top-of-rack switch");
        for (from, to) in (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let (tor_of, pod_of) = (|host: u32| host / 3, |host: u32| host / 6);
            let hops = if tor_of(from) == tor_of(to) {
                2
            } else if pod_of(from) == pod_of(to) {
                4
            } else {
                6
            };
            assert_eq!(routes.shortest_path(from, to).hops(), hops, "{from} to {to}");
            let first = routes.ports(tor_of(from), to);
            let expected = if hops == 2 { vec![(to % 3) as u16] } else { vec![3, 4] };
            assert_eq!(first, expected, "{from} to {to}");
        }
    }

    #[test]
    fn a_table_that_is_too_large_is_refused() {
        let nodes = 8_300;
        let chain = Topology::chain(&vec![1; nodes], (1_000_000_000, 1), (1_000_000_000, 1));
        let error = Routes::new(&chain).expect_err("68,890,000 routes");
        assert!(error.to_string().starts_with("the topology needs 68890000 routes"), "{error}");
    }

    #[test]
    fn a_missing_link_is_named() {
        let link = |a, b| Link { a, b, rate: 1_000_000_000, delay_ns: 1 };
        let topology = Topology { hosts: 2, tiers: vec![1, 1], links: vec![link(0, 2), link(1, 3)] };
        let error = Routes::new(&topology).expect_err("two islands");
        assert_eq!(error.to_string(), "there is no path from host 1 to host 0; add the missing link");
    }
}
