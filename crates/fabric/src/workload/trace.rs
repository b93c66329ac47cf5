//! The flow file format of the simulator published with HPCC.
//!
//! First line: number of flows. Then a line per flow: sender, receiver, priority, port, bytes, start in seconds.

use super::{Flow, MAX_FLOWS};
use crate::packet::NONE;
use crate::topology::BadFile;

/// Reads flows between `hosts` hosts.
pub fn parse_flows(text: &str, hosts: u32, group: u8) -> Result<Vec<Flow>, BadFile> {
    let bad = |line: usize, what: String| BadFile { line: line + 1, what };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let count = lines.next().and_then(|(_, line)| line.trim().parse::<usize>().ok());
    let count = count.ok_or_else(|| bad(0, "expected the number of flows".to_owned()))?;
    if count > MAX_FLOWS {
        return Err(bad(0, format!("{count} flows; at most {MAX_FLOWS} can be simulated")));
    }
    let mut flows = Vec::with_capacity(count.min(1 << 16));
    for (at, line) in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [from, to, priority, _port, bytes, start] = words[..] else {
            return Err(bad(
                at,
                "expected sender, receiver, priority, port, bytes and start in seconds".to_owned(),
            ));
        };
        let host = |word: &str| word.parse::<u32>().ok().filter(|host| *host < hosts);
        let (Some(from), Some(to)) = (host(from), host(to)) else {
            return Err(bad(at, format!("sender and receiver must be below {hosts}")));
        };
        let priority = priority.parse::<u8>().ok().filter(|priority| (1..8).contains(priority));
        let bytes = bytes.parse::<u64>().ok().filter(|bytes| (1..1 << 40).contains(bytes));
        let start = start.parse::<f64>().ok().filter(|start| (0.0..1e3).contains(start));
        let (Some(priority), Some(bytes), Some(start), true) = (priority, bytes, start, from != to) else {
            return Err(bad(
                at,
                "a flow needs two different hosts, priority 1 to 7, 1 byte to 1 TB, and a start below 1000 s"
                    .to_owned(),
            ));
        };
        flows.push(Flow { start_ps: (start * 1e12) as u64, bytes, from, to, then: NONE, priority, group });
        if flows.len() > count {
            break;
        }
    }
    match flows.len() == count {
        true => Ok(flows),
        false => Err(bad(0, format!("{count} flows announced, {} found", flows.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_and_its_mistakes() {
        let flows = parse_flows("2\n0 1 3 100 5000 0.000001\n1 0 3 100 1 2.0\n", 2, 0).expect("good");
        assert_eq!((flows[0].start_ps, flows[0].bytes, flows[1].from), (1_000_000, 5000, 1));
        for (text, expected) in [
            ("", "line 1: expected the number of flows"),
            ("1\n0 2 3 1 1 0\n", "line 2: sender and receiver must be below 2"),
            ("2\n0 1 3 1 1 0\n", "line 1: 2 flows announced, 1 found"),
            (
                "1\n0 1 3 1 0\n",
                "line 2: expected sender, receiver, priority, port, bytes and start in seconds",
            ),
        ] {
            assert_eq!(parse_flows(text, 2, 0).expect_err("a mistake").to_string(), expected);
        }
        for flow in ["0 0 3 1 1 0", "0 1 3 1 1 1000"] {
            let found = parse_flows(&format!("1\n{flow}\n"), 2, 0).expect_err(flow).to_string();
            assert!(found.starts_with("line 2: a flow needs two different hosts"), "{flow}: {found}");
        }
    }
}
