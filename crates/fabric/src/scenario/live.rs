//! The live part of a scenario: which command runs on which host, and the fabric between them.

use super::units::time_ns;
use super::{Mistake, Scenario};
use crate::world::World;
use ferroce_proto::wire::{Bth, ICRC_LEN, Ipv4Header, UdpHeader};
use serde::Deserialize;
use std::path::Path;

/// Priority of data in scenarios without a workload.
pub(super) const DATA_PRIORITY: u8 = 3;

/// A `[[run]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunTable {
    host: Option<u32>,
    hosts: Option<Vec<u32>>,
    command: String,
    times: Option<u32>,
    start: Option<String>,
    #[serde(default)]
    server: bool,
    listen: Option<u16>,
}

/// A command of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCommand {
    /// The host.
    pub host: u32,
    /// Its number among the copies of the same table on this host, from 0.
    pub copy: u32,
    /// A line for the shell.
    pub command: String,
    /// Start in nanoseconds after all servers listen. Servers start immediately.
    pub start_ns: u64,
    /// Whether it is a server. Servers start first and end when all other commands have ended.
    pub is_server: bool,
    /// The TCP port that it listens on when it is ready.
    pub listen: Option<u16>,
}

/// A fabric for external hosts, with the parameters of their packets.
#[derive(Debug)]
pub struct Live {
    /// Name of the run.
    pub name: String,
    /// The congestion control as the file states it.
    pub control: String,
    /// The same, with the line rate and the base RTT of this fabric.
    pub live_control: String,
    /// The fabric.
    pub world: World,
    /// RDMA payload of a full packet.
    pub mtu: u32,
    /// Bytes that the wire adds to each IP packet.
    pub overhead: u32,
    /// Priority of packets without a DSCP.
    pub data_priority: u8,
    /// Priority of ACKs and CNPs.
    pub ack_priority: u8,
}

/// Most commands of a live run.
const MAX_COMMANDS: usize = 1024;
/// IPv4, UDP, BTH and ICRC: the part of `host.header` that belongs to the IP packet.
const ROCE_BYTES: u32 = (Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN + ICRC_LEN) as u32;
/// Shortest time between two samples, in picoseconds: the thread that forwards packets takes them.
const MIN_SAMPLE_PS: u64 = 1_000_000_000;

impl Scenario {
    /// Reads a scenario for a live run, which needs no workload.
    pub fn parse_live(text: &str, folder: &Path) -> Result<Scenario, Mistake> {
        Scenario::parse_for(text, folder, true)
    }

    /// Whether there is something to simulate.
    pub fn has_workload(&self) -> bool {
        !self.file.workload.is_empty()
    }

    /// The names of all runs.
    pub fn run_names(&self) -> impl Iterator<Item = &str> {
        let control = self.file.control.as_deref();
        self.variants.iter().map(move |variant| {
            variant.name.as_deref().or(variant.control.as_deref()).or(control).unwrap_or_default()
        })
    }

    /// The commands of all hosts.
    pub fn commands(&self) -> Result<Vec<HostCommand>, Mistake> {
        let all = self.topology.hosts;
        let mut commands = Vec::new();
        for (at, run) in self.file.run.iter().enumerate() {
            let wrong = |what: String| Mistake::new(format!("[[run]] {}: {what}", at + 1));
            let hosts = match (run.host, &run.hosts) {
                (Some(host), None) => vec![host],
                (None, Some(hosts)) => hosts.clone(),
                (None, None) => (0..all).collect(),
                (Some(_), Some(_)) => return Err(wrong("it has both host and hosts; keep one".into())),
            };
            if let Some(host) = hosts.iter().find(|host| **host >= all) {
                return Err(wrong(format!("host {host} does not exist; hosts are 0 to {}", all - 1)));
            }
            let times = run.times.unwrap_or(1);
            if times == 0 || hosts.len() * times as usize + commands.len() > MAX_COMMANDS {
                return Err(wrong(format!(
                    "{times} copies on {} hosts; a live run has 1 to {MAX_COMMANDS} commands",
                    hosts.len()
                )));
            }
            if run.listen.is_some_and(|port| u32::from(port) + times > 65536) {
                return Err(wrong("listen plus times exceeds port 65535; lower it".into()));
            }
            let start_ns = run.start.as_ref().map_or(Ok(0.0), |text| time_ns("run.start", text))? as u64;
            for host in hosts {
                commands.extend((0..times).map(|copy| HostCommand {
                    host,
                    copy,
                    command: run.command.clone(),
                    start_ns,
                    is_server: run.server,
                    listen: run.listen.map(|port| port + copy as u16),
                }));
            }
        }
        Ok(commands)
    }

    /// Prepares a live run.
    pub fn live(&self, at: usize, seed: Option<u64>) -> Result<Live, Mistake> {
        let variant = &self.variants[at];
        let mut config = self.world_config(variant)?;
        config.seed = seed.unwrap_or(config.seed);
        config.replay = true;
        config.sample_ps = config.sample_ps.max(MIN_SAMPLE_PS);
        let control = config.control.to_string();
        let host = config.host;
        let world = World::with_external_hosts(config, &self.topology, self.routes()?);
        Ok(Live {
            name: variant.name.clone().unwrap_or_else(|| control.clone()),
            live_control: self.live_control(&control, &world),
            control,
            world,
            mtu: host.mtu,
            overhead: host.header.saturating_sub(ROCE_BYTES),
            data_priority: self.priorities.trailing_zeros() as u8,
            ack_priority: host.ack_priority,
        })
    }

    /// A simulated queue pair gets the line rate and the base RTT from the topology; a real one gets them as parameters.
    fn live_control(&self, control: &str, world: &World) -> String {
        let mut text = control.to_owned();
        if !control.contains("line_rate=") {
            text += &format!(",line_rate={}Mb/s", self.host_rate() as f64 / 1e6);
        }
        if !control.contains("base_rtt=") {
            text += &format!(",base_rtt={}us", world.base_rtt_ns() as f64 / 1e3);
        }
        text
    }
}
