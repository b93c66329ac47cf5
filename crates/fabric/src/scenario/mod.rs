//! Scenario files: topology, switches, hosts, congestion control, workloads and variants, in TOML.
//!
//! Every mistake is one sentence that names the key, the value and what to write instead.

mod file;
mod live;
mod traffic;
mod units;

pub use live::{HostCommand, Live};

use crate::switch::{Balance, Pfc, Red, SwitchConfig};
use crate::topology::{FatTree, Impossible, LeafSpine, MAX_LINKS, MAX_NODES, Routes, Topology};
use crate::workload::Flow;
use crate::world::{HostConfig, HostModel, Recovery, World, WorldConfig};
use ferroce_proto::cc::{Choice, CongestionControl};
use ferroce_proto::verbs::Mtu;
use ferroce_proto::wire::Bth;
use file::{File, Shape, Variant};
use std::path::{Path, PathBuf};
use units::{bytes, rate, time_ns};

/// A mistake in a scenario: what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(String);

impl Mistake {
    fn new(what: impl Into<String>) -> Mistake {
        Mistake(what.into())
    }
}

/// A scenario that was read and checked.
#[derive(Debug)]
pub struct Scenario {
    file: File,
    topology: Topology,
    folder: PathBuf,
    variants: Vec<Variant>,
    /// The priorities that carry data, as bits: those of the workloads and of the flows of traces.
    priorities: u8,
}

/// One run of a scenario: a variant with all its parts.
#[derive(Debug)]
pub struct Run {
    /// Its name: the variant's, or that of the congestion control.
    pub name: String,
    /// The congestion control as the file states it.
    pub control: String,
    /// The fabric at time 0.
    pub world: World,
    /// The run ends here even if flows are left.
    pub limit_ps: u64,
}

impl Scenario {
    /// Reads a scenario. Files that it names are relative to `folder`.
    pub fn parse(text: &str, folder: &Path) -> Result<Scenario, Mistake> {
        Scenario::parse_for(text, folder, false)
    }

    fn parse_for(text: &str, folder: &Path, live: bool) -> Result<Scenario, Mistake> {
        let file: File = toml::from_str(text).map_err(|error| units::explain(text, &error))?;
        let topology = build_topology(&file.topology, folder)?;
        topology.check().map_err(|error| Mistake::new(format!("[topology]: {error}")))?;
        let variants = match (file.variant.is_empty(), &file.control) {
            (false, _) => file.variant.clone(),
            (true, Some(control)) => vec![Variant { control: Some(control.clone()), ..Variant::default() }],
            (true, None) => {
                return Err(Mistake::new(
                    "the scenario names no congestion control; add `control = \"dcqcn-nic\"` at the top, or [[variant]] tables",
                ));
            }
        };
        let default = if live && file.workload.is_empty() { 1 << live::DATA_PRIORITY } else { 0 };
        let priorities = file.workload.iter().fold(default, |bits, workload| bits | 1 << workload.priority());
        let mut scenario = Scenario { file, topology, folder: folder.to_owned(), variants, priorities };
        let flows = match live && scenario.file.workload.is_empty() {
            true => Vec::new(),
            false => scenario.flows(&scenario.variants[0])?,
        };
        scenario.priorities = flows.iter().fold(priorities, |bits, flow| bits | 1 << flow.priority);
        for at in 0..scenario.variants.len() {
            scenario.world_config(&scenario.variants[at])?;
        }
        Ok(scenario)
    }

    /// The name of the scenario.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// What the scenario shows, in its author's words.
    pub fn about(&self) -> &str {
        &self.file.about
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.variants.len()
    }

    /// Prepares a run. `seed` replaces the seed of the file; `replay` keeps the queues of all links.
    pub fn run(&self, at: usize, seed: Option<u64>, replay: bool) -> Result<Run, Mistake> {
        let variant = &self.variants[at];
        let mut config = self.world_config(variant)?;
        config.seed = seed.unwrap_or(config.seed);
        config.replay = replay;
        let seed = config.seed;
        let flows = self.flows_with_seed(variant, seed)?;
        let control = config.control.to_string();
        let routes = self.routes()?;
        Ok(Run {
            name: variant.name.clone().unwrap_or_else(|| control.clone()),
            control,
            world: World::new(config, &self.topology, routes, flows),
            limit_ps: self.limit_ps()?,
        })
    }

    fn routes(&self) -> Result<Routes, Mistake> {
        Routes::new(&self.topology).map_err(|error| Mistake::new(format!("[topology]: {error}")))
    }

