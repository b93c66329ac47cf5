//! The flows of a scenario's workloads.

use super::Mistake;
use super::file::{Variant, Workload};
use super::units::{bytes, read, time_ns};
use crate::packet::NONE;
use crate::topology::Topology;
use crate::workload::{self, Collective, Flow, Incast, MAX_FLOWS, Poisson, SizeCdf};
use crate::world::MAX_PACKETS;
use std::path::Path;

pub(super) struct Traffic<'a> {
    pub(super) topology: &'a Topology,
    pub(super) duration_ps: u64,
    pub(super) seed: u64,
    pub(super) folder: &'a Path,
    pub(super) variant: &'a Variant,
    /// Payload of a packet.
    pub(super) mtu: u32,
}

/// Most workloads of a scenario. A flow stores the number of its workload in a byte.
const MAX_WORKLOADS: usize = 16;

/// Most hosts of a collective: a ring has two flows for each ordered pair of them.
const MAX_COLLECTIVE: u32 = (MAX_FLOWS / 2).isqrt() as u32;

impl Traffic<'_> {
    pub(super) fn flows(&self, workloads: &[Workload]) -> Result<Vec<Flow>, Mistake> {
        if workloads.is_empty() || workloads.len() > MAX_WORKLOADS {
            return Err(Mistake::new(format!(
                "the scenario has {} [[workload]] tables; write 1 to {MAX_WORKLOADS}",
                workloads.len()
            )));
        }
        let mut flows = Vec::new();
        for (group, workload) in workloads.iter().enumerate() {
            let priority = workload.stated_priority();
            if !(1..8).contains(&priority) {
                return Err(Mistake::new(format!(
                    "workload.priority = {priority}: data uses 1 to 7; priority 0 carries acknowledgements"
                )));
            }
            let template =
                Flow { start_ps: 0, bytes: 1, from: 0, to: 0, then: NONE, priority, group: group as u8 };
            self.add(workload, template, &mut flows)?;
            if flows.len() > MAX_FLOWS {
                return Err(Mistake::new(format!(
                    "the workloads have more than {MAX_FLOWS} flows; shorten the duration or lower the load"
                )));
            }
        }
        let packets = |flow: &Flow| flow.bytes.div_ceil(u64::from(self.mtu.max(1)));
        if let Some(flow) = flows.iter().find(|flow| packets(flow) > MAX_PACKETS) {
            return Err(Mistake::new(format!(
                "a flow of {} bytes has {} packets of host.mtu = {} bytes; at most {MAX_PACKETS} can be simulated",
                flow.bytes,
                packets(flow),
                self.mtu
            )));
        }
        if flows.is_empty() {
            return Err(Mistake::new("the workloads have no flow; lengthen the duration or raise the load"));
        }
        Ok(flows)
    }

    fn add(&self, workload: &Workload, template: Flow, flows: &mut Vec<Flow>) -> Result<(), Mistake> {
        let hosts = self.topology.hosts;
        match workload {
            Workload::Poisson { cdf, load, .. } => {
                let load = check_load(self.variant.load.unwrap_or(*load))?;
                let sizes = self.sizes(cdf)?;
                let until_ps = self.duration_ps;
                let all = Poisson { sizes, load, host_rate: self.host_rate(), hosts, until_ps };
                flows.extend(workload::poisson(&all, self.seed, template).take(MAX_FLOWS + 1));
            }
            Workload::Incast { fan_in, size, to, start, load, .. } => {
                let fan_in = self.variant.fan_in.unwrap_or(*fan_in);
                if fan_in == 0 || fan_in >= hosts {
                    return Err(Mistake::new(format!(
                        "incast fan_in = {fan_in}: the topology has {hosts} hosts, so use 1 to {}",
                        hosts - 1
                    )));
                }
                if let Some(to) = to.filter(|to| *to >= hosts) {
                    return Err(Mistake::new(format!(
                        "incast to = {to}: hosts are numbered 0 to {}",
                        hosts - 1
                    )));
                }
                let bytes = self.size(size)?;
                let every_ps = load.map(check_load).transpose()?.map(|load| {
                    let bytes_per_ps = load * self.host_rate() as f64 * f64::from(hosts) / 8e12;
                    f64::from(fan_in) * bytes as f64 / bytes_per_ps
                });
                let start_ps = self.start(start)?;
                let until_ps = self.duration_ps;
                let incast = Incast { fan_in, bytes, to: *to, start_ps, every_ps, hosts, until_ps };
                flows.extend(workload::incast(&incast, self.seed, template));
            }
            Workload::AllToAll { size, hosts, start, .. } => {
                let collective = self.collective(size, *hosts, start)?;
                flows.extend(workload::all_to_all(&collective, template));
            }
            Workload::AllReduce { size, hosts, start, .. } => {
                let collective = self.collective(size, *hosts, start)?;
                flows.extend(workload::ring_all_reduce(&collective, flows.len() as u32, template));
            }
            Workload::Flows { flows: list, .. } => {
                for (from, to, size, start) in list {
                    if *from >= hosts || *to >= hosts || from == to {
                        return Err(Mistake::new(format!(
                            "flow {from} to {to}: it needs two different hosts between 0 and {}",
                            hosts - 1
                        )));
                    }
                    let start_ps = (time_ns("workload.flows", start)? * 1000.0) as u64;
                    let bytes = self.message("workload.flows", size)?;
                    flows.push(Flow { start_ps, bytes, from: *from, to: *to, ..template });
                }
            }
            Workload::Trace { path, .. } => {
                let text = read(self.folder, "workload.path", path)?;
                let trace = workload::parse_flows(&text, hosts, template.group);
                flows.extend(trace.map_err(|error| Mistake::new(format!("{path}: {error}")))?);
            }
        }
        Ok(())
    }

    fn host_rate(&self) -> u64 {
        self.topology.links.first().map_or(1, |link| link.rate)
    }

    fn sizes(&self, cdf: &str) -> Result<SizeCdf, Mistake> {
        if let Some(bytes) = cdf.strip_prefix("fixed:") {
            let bytes = self.message("workload.cdf", bytes)?;
            // Two points make the distribution a step.
            let text = format!("{bytes} 0\n{bytes} 100\n");
            return SizeCdf::parse(&text).map_err(|error| Mistake::new(format!("cdf: {error}")));
        }
        if let Some(sizes) = SizeCdf::named(cdf) {
            return Ok(sizes);
        }
        if !cdf.ends_with(".cdf") {
            let names: Vec<&str> = SizeCdf::names().collect();
            return Err(Mistake::new(format!(
                "workload.cdf = {cdf:?} is unknown; choose one of {}, fixed:SIZE, or a file that ends in .cdf",
                names.join(", ")
            )));
        }
        let text = read(self.folder, "workload.cdf", cdf)?;
        SizeCdf::parse(&text).map_err(|error| Mistake::new(format!("{cdf}: {error}")))
    }

    fn size(&self, size: &str) -> Result<u64, Mistake> {
        self.message("size", self.variant.size.as_deref().unwrap_or(size))
    }

    /// The bytes of one message.
    fn message(&self, key: &str, text: &str) -> Result<u64, Mistake> {
        let bytes = bytes(key, text)? as u64;
        match bytes {
            0 => Err(Mistake::new(format!("{key} = {text:?}: a message has at least 1 byte"))),
            bytes => Ok(bytes),
        }
    }

    fn start(&self, start: &Option<String>) -> Result<u64, Mistake> {
        let start = start.as_deref().unwrap_or("0ns");
        let start_ps = time_ns("start", start)? * 1000.0;
        match (start_ps as u64) < self.duration_ps {
            true => Ok(start_ps as u64),
            false => Err(Mistake::new(format!("start = {start:?} is not before the duration; lower it"))),
        }
    }

    fn collective(
        &self,
        size: &str,
        hosts: Option<u32>,
        start: &Option<String>,
    ) -> Result<Collective, Mistake> {
        let all = self.topology.hosts;
        let hosts = hosts.unwrap_or(all);
        let most = all.min(MAX_COLLECTIVE);
        if !(2..=most).contains(&hosts) {
            return Err(Mistake::new(format!("a collective of {hosts} hosts: use 2 to {most}")));
        }
        Ok(Collective { hosts, bytes: self.size(size)?, start_ps: self.start(start)? })
    }
}

fn check_load(load: f64) -> Result<f64, Mistake> {
    match load > 0.0 && load <= 2.0 {
        true => Ok(load),
        false => {
            Err(Mistake::new(format!("load = {load} is outside of 0 … 2 (0.5 is 50 % of each host's rate)")))
        }
    }
}
