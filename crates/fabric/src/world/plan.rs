//! The start of a flow, before any feedback: the paths of its packets, and its first window.

use super::World;
use crate::topology::ShortestPath;
use crate::workload::Flow;
use ferroce_proto::cc::{CongestionControl, Path};

/// The paths of a flow with ECMP, and its first window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The nodes that data passes, with both hosts.
    pub data: Vec<u32>,
    /// The nodes that ACKs pass, with both hosts.
    pub acks: Vec<u32>,
    /// Bytes of payload that may be in flight at the start.
    pub window: u32,
}

/// Input of the ECMP hash for the data of a flow. Its ACKs use the complement.
pub(super) fn entropy(flow: u32, from: u32) -> u32 {
    flow ^ from.rotate_left(20)
}

impl World {
    /// The plan of a flow. With per-packet load balancing, packets take other paths than these.
    pub fn plan(&self, flow: u32) -> Plan {
        let Flow { from, to, .. } = self.flows[flow as usize];
        let hashed = entropy(flow, from);
        Plan {
            data: self.ecmp_path(from, to, hashed),
            acks: self.ecmp_path(to, from, !hashed),
            window: self.config.control.build(&self.path(&self.routes.shortest_path(from, to))).window(),
        }
    }

    /// The path as the controller of a flow gets it.
    pub(super) fn path(&self, path: &ShortestPath) -> Path {
        let line_rate = path.rates().first().copied().unwrap_or_default() / 8;
        Path { line_rate, base_rtt_ns: self.base_rtt_ns, mtu: self.config.host.mtu, hops: path.hops() }
    }

    fn ecmp_path(&self, from: u32, to: u32, entropy: u32) -> Vec<u32> {
        let adjacent = self.routes.adjacent();
        let mut nodes = vec![from];
        let mut node = from;
        while node != to {
            let port = match node.checked_sub(self.hosts.len() as u32) {
                None => 0,
                Some(number) => {
                    let ports = self.routes.ports(number, to);
                    usize::from(self.switches[number as usize].hash_port(ports, entropy))
                }
            };
            node = adjacent[node as usize][port].node;
            nodes.push(node);
        }
        nodes
    }
}