    fn duration_ps(&self) -> Result<u64, Mistake> {
        let ns = time_ns("duration", &self.file.duration)?;
        if !(1000.0..=1e10).contains(&ns) {
            return Err(Mistake::new(format!("duration = {:?} is outside of 1us … 10s", self.file.duration)));
        }
        Ok((ns * 1000.0) as u64)
    }

    fn limit_ps(&self) -> Result<u64, Mistake> {
        let duration = self.duration_ps()?;
        let Some(limit) = &self.file.limit else { return Ok(duration) };
        let limit_ps = (time_ns("limit", limit)? * 1000.0) as u64;
        if limit_ps < duration {
            return Err(Mistake::new(format!(
                "limit = {limit:?} ends the run before duration = {:?}; make it longer",
                self.file.duration
            )));
        }
        Ok(limit_ps)
    }

    fn flows(&self, variant: &Variant) -> Result<Vec<Flow>, Mistake> {
        self.flows_with_seed(variant, self.file.seed)
    }

    fn flows_with_seed(&self, variant: &Variant, seed: u64) -> Result<Vec<Flow>, Mistake> {
        let traffic = traffic::Traffic {
            topology: &self.topology,
            duration_ps: self.duration_ps()?,
            seed,
            folder: &self.folder,
            variant,
            mtu: self.file.host.mtu,
        };
        traffic.flows(&self.file.workload)
    }

    fn world_config(&self, variant: &Variant) -> Result<WorldConfig, Mistake> {
        let file = &self.file;
        let control = variant.control.as_ref().or(file.control.as_ref());
        let control = control.ok_or_else(|| {
            Mistake::new(
                "a [[variant]] has no congestion control; add `control` to it or at the top of the scenario",
            )
        })?;
        let control: Choice = control.parse().map_err(|error| Mistake::new(format!("control: {error}")))?;
        let host = self.host_config(variant, &control)?;
        let loss = variant.loss.unwrap_or(file.loss);
        if !(0.0..=0.5).contains(&loss) {
            return Err(Mistake::new(format!("loss = {loss} is outside of 0 … 0.5 (0.01 is 1 %)")));
        }
        let base_rtt = file.host.base_rtt.as_ref().map(|text| time_ns("host.base_rtt", text)).transpose()?;
        let sample_ps = match &file.sample {
            Some(sample) => (time_ns("sample", sample)? * 1000.0).max(1000.0) as u64,
            None => (self.limit_ps()? / 500).max(1000),
        };
        let switch = self.switch_config(variant, &host)?;
        self.check_buffers(&switch)?;
        let base_rtt_ns = base_rtt.map(|ns| ns.max(1.0) as u64);
        Ok(WorldConfig {
            switch,
            host,
            control,
            base_rtt_ns,
            loss,
            seed: file.seed,
            sample_ps,
            replay: false,
        })
    }

