//! What the program did: its posts and completions, which `FERROCE_OPERATIONS` records, on the time axis of the packets.
//!
//! Traffic through shared memory has no packets; its connections consist of operations alone.

use super::analysis::Analysis;
use super::histogram::{Histogram, Percentiles};
use super::pairing::{End, Pairing, Seed, SeenAt};
use crate::failure::Failure;
use ferroce_proto::wire::Service;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::Path;

/// Most bytes of a line. The longest line that the NIC writes has a fifth of them.
const MAX_LINE: u64 = 1024;
/// Posts that wait for their completions.
const MAX_POSTED: usize = 1 << 16;
const MAX_QUEUE_PAIRS: usize = 16_384;
/// Size of the reorder buffer in lines. A post is recorded when the verb returns, with the time when it began: a completion that
/// another thread polled may precede it in the file.
const REORDERED: usize = 4096;

/// A line of the record.
#[derive(Deserialize)]
struct Line {
    t: u64,
    qp: u32,
    op: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    wr_id: u64,
    #[serde(default)]
    bytes: u64,
    /// Whether a post has a completion if it succeeds.
    #[serde(default = "always")]
    signaled: bool,
    #[serde(default)]
    status: u32,
    #[serde(default)]
    peer: u32,
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
}

fn always() -> bool {
    true
}

/// A post or a completion.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Operation {
    /// Time since the start of the capture; 0 for an earlier operation.
    pub(super) time_ns: u64,
    /// The end of the connection.
    pub(super) end: u8,
    pub(super) is_post: bool,
    /// What was posted or completed.
    pub(super) name: String,
    pub(super) wr_id: u64,
    pub(super) bytes: u64,
    /// Status of a completion; 0 is success.
    pub(super) status: u32,
    /// From the post to this completion.
    pub(super) latency_ns: Option<u64>,
}

/// The operations of a connection.
#[derive(Debug, Default, Serialize)]
pub(super) struct Operations {
    pub(super) posts: u64,
    pub(super) completions: u64,
    pub(super) failed: u64,
    /// From a post to its completion, as the program sees it.
    pub(super) latency: Option<Percentiles>,
    /// The first ones.
    pub(super) listed: Vec<Operation>,
    pub(super) left_out: u64,
    #[serde(skip)]
    histogram: Histogram,
}

/// Reads the record of one run into the connections of its capture.
pub(super) struct Reader<'a> {
    analysis: &'a mut Analysis,
    /// Connection and end of a queue pair number, which is unique on a host.
    ends: HashMap<u32, (usize, u8)>,
    posted: HashMap<(u32, u64, bool), VecDeque<u64>>,
    waiting: usize,
    limit: usize,
    listed: usize,
}

/// Whether a file is a record of operations, not a capture.
pub(super) fn is_record(path: &Path) -> bool {
    let mut first = [0];
    File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"{"
}

