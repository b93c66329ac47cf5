//! Topology of a fabric: hosts, switches, links, and the shortest paths between hosts.

mod build;
mod hpcc;
mod routes;

pub use build::{FatTree, LeafSpine};
pub use hpcc::{BadFile, parse_topology};
pub use routes::{Routes, ShortestPath};

/// A link between two nodes, both directions alike. Nodes are numbered: first the hosts, then the switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// One end.
    pub a: u32,
    /// The other end.
    pub b: u32,
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay in nanoseconds.
    pub delay_ns: u64,
}

/// Hosts, switches and links.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Number of hosts. Each has exactly one link.
    pub hosts: u32,
    /// The tier of each switch: 1 next to the hosts, 2 above, 3 at the top.
    pub tiers: Vec<u8>,
    /// The links.
    pub links: Vec<Link>,
}

/// One end of a link, seen from its node.
#[derive(Clone, Copy, Debug)]
pub struct Adjacent {
    /// The node at the other end.
    pub node: u32,
    /// The number of the port at the other end.
    pub port: u32,
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay in nanoseconds.
    pub delay_ns: u64,
}

/// Why a topology cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// Too few hosts.
    #[error("the topology has {0} hosts; at least 2 are needed")]
    Hosts(u32),
    /// A host with another number of links than one.
    #[error("host {host} has {links} links; every host needs exactly one")]
    Links {
        /// The host.
        host: u32,
        /// Its links.
        links: usize,
    },
    /// A link to a node that does not exist, or to itself.
    #[error("link {a}–{b} is wrong: nodes are numbered 0 to {last}, and both ends must differ")]
    Ends {
        /// One end.
        a: u32,
        /// The other end.
        b: u32,
        /// The largest number of a node.
        last: u32,
    },
    /// A rate or a delay that cannot be simulated.
    #[error(
        "link {a}–{b} has {rate} bit/s and {delay_ns} ns; rates are 1 Mb/s to 10 Tb/s, delays at most 1 s"
    )]
    Speed {
        /// One end.
        a: u32,
        /// The other end.
        b: u32,
        /// Bits per second.
        rate: u64,
        /// Nanoseconds.
        delay_ns: u64,
    },
    /// Two hosts without a path between them.
    #[error("there is no path from host {0} to host {1}; add the missing link")]
    Unreachable(u32, u32),
    /// More than can be simulated.
    #[error("the topology has {0} nodes; at most {MAX_NODES} can be simulated")]
    Nodes(u64),
    /// More than can be simulated.
    #[error("the topology has {0} links; at most {MAX_LINKS} can be simulated")]
    TooManyLinks(u64),
    /// More than can be stored.
    #[error(
        "the topology needs {0} routes (switches × switches that have hosts); at most {MAX_ROUTES} can be stored, so use more hosts per switch"
    )]
    Routes(u64),
    /// A switch with more ports than can be numbered.
    #[error("switch {switch} has {ports} ports; at most {MAX_PORTS} can be simulated")]
    Ports {
        /// The switch.
        switch: u32,
        /// Its ports.
        ports: u32,
    },
}

/// Most nodes of a topology.
pub const MAX_NODES: u32 = 100_000;

/// Most links of a topology: they need about 100 bytes each.
pub const MAX_LINKS: u32 = 1_000_000;

/// Most entries of the route table: 256 MiB.
pub const MAX_ROUTES: u64 = 1 << 26;

/// Most ports of a switch: routes number them with 16 bits.
pub const MAX_PORTS: u32 = 65_535;

impl Topology {
    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.hosts + self.tiers.len() as u32
    }

    /// The tier of a node; 0 for hosts.
    pub fn tier(&self, node: u32) -> u8 {
        node.checked_sub(self.hosts).map_or(0, |switch| self.tiers[switch as usize])
    }

    /// The ports of every node, numbered in the order of the links.
    pub fn ports(&self) -> Vec<Vec<Adjacent>> {
        let mut ports: Vec<Vec<Adjacent>> = vec![Vec::new(); self.nodes() as usize];
        for link in &self.links {
            let (at_a, at_b) = (ports[link.a as usize].len() as u32, ports[link.b as usize].len() as u32);
            let Link { rate, delay_ns, .. } = *link;
            ports[link.a as usize].push(Adjacent { node: link.b, port: at_b, rate, delay_ns });
            ports[link.b as usize].push(Adjacent { node: link.a, port: at_a, rate, delay_ns });
        }
        ports
    }

    /// Checks that the topology can be simulated. [`Routes::new`] checks that all hosts can reach each other.
    pub fn check(&self) -> Result<(), Impossible> {
        if self.nodes() > MAX_NODES {
            return Err(Impossible::Nodes(u64::from(self.nodes())));
        }
        if self.links.len() > MAX_LINKS as usize {
            return Err(Impossible::TooManyLinks(self.links.len() as u64));
        }
        if self.hosts < 2 {
            return Err(Impossible::Hosts(self.hosts));
        }
        let last = self.nodes() - 1;
        let mut degree = vec![0u32; self.nodes() as usize];
        for &Link { a, b, rate, delay_ns } in &self.links {
            if a > last || b > last || a == b {
                return Err(Impossible::Ends { a, b, last });
            }
            if !(1_000_000..=10_000_000_000_000).contains(&rate) || delay_ns > 1_000_000_000 {
                return Err(Impossible::Speed { a, b, rate, delay_ns });
            }
            degree[a as usize] += 1;
            degree[b as usize] += 1;
        }
        let (hosts, switches) = degree.split_at(self.hosts as usize);
        if let Some(host) = hosts.iter().position(|links| *links != 1) {
            return Err(Impossible::Links { host: host as u32, links: hosts[host] as usize });
        }
        match switches.iter().position(|ports| *ports > MAX_PORTS) {
            Some(switch) => Err(Impossible::Ports { switch: switch as u32, ports: switches[switch] }),
            None => Ok(()),
        }
    }
}