    fn host_config(&self, variant: &Variant, control: &Choice) -> Result<HostConfig, Mistake> {
        let host = &self.file.host;
        let ps = |key: &str, text: &str| Ok((time_ns(key, text)? * 1000.0).max(1.0) as u64);
        let rto_ps = ps("host.rto", variant.rto.as_ref().unwrap_or(&host.rto))?;
        // A variant with its own time-out does not take the low one of the others.
        let rto_low = variant.rto_low.as_ref().or(host.rto_low.as_ref().filter(|_| variant.rto.is_none()));
        let recovery = match variant.recovery.as_deref().unwrap_or(&host.recovery) {
            "go-back-n" => Recovery::GoBackN,
            "selective" => Recovery::Selective,
            other => {
                return Err(Mistake::new(format!(
                    "host.recovery = {other:?} is unknown; choose \"go-back-n\" or \"selective\""
                )));
            }
        };
        let added = host.header.max(host.telemetry);
        if !(64..=65536).contains(&host.mtu) || added > 1000 || !(20..=1000).contains(&host.ack) {
            return Err(Mistake::new(format!(
                "host.mtu = {}, header = {}, telemetry = {}, ack = {}: use an mtu of 64 to 65536 bytes, a header and telemetry of at most 1000 each, and an ack of 20 to 1000",
                host.mtu, host.header, host.telemetry, host.ack
            )));
        }
        let path =
            ferroce_proto::cc::Path { line_rate: 1_000_000_000, base_rtt_ns: 1000, mtu: host.mtu, hops: 2 };
        let telemetry = control.build(&path).needs().telemetry;
        let model = match variant.model.as_deref().unwrap_or(&host.model) {
            "light" => HostModel::Light,
            "queue-pairs" => HostModel::QueuePairs,
            other => {
                return Err(Mistake::new(format!(
                    "host.model = {other:?} is unknown; choose \"light\" or \"queue-pairs\""
                )));
            }
        };
        if model == HostModel::QueuePairs && Mtu::from_bytes(host.mtu).is_none() {
            return Err(Mistake::new(format!(
                "host.mtu = {}: a queue pair has an MTU of 256, 512, 1024, 2048 or 4096 bytes; choose one, or model = \"light\"",
                host.mtu
            )));
        }
        if model == HostModel::QueuePairs && telemetry {
            return Err(Mistake::new(format!(
                "control = \"{control}\" needs telemetry, which packets of a queue pair do not carry; use it with host.model = \"light\""
            )));
        }
        if model == HostModel::QueuePairs && host.header < Bth::LEN as u32 {
            return Err(Mistake::new(format!(
                "host.header = {}: the packets of a queue pair have a BTH of {} bytes; make it longer",
                host.header,
                Bth::LEN
            )));
        }
        Ok(HostConfig {
            model,
            mtu: host.mtu,
            header: host.header,
            ack: host.ack,
            telemetry: if telemetry { host.telemetry } else { 0 },
            recovery,
            ack_every: host.ack_every.clamp(1, 1000),
            rto_ps,
            rto_low_ps: rto_low.map_or(Ok(rto_ps), |text| ps("host.rto_low", text))?,
            nack_interval_ps: ps("host.nack_interval", &host.nack_interval)?,
            reorder: variant.reorder.unwrap_or(host.reorder),
            ack_priority: host.ack_priority.min(7),
        })
    }

    fn switch_config(&self, variant: &Variant, host: &HostConfig) -> Result<SwitchConfig, Mistake> {
        let switch = &self.file.switch;
        let balance = match variant.balance.as_deref().unwrap_or(&switch.balance) {
            "ecmp" => Balance::Ecmp,
            "spray" => Balance::Spray,
            "least-queue" => Balance::LeastQueue,
            other => {
                return Err(Mistake::new(format!(
                    "switch.balance = {other:?} is unknown; choose \"ecmp\", \"spray\" or \"least-queue\""
                )));
            }
        };
        let host_rate = self.host_rate();
        let headroom = switch.headroom.as_ref().map(|text| bytes("switch.headroom", text)).transpose()?;
        let pfc = Pfc {
            alpha: switch.alpha,
            alpha_rate: host_rate,
            reserve: bytes("switch.reserve", &switch.reserve)? as u32,
            resume_offset: 3 * host.mtu,
            headroom: headroom.map(|bytes| bytes as u32),
            max_packet: host.mtu + host.header + host.telemetry,
            lossless: self.priorities,
        };
        for (key, alpha) in [("alpha", switch.alpha), ("egress_alpha", switch.egress_alpha)] {
            if !(0.001..=1000.0).contains(&alpha) {
                return Err(Mistake::new(format!("switch.{key} = {alpha} is outside of 0.001 … 1000")));
            }
        }
        let ecn = variant.ecn.as_ref().or(switch.ecn.as_ref());
        Ok(SwitchConfig {
            ports: Vec::new(),
            buffer: bytes("switch.buffer", &switch.buffer)? as u64,
            pfc: variant.pfc.unwrap_or(switch.pfc).then_some(pfc),
            egress_alpha: switch.egress_alpha,
            red: ecn.map(red).transpose()?,
            balance,
        })
    }

    /// Checks that the buffer of every switch is larger than its headrooms and reserves together.
    fn check_buffers(&self, switch: &SwitchConfig) -> Result<(), Mistake> {
        let ports = self.topology.ports();
        for (node, ports) in ports.iter().enumerate().skip(self.topology.hosts as usize) {
            let ports = ports
                .iter()
                .map(|port| crate::switch::PortConfig { rate: port.rate, delay_ns: port.delay_ns })
                .collect();
            let switch = SwitchConfig { ports, ..switch.clone() };
            let aside = switch.set_aside();
            if aside >= switch.buffer {
                return Err(Mistake::new(format!(
                    "switch.buffer = {} bytes is too small: headroom and reserve of the {} ports of switch {} need {aside} bytes; enlarge it or set pfc = false",
                    switch.buffer,
                    switch.ports.len(),
                    node - self.topology.hosts as usize
                )));
            }
        }
        Ok(())
    }

