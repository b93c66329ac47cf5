//! Ratios that are wanted of the pieces: a fetch to a bare READ, a lock to a bare atomic, a barrier to MPI's, loss to none.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::figures::seconds_of;
use super::pieces::Piece;
use super::programs::named;
use super::worker::{Circumstance, Worker};
use crate::figure::median;

const ROUNDS: usize = 5;
/// Large enough that losses cost more than the start.
const LOSSY: &str = "-n 256 -m 2048 -t 100";

/// A figure that some piece prints.
type Source = (Piece, &'static str);

struct Goal {
    what: &'static str,
    ours: Source,
    peer: &'static str,
    theirs: Source,
    at_most: f64,
}

const GOALS: [Goal; 4] = [
    Goal {
        what: "read fault and fetch of a page, UDP link between two namespaces",
        ours: (Piece::TwoHosts, "read fault and fetch of a page"),
        peer: "bare READ of 4 KiB on that link",
        theirs: (Piece::TwoHosts, "bare READ of 4096 bytes"),
        at_most: 1.5,
    },
    Goal {
        what: "lock and unlock, remote, nobody else, that link",
        ours: (Piece::TwoHosts, "lock and unlock, remote, nobody else"),
        peer: "bare atomic of 8 bytes on that link",
        theirs: (Piece::TwoHosts, "bare FETCH_ADD"),
        at_most: 2.5,
    },
    Goal {
        what: "empty barrier, 2 processes, local",
        ours: (Piece::Local, "empty barrier"),
        peer: "MPI_Barrier of Open MPI, shared memory",
        theirs: (Piece::MpiShared, "empty barrier"),
        at_most: 1.0,
    },
    Goal {
        what: "empty barrier, 2 processes, that link",
        ours: (Piece::TwoHosts, "empty barrier"),
        peer: "MPI_Barrier of Open MPI, tcp, that link",
        theirs: (Piece::MpiTcp, "empty barrier"),
        at_most: 1.0,
    },
];

/// One comparison.
pub(super) struct Ratio {
    what: String,
    ours_us: f64,
    peer: String,
    theirs_us: f64,
    at_most: f64,
}

/// Every figure of every round, by piece and name.
type Measured = HashMap<(&'static str, String), Vec<f64>>;

/// Runs everything; without Open MPI the barriers have no rows.
pub(super) fn measure(worker: &mut Worker, mpi: bool) -> Result<Vec<Ratio>, String> {
    let kinds = [("o", Piece::TwoHosts), ("l", Piece::Local), ("s", Piece::MpiShared), ("t", Piece::MpiTcp)];
    let mut all = Measured::new();
    let mut sor: [Vec<f64>; 2] = Default::default();
    for round in 0..ROUNDS {
        eprintln!("pieces beside bare operations: round {} of {ROUNDS}", round + 1);
        for (key, piece) in kinds.into_iter().filter(|(key, _)| mpi || !["s", "t"].contains(key)) {
            for (name, us) in worker.measure(piece)?.as_object().into_iter().flatten() {
                all.entry((key, name.clone())).or_default().extend(us.as_f64());
            }
        }
        for (circumstance, times) in [Circumstance::Wire, Circumstance::Loss].into_iter().zip(&mut sor) {
            let program = named("sor").ok_or("no sor")?;
            times.push(1e6 * seconds_of(worker, program, 2, "rdma", circumstance, LOSSY)?);
        }
    }
    let mut figure = |(piece, name): Source| {
        let key = kinds.iter().find(|(_, kind)| *kind == piece).map_or("", |(key, _)| *key);
        let values = all.get_mut(&(key, name.to_owned()));
        values.map(|values| median(values)).ok_or_else(|| format!("{piece:?} said nothing of {name:?}"))
    };
    let mut rows = Vec::new();
    for goal in GOALS.iter().filter(|goal| mpi || goal.theirs.0 == Piece::TwoHosts) {
        let (ours_us, theirs_us) = (figure(goal.ours)?, figure(goal.theirs)?);
        let (what, peer) = (goal.what.to_owned(), goal.peer.to_owned());
        rows.push(Ratio { what, ours_us, peer, theirs_us, at_most: goal.at_most });
    }
    let [clean, lossy] = &mut sor;
    rows.push(Ratio {
        what: format!("`sor {LOSSY}`, 2 processes over UDP, 1 % of the packets lost"),
        ours_us: median(lossy),
        peer: "the same without loss".to_owned(),
        theirs_us: median(clean),
        at_most: 2.0,
    });
    Ok(rows)
}

/// The table.
pub(super) fn to_markdown(rows: &[Ratio]) -> String {
    let mut text = "| | µs | beside | µs | ratio | wanted |\n|---|---:|---|---:|---:|---|\n".to_owned();
    for row in rows {
        let ratio = row.ours_us / row.theirs_us;
        let reached = if ratio <= row.at_most { "reached" } else { "not reached" };
        text += &format!(
            "| {} | {} | {} | {} | {ratio:.2} | at most {}: {reached} |\n",
            row.what,
            microseconds(row.ours_us),
            row.peer,
            microseconds(row.theirs_us),
            row.at_most
        );
    }
    text
}

fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}

pub(super) fn to_json(rows: &[Ratio]) -> Value {
    let row = |row: &Ratio| json!({"what": row.what, "us": row.ours_us, "peer": row.peer, "peer_us": row.theirs_us, "at_most": row.at_most});
    rows.iter().map(row).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::dsm) fn examples() -> Vec<Ratio> {
        let row = |what: &str, ours_us| Ratio {
            what: what.into(),
            ours_us,
            peer: "bare".into(),
            theirs_us: 10.0,
            at_most: 1.5,
        };
        vec![row("fetch", 15.0), row("slow", 1600.0)]
    }

    #[test]
    fn a_ratio_says_whether_it_is_good_enough() {
        let text = to_markdown(&examples());
        assert!(text.contains("| fetch | 15.00 | bare | 10.00 | 1.50 | at most 1.5: reached |"), "{text}");
        assert!(
            text.contains("| slow | 1600 | bare | 10.00 | 160.00 | at most 1.5: not reached |"),
            "{text}"
        );
    }
}
