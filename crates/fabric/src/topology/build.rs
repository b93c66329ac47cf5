//! The usual topologies.

use super::{Link, Topology};

/// Two tiers: every leaf is connected to every spine.
#[derive(Clone, Copy, Debug)]
pub struct LeafSpine {
    /// Number of leaves.
    pub leaves: u32,
    /// Number of spines.
    pub spines: u32,
    /// Hosts of each leaf.
    pub hosts_per_leaf: u32,
}

/// Three tiers: in each pod, every top-of-rack switch is connected to every aggregation switch; aggregation switch j
/// of each pod is connected to the same `cores_per_agg` core switches.
#[derive(Clone, Copy, Debug)]
pub struct FatTree {
    /// Number of pods.
    pub pods: u32,
    /// Top-of-rack switches of a pod.
    pub tors: u32,
    /// Aggregation switches of a pod.
    pub aggs: u32,
    /// Core switches of each aggregation switch.
    pub cores_per_agg: u32,
    /// Hosts of each top-of-rack switch.
    pub hosts_per_tor: u32,
}

impl FatTree {
    /// The fat tree of k-port switches: k³/4 hosts.
    pub fn of_k(k: u32) -> FatTree {
        let half = k / 2;
        FatTree { pods: k, tors: half, aggs: half, cores_per_agg: half, hosts_per_tor: half }
    }

    /// Number of hosts and switches; saturates.
    pub fn nodes(&self) -> u64 {
        let pods = u64::from(self.pods);
        let tors = pods.saturating_mul(u64::from(self.tors));
        let cores = u64::from(self.aggs).saturating_mul(u64::from(self.cores_per_agg));
        tors.saturating_mul(u64::from(self.hosts_per_tor))
            .saturating_add(tors)
            .saturating_add(pods.saturating_mul(u64::from(self.aggs)))
            .saturating_add(cores)
    }

    /// Number of links; saturates.
    pub fn links(&self) -> u64 {
        let tors = u64::from(self.pods).saturating_mul(u64::from(self.tors));
        let aggs = u64::from(self.pods).saturating_mul(u64::from(self.aggs));
        tors.saturating_mul(u64::from(self.hosts_per_tor))
            .saturating_add(tors.saturating_mul(u64::from(self.aggs)))
            .saturating_add(aggs.saturating_mul(u64::from(self.cores_per_agg)))
    }

    /// The topology.
    pub fn build(&self, host: (u64, u64), trunk: (u64, u64)) -> Topology {
        let tors = self.pods * self.tors;
        let aggs = self.pods * self.aggs;
        let hosts = tors * self.hosts_per_tor;
        let (first_agg, first_core) = (hosts + tors, hosts + tors + aggs);
        let mut links = attach(hosts, self.hosts_per_tor, hosts, host);
        for pod in 0..self.pods {
            for tor in 0..self.tors {
                for agg in 0..self.aggs {
                    let (a, b) = (hosts + pod * self.tors + tor, first_agg + pod * self.aggs + agg);
                    links.push(Link { a, b, rate: trunk.0, delay_ns: trunk.1 });
                }
            }
            for agg in 0..self.aggs {
                for core in 0..self.cores_per_agg {
                    let (a, b) =
                        (first_agg + pod * self.aggs + agg, first_core + agg * self.cores_per_agg + core);
                    links.push(Link { a, b, rate: trunk.0, delay_ns: trunk.1 });
                }
            }
        }
        let cores = self.aggs * self.cores_per_agg;
        let tiers = [(1, tors), (2, aggs), (3, cores)];
        let tiers =
            tiers.iter().flat_map(|(tier, count)| std::iter::repeat_n(*tier, *count as usize)).collect();
        Topology { hosts, tiers, links }
    }
}

impl LeafSpine {
    /// The topology.
    pub fn build(&self, host: (u64, u64), trunk: (u64, u64)) -> Topology {
        let hosts = self.leaves * self.hosts_per_leaf;
        let mut links = attach(hosts, self.hosts_per_leaf, hosts, host);
        for leaf in 0..self.leaves {
            for spine in 0..self.spines {
                let (a, b) = (hosts + leaf, hosts + self.leaves + spine);
                links.push(Link { a, b, rate: trunk.0, delay_ns: trunk.1 });
            }
        }
        let mut tiers = vec![1; self.leaves as usize];
        tiers.resize((self.leaves + self.spines) as usize, 2);
        Topology { hosts, tiers, links }
    }
}

impl Topology {
    /// All hosts at one switch.
    pub fn star(hosts: u32, host: (u64, u64)) -> Topology {
        Topology { hosts, tiers: vec![1], links: attach(hosts, hosts.max(1), hosts, host) }
    }

    /// Switches in a row, each with its hosts: two of them are a dumbbell, more a parking lot.
    pub fn chain(hosts_per_switch: &[u32], host: (u64, u64), trunk: (u64, u64)) -> Topology {
        let hosts = hosts_per_switch.iter().sum();
        let mut links = Vec::new();
        let mut next = 0;
        for (switch, count) in hosts_per_switch.iter().enumerate() {
            for _ in 0..*count {
                links.push(Link { a: next, b: hosts + switch as u32, rate: host.0, delay_ns: host.1 });
                next += 1;
            }
        }
        for switch in 1..hosts_per_switch.len() as u32 {
            let (a, b) = (hosts + switch - 1, hosts + switch);
            links.push(Link { a, b, rate: trunk.0, delay_ns: trunk.1 });
        }
        Topology { hosts, tiers: vec![1; hosts_per_switch.len()], links }
    }
}

fn attach(hosts: u32, per_switch: u32, first_switch: u32, (rate, delay_ns): (u64, u64)) -> Vec<Link> {
    (0..hosts).map(|host| Link { a: host, b: first_switch + host / per_switch, rate, delay_ns }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Routes;

    const HOST: (u64, u64) = (100_000_000_000, 1000);
    const TRUNK: (u64, u64) = (400_000_000_000, 1000);

    #[test]
    fn hpccs_fat_tree_has_320_hosts_and_its_base_rtt() {
        let tree = FatTree { pods: 5, tors: 4, aggs: 4, cores_per_agg: 4, hosts_per_tor: 16 };
        let topology = tree.build(HOST, TRUNK);
        assert_eq!((topology.hosts, topology.tiers.len(), topology.links.len()), (320, 56, 320 + 80 + 80));
        topology.check().expect("possible");
        let routes = Routes::new(&topology).expect("connected");
        let path = routes.shortest_path(0, 319);
        assert_eq!(path.hops(), 6);
        // HPCC's definition: propagation both ways, and one packet of 1048 bytes at each rate.
        let serial: f64 = path.rates().iter().map(|rate| 1048.0 * 8e9 / *rate as f64).sum();
        assert!((2.0 * path.delay_ns() as f64 + serial - 12_252.0).abs() < 20.0);
        assert_eq!(routes.ports(0, 319).len(), 4, "a top-of-rack switch has four paths up");
        assert_eq!(u64::from(topology.nodes()), tree.nodes());
        assert_eq!(topology.links.len() as u64, tree.links());
    }

    #[test]
    fn small_topologies_are_connected() {
        for topology in [
            Topology::star(5, HOST),
            Topology::chain(&[3, 2], HOST, TRUNK),
            Topology::chain(&[1, 0, 2, 1], HOST, TRUNK),
            LeafSpine { leaves: 4, spines: 2, hosts_per_leaf: 3 }.build(HOST, TRUNK),
            FatTree::of_k(4).build(HOST, TRUNK),
        ] {
            topology.check().expect("possible");
            Routes::new(&topology).expect("connected");
        }
    }
}