impl<'a> Reader<'a> {
    /// Lists at most `limit` operations.
    pub(super) fn new(analysis: &'a mut Analysis, limit: usize) -> Reader<'a> {
        let mut ends = HashMap::new();
        for (number, connection) in analysis.connections.iter().enumerate() {
            for (end, about) in connection.seed.ends.iter().enumerate() {
                ends.extend(about.qpn.filter(|&qpn| qpn > 1).map(|qpn| (qpn, (number, end as u8))));
            }
        }
        Reader { analysis, ends, posted: HashMap::new(), waiting: 0, limit, listed: 0 }
    }

    /// Reads a file. Invalid lines are skipped: a killed program may leave half of one.
    pub(super) fn read(&mut self, path: &Path) -> Result<(), Failure> {
        let failure = |error| Failure::io(format!("cannot read {}", path.display()), error);
        let mut source = BufReader::new(File::open(path).map_err(failure)?);
        let (mut line, mut held, mut read) = (Vec::new(), BTreeMap::new(), 0_u64);
        loop {
            line.clear();
            if (&mut source).take(MAX_LINE).read_until(b'\n', &mut line).map_err(failure)? == 0 {
                break;
            }
            if let Ok(parsed) = serde_json::from_slice::<Line>(&line) {
                // Lines with equal times keep their order.
                read += 1;
                held.insert((parsed.t, read), parsed);
            }
            if held.len() == REORDERED {
                held.pop_first().into_iter().for_each(|(_, line)| self.take(line));
            }
        }
        held.into_values().for_each(|line| self.take(line));
        Ok(())
    }

    fn take(&mut self, line: Line) {
        // Without packets the first operation is the start.
        let plan = &mut self.analysis.plan;
        if plan.first_ns == 0 {
            plan.first_ns = line.t;
        }
        plan.last_ns = plan.last_ns.max(line.t);
        let start = plan.first_ns;
        if line.op == "connect" {
            return self.connect(&line);
        }
        let Some((number, end)) = self.end_of(line.qp, None) else { return };
        let is_post = line.op == "post";
        let is_receive = line.name == "RECV";
        let mut latency_ns = None;
        if is_post && line.signaled && self.waiting < MAX_POSTED {
            self.waiting += 1;
            self.posted.entry((line.qp, line.wr_id, is_receive)).or_default().push_back(line.t);
        } else if !is_post {
            // A failed completion does not show whether it belongs to a receive.
            let keys = [is_receive, !is_receive].map(|is_receive| (line.qp, line.wr_id, is_receive));
            let tried = if line.name.is_empty() { &keys[..] } else { &keys[..1] };
            let posted = tried.iter().find_map(|key| self.completed(*key));
            latency_ns = posted.map(|posted| line.t.saturating_sub(posted));
        }
        let operations = &mut self.analysis.connections[number].operations;
        operations.posts += u64::from(is_post);
        operations.completions += u64::from(!is_post);
        operations.failed += u64::from(line.status != 0);
        // The latency of a receive depends on when the peer sends.
        latency_ns.filter(|_| !is_receive).into_iter().for_each(|ns| operations.histogram.add(ns));
        if self.listed == self.limit {
            operations.left_out += 1;
            return;
        }
        self.listed += 1;
        let time_ns = line.t.saturating_sub(start);
        let (name, wr_id, bytes, status) = (line.name, line.wr_id, line.bytes, line.status);
        operations.listed.push(Operation { time_ns, end, is_post, name, wr_id, bytes, status, latency_ns });
    }

    /// Removes the oldest post that waits under this key. Returns its time.
    fn completed(&mut self, key: (u32, u64, bool)) -> Option<u64> {
        let Entry::Occupied(mut posts) = self.posted.entry(key) else { return None };
        let time = posts.get_mut().pop_front();
        if posts.get().is_empty() {
            posts.remove();
        }
        self.waiting -= usize::from(time.is_some());
        time
    }

    fn connect(&mut self, line: &Line) {
        let (Some(src), Some(dst)) = (line.src, line.dst) else { return };
        let ends = [End { addr: src, qpn: Some(line.qp) }, End { addr: dst, qpn: Some(line.peer) }];
        self.end_of(line.qp, Some(ends));
    }

    /// The connection and end of a queue pair; a new one if no packet of it was captured.
    fn end_of(&mut self, qp: u32, ends: Option<[End; 2]>) -> Option<(usize, u8)> {
        if let Some(&found) = self.ends.get(&qp) {
            return Some(found);
        }
        if self.analysis.connections.len() == MAX_QUEUE_PAIRS {
            return None;
        }
        let unknown = IpAddr::from([0, 0, 0, 0]);
        let ends = ends.unwrap_or([End { addr: unknown, qpn: Some(qp) }, End { addr: unknown, qpn: None }]);
        let number = self.analysis.add_without_packets(Seed {
            ends,
            service: Service::Rc,
            pairing: Pairing::Program,
            is_loopback: false,
            packets: 0,
            complaints: 0,
            mtu: None,
            seen: [SeenAt::default(); 2],
        });
        for (end, about) in ends.iter().enumerate() {
            self.ends.extend(about.qpn.map(|qpn| (qpn, (number, end as u8))));
        }
        Some((number, 0))
    }

    /// Completes the figures.
    pub(super) fn finish(self) {
        for connection in &mut self.analysis.connections {
            let operations = &mut connection.operations;
            operations.latency = operations.histogram.percentiles();
            operations.listed.sort_by_key(|operation| operation.time_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pairing::Pairer;
    use super::*;

    /// The operations of queue pair 7 in a record with these lines.
    fn read(name: &str, lines: &[&str]) -> Operations {
        let path = std::env::temp_dir().join(format!("ferroce-operations-{name}-{}", std::process::id()));
        std::fs::write(&path, lines.join("\n")).expect("a file of ours");
        let mut analysis = Analysis::new(Pairer::default().finish(), 100);
        let mut reader = Reader::new(&mut analysis, 100);
        reader.read(&path).expect("a record");
        assert_eq!((reader.waiting, reader.posted.len()), (0, 0), "{name}: posts without completions");
        reader.finish();
        std::fs::remove_file(path).expect("our own file");
        analysis.connections.remove(0).operations
    }

    /// Three posts of one number, of which only the last has a completion.
    #[test]
    fn a_completion_belongs_to_a_signaled_post() {
        let post = |t, signaled| {
            format!(
                r#"{{"t":{t},"qp":7,"op":"post","name":"SEND","wr_id":5,"bytes":1,"signaled":{signaled}}}"#
            )
        };
        let lines = [post(100, false), post(200, false), post(300, true)];
        let completion = r#"{"t":350,"qp":7,"op":"completion","name":"SEND","wr_id":5}"#;
        let found = read("signaled", &[&lines[0], &lines[1], &lines[2], completion]);
        assert_eq!((found.posts, found.completions), (3, 1));
        assert_eq!(found.listed.last().and_then(|operation| operation.latency_ns), Some(50));
    }

    /// The thread that polls wrote its line before the thread that posts. An older record does not show what is signaled.
    #[test]
    fn a_post_below_its_completion_is_found() {
        let completion = r#"{"t":150,"qp":7,"op":"completion","name":"SEND","wr_id":5}"#;
        let post = r#"{"t":100,"qp":7,"op":"post","name":"SEND","wr_id":5,"bytes":1}"#;
        let found = read("order", &[completion, post]);
        let listed: Vec<_> = found.listed.iter().map(|o| (o.time_ns, o.is_post, o.latency_ns)).collect();
        assert_eq!(listed, [(0, true, None), (50, false, Some(50))]);
    }
}