    fn host_rate(&self) -> u64 {
        self.topology.links.first().map_or(1, |link| link.rate)
    }
}

fn red(ecn: &file::Ecn) -> Result<Red, Mistake> {
    let red = Red {
        kmin: bytes("ecn.kmin", &ecn.kmin)?,
        kmax: bytes("ecn.kmax", &ecn.kmax)?,
        pmax: ecn.pmax,
        rate: ecn.at.as_ref().map_or(Ok(0.0), |text| rate("ecn.at", text))? as u64,
    };
    if !(0.0..=1.0).contains(&red.pmax) || red.kmin > red.kmax {
        return Err(Mistake::new(format!(
            "ecn has kmin {} and kmax {} bytes and pmax {}; kmin must not exceed kmax, and pmax is between 0 and 1",
            red.kmin, red.kmax, red.pmax
        )));
    }
    Ok(red)
}

fn build_topology(shape: &Shape, folder: &Path) -> Result<Topology, Mistake> {
    let link =
        |(r, d): (&str, &str)| Ok((rate("topology.rate", r)? as u64, time_ns("topology.delay", d)? as u64));
    let impossible = |error: Impossible| Err(Mistake::new(format!("[topology]: {error}")));
    let count = |nodes: u64| match nodes <= u64::from(MAX_NODES) {
        true => Ok(()),
        false => impossible(Impossible::Nodes(nodes)),
    };
    let count_links = |links: u64| match links <= u64::from(MAX_LINKS) {
        true => Ok(()),
        false => impossible(Impossible::TooManyLinks(links)),
    };
    Ok(match shape {
        Shape::Star { hosts, rate, delay } => {
            count(u64::from(*hosts))?;
            Topology::star(*hosts, link((rate, delay))?)
        }
        Shape::Dumbbell { left, right, rate, trunk_rate, delay, trunk_delay } => {
            count(u64::from(*left) + u64::from(*right))?;
            let trunk = link((trunk_rate.as_ref().unwrap_or(rate), trunk_delay.as_ref().unwrap_or(delay)))?;
            Topology::chain(&[*left, *right], link((rate, delay))?, trunk)
        }
        Shape::ParkingLot { hosts, rate, trunk_rate, delay } => {
            count(hosts.iter().map(|count| u64::from(*count) + 1).sum())?;
            let trunk = link((trunk_rate.as_ref().unwrap_or(rate), delay))?;
            Topology::chain(hosts, link((rate, delay))?, trunk)
        }
        Shape::LeafSpine { leaves, spines, hosts_per_leaf, rate, trunk_rate, delay } => {
            count(u64::from(*leaves) * (u64::from(*hosts_per_leaf) + 1) + u64::from(*spines))?;
            count_links(u64::from(*leaves) * (u64::from(*hosts_per_leaf) + u64::from(*spines)))?;
            let trunk = link((trunk_rate.as_ref().unwrap_or(rate), delay))?;
            let shape = LeafSpine { leaves: *leaves, spines: *spines, hosts_per_leaf: *hosts_per_leaf };
            shape.build(link((rate, delay))?, trunk)
        }
        Shape::FatTree { k, pods, tors, aggs, cores_per_agg, hosts_per_tor, rate, trunk_rate, delay } => {
            let tree = match (k, pods, tors, aggs, cores_per_agg, hosts_per_tor) {
                (Some(k), None, None, None, None, None) if k % 2 == 0 => FatTree::of_k(*k),
                (None, Some(pods), Some(tors), Some(aggs), Some(cores_per_agg), Some(hosts_per_tor)) => {
                    FatTree {
                        pods: *pods,
                        tors: *tors,
                        aggs: *aggs,
                        cores_per_agg: *cores_per_agg,
                        hosts_per_tor: *hosts_per_tor,
                    }
                }
                _ => {
                    return Err(Mistake::new(
                        "a fat-tree needs either an even k, or all of pods, tors, aggs, cores_per_agg and hosts_per_tor",
                    ));
                }
            };
            count(tree.nodes())?;
            count_links(tree.links())?;
            tree.build(link((rate, delay))?, link((trunk_rate.as_ref().unwrap_or(rate), delay))?)
        }
        Shape::File { path } => {
            let text = units::read(folder, "topology.path", path)?;
            crate::topology::parse_topology(&text)
                .map_err(|error| Mistake::new(format!("{path}: {error}")))?
        }
    })
}

#[cfg(test)]
mod tests;
