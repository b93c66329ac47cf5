//! The topology file format of the simulator published with HPCC.
//!
//! First line: nodes, switches, links. Second line: the numbers of the switches. Then a line per link: both ends, rate,
//! delay, error rate. The error rate must be 0: scenarios state loss for all links.

use super::{Impossible, Link, Topology};
use ferroce_proto::cc::{parse_rate, parse_time};

/// A file that is not of this format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadFile {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// Reads a topology. Hosts and switches keep their order; hosts are numbered before switches.
pub fn parse_topology(text: &str) -> Result<Topology, BadFile> {
    let bad = |line: usize, what: &str| BadFile { line: line + 1, what: what.to_owned() };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut words = || lines.next().map(|(at, line)| (at, line.split_whitespace().collect::<Vec<_>>()));
    let (at, head) = words().ok_or_else(|| bad(0, "the file is empty"))?;
    let numbers: Option<Vec<u32>> = head.iter().map(|word| word.parse().ok()).collect();
    let Some([nodes, switches, count]) = numbers.as_deref() else {
        return Err(bad(at, "expected three numbers: nodes, switches, links"));
    };
    if switches > nodes {
        return Err(bad(
            at,
            &format!("the topology has {switches} switches of {nodes} nodes; a switch is a node, too"),
        ));
    }
    if *nodes > super::MAX_NODES {
        return Err(BadFile { line: at + 1, what: Impossible::Nodes(u64::from(*nodes)).to_string() });
    }
    if *count > super::MAX_LINKS {
        return Err(BadFile { line: at + 1, what: Impossible::TooManyLinks(u64::from(*count)).to_string() });
    }
    let (at, list) = words().ok_or_else(|| bad(1, "expected the numbers of the switches"))?;
    let list: Option<Vec<u32>> = list.iter().map(|word| word.parse().ok().filter(|n| n < nodes)).collect();
    let list = list.filter(|list| list.len() == *switches as usize);
    let list =
        list.ok_or_else(|| bad(at, &format!("expected {switches} numbers of switches, all below {nodes}")))?;
    let mut number = vec![u32::MAX; *nodes as usize];
    let hosts = nodes - switches;
    for (at_list, switch) in list.iter().enumerate() {
        if number[*switch as usize] != u32::MAX {
            return Err(bad(at, &format!("switch {switch} is listed twice")));
        }
        number[*switch as usize] = hosts + at_list as u32;
    }
    for (next, node) in number.iter_mut().filter(|node| **node == u32::MAX).enumerate() {
        *node = next as u32;
    }
    let mut links = Vec::new();
    while let Some((at, words)) = words() {
        let [a, b, rate, delay, loss] = words[..] else {
            return Err(bad(at, "expected both ends, rate, delay and error rate of a link"));
        };
        let end = |word: &str| word.parse::<u32>().ok().and_then(|n| number.get(n as usize).copied());
        let (Some(a), Some(b)) = (end(a), end(b)) else {
            return Err(bad(at, &format!("a link ends at a node that is not below {nodes}")));
        };
        let rate = parse_rate(rate).map_err(|error| bad(at, &error.to_string()))?;
        let delay = parse_time(delay).map_err(|error| bad(at, &error.to_string()))?;
        if loss.parse::<f64>() != Ok(0.0) {
            return Err(bad(at, "the error rate of a link must be 0; set `loss` of the scenario"));
        }
        links.push(Link { a, b, rate: rate as u64, delay_ns: delay as u64 });
        if links.len() > *count as usize {
            return Err(bad(at, &format!("{count} links announced, more found")));
        }
    }
    if links.len() != *count as usize {
        return Err(bad(0, &format!("{count} links announced, {} found", links.len())));
    }
    Ok(Topology { hosts, tiers: tiers(hosts, *switches, &links), links })
}

/// Distance of each switch to the nearest host, at most 3.
fn tiers(hosts: u32, switches: u32, links: &[Link]) -> Vec<u8> {
    let mut tiers = vec![u8::MAX; (hosts + switches) as usize];
    tiers[..hosts as usize].fill(0);
    for tier in 1..=3 {
        for &Link { a, b, .. } in links {
            for (from, to) in [(a as usize, b as usize), (b as usize, a as usize)] {
                if tiers[from] == tier - 1 && tiers[to] > tier {
                    tiers[to] = tier;
                }
            }
        }
    }
    tiers.into_iter().skip(hosts as usize).map(|tier| tier.min(3)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file() {
        let topology = parse_topology(
            "4 1 3\n0\n0 1 100Gbps 1000ns 0.000000\n0 2 100Gbps 1us 0\n0 3 25Gbps 0.001ms 0\n",
        )
        .expect("good");
        assert_eq!((topology.hosts, topology.tiers.as_slice()), (3, &[1][..]));
        assert_eq!(topology.links[2], Link { a: 3, b: 2, rate: 25_000_000_000, delay_ns: 1000 });
        topology.check().expect("possible");
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, expected) in [
            ("", "line 1: the file is empty"),
            ("4 1\n", "line 1: expected three numbers: nodes, switches, links"),
            ("4 1 1\n9\n", "line 2: expected 1 numbers of switches, all below 4"),
            ("4 1 1\n0\n0 7 1Gbps 1us 0\n", "line 3: a link ends at a node that is not below 4"),
            ("4 1 1\n0\n0 1 fast 1us 0\n", "line 3: expected a rate with its unit such as 40Mb/s or 100Gb/s"),
            (
                "4 5 1\n0 1 2 3 4\n0 1 1Gbps 1us 0\n",
                "line 1: the topology has 5 switches of 4 nodes; a switch is a node, too",
            ),
            ("4 2 1\n0 0\n0 1 1Gbps 1us 0\n", "line 2: switch 0 is listed twice"),
            ("4 1 2000000\n0\n", "line 1: the topology has 2000000 links; at most 1000000 can be simulated"),
            ("4 1 0\n0\n0 1 1Gbps 1us 0\n", "line 3: 0 links announced, more found"),
            ("4 1 2\n0\n0 1 1Gbps 1us 0\n", "line 1: 2 links announced, 1 found"),
            (
                "4 1 1\n0\n0 1 1Gbps 1us 0.1\n",
                "line 3: the error rate of a link must be 0; set `loss` of the scenario",
            ),
        ] {
            assert_eq!(parse_topology(text).expect_err("a mistake").to_string(), expected);
        }
    }
}
