//! Goals for single operations, as ratios: a page fetch to a bare READ, a lock to a bare atomic, a barrier to MPI's, and loss to no
//! loss. Also measures the effect of every switch.

use std::collections::HashMap;

use serde_json::{Value, json};
use xtask::dsm::pieces::Piece;
use xtask::dsm::programs::named;
use xtask::dsm::worker::{Circumstance, Worker};
use xtask::figure::median;

use super::seconds;

const ROUNDS: usize = 5;
/// Large enough that losses cost more than the start.
const LOSSY: &str = "-n 256 -m 2048 -t 100";

/// A figure in the output of a piece.
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
        what: "lock and unlock, remote, uncontended, that link",
        ours: (Piece::TwoHosts, "lock and unlock, remote, uncontended"),
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

/// The same work with a switch off and on.
struct Switch {
    what: &'static str,
    off: Source,
    on: Source,
}

const fn switch(what: &'static str, off: &'static str, on: &'static str) -> Switch {
    Switch { what, off: (Piece::TwoHosts, off), on: (Piece::TwoHosts, on) }
}

const SWITCHES: [Switch; 10] = [
    Switch {
        what: "changed blocks (`WVEC`): one word of each of 100 pages changes, the other process reads them, cable of 1 Gbit/s",
        off: (Piece::TwoHostsNarrow, "one word of 100 pages changed, whole pages"),
        on: (Piece::TwoHostsNarrow, "one word of 100 pages changed, changed blocks"),
    },
    switch(
        "the same over a cable as fast as memory",
        "one word of 100 pages changed, whole pages",
        "one word of 100 pages changed, changed blocks",
    ),
    switch(
        "home migration (`HMIG`): 100 pages of another home written repeatedly, two of them read by the other",
        "100 pages of another home written, homes stay",
        "100 pages of another home written, homes move",
    ),
    switch(
        "adaptive write detection (`ADWD`, on by default): 100 pages written at home repeatedly, and read by the other",
        "100 own pages written, each with a fault",
        "100 own pages written, predicted",
    ),
    switch(
        "parcels (on by default): every second word of 100 pages changes",
        "every second word of 100 pages, one by one",
        "every second word of 100 pages, in parcels",
    ),
    switch(
        "prefetch (on by default): 400 pages of another home read in order",
        "400 pages read in order, one by one",
        "400 pages read in order, prefetched",
    ),
    Switch {
        what: "co-located processes (`colocated`, on by default): 100 pages written and read by two processes of one host, with a third elsewhere",
        off: (Piece::LocalPeers, "100 pages of a local peer, copied"),
        on: (Piece::LocalPeers, "100 pages of a local peer, in place"),
    },
    Switch {
        what: "tree (`BROADCAST`): empty barrier of 8 processes over UDP on this machine",
        off: (Piece::Eight, "empty barrier, direct"),
        on: (Piece::Eight, "empty barrier, over a tree"),
    },
    Switch {
        what: "userfaultfd (off: SIGSEGV): read fault and fetch of a page",
        off: (Piece::TwoHostsSignal, "read fault and fetch of a page"),
        on: (Piece::TwoHosts, "read fault and fetch of a page"),
    },
    Switch {
        what: "userfaultfd (off: SIGSEGV): write fault with twin",
        off: (Piece::TwoHostsSignal, "write fault with twin"),
        on: (Piece::TwoHosts, "write fault with twin"),
    },
];

/// All measurements.
pub(super) struct Goals {
    ratios: Vec<Ratio>,
    /// Name, time with the switch off and on, in microseconds.
    switches: Vec<(&'static str, f64, f64)>,
}

/// One comparison.
pub(super) struct Ratio {
    what: String,
    ours_us: f64,
    peer: String,
    theirs_us: f64,
    at_most: f64,
}

/// Every figure of every round, by piece and name.
type Measured = HashMap<(Piece, String), Vec<f64>>;

/// Runs all measurements. Without Open MPI there are no rows for barriers.
pub(super) fn measure(worker: &mut Worker, mpi: bool) -> Result<Goals, String> {
    let mut all = Measured::new();
    let mut sor: [Vec<f64>; 2] = Default::default();
    for round in 0..ROUNDS {
        eprintln!("single operations: round {} of {ROUNDS}", round + 1);
        for piece in Piece::all().filter(|piece| mpi || !piece.is_mpi()) {
            let measured = match worker.measure(piece) {
                Err(reason) if piece.may_fail() => {
                    eprintln!("{reason}");
                    continue;
                }
                measured => measured?,
            };
            for (name, us) in measured.as_object().into_iter().flatten() {
                all.entry((piece, name.clone())).or_default().extend(us.as_f64());
            }
        }
        for (circumstance, times) in [Circumstance::Wire, Circumstance::Loss].into_iter().zip(&mut sor) {
            let program = named("sor").ok_or("no sor")?;
            times.push(1e6 * seconds(worker, program, 2, ("rdma", circumstance), LOSSY)?);
        }
    }
    let mut figure = |(piece, name): Source| {
        let values = all.get_mut(&(piece, name.to_owned()));
        values.map(|values| median(values)).ok_or_else(|| format!("{piece:?} printed no figure of {name:?}"))
    };
    let mut rows = Vec::new();
    for goal in GOALS.iter().filter(|goal| mpi || !goal.theirs.0.is_mpi()) {
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
    let mut switches = Vec::new();
    for row in &SWITCHES {
        match (figure(row.off), figure(row.on)) {
            (Ok(off), Ok(on)) => switches.push((row.what, off, on)),
            _ if row.off.0.may_fail() => {}
            (off, on) => return Err(off.and(on).err().unwrap_or_default()),
        }
    }
    Ok(Goals { ratios: rows, switches })
}

/// The tables.
pub(super) fn to_markdown(goals: &Goals) -> String {
    let mut text = "| | µs | compared with | µs | ratio | goal |\n|---|---:|---|---:|---:|---|\n".to_owned();
    for row in &goals.ratios {
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
    text += "\nThe same work with a switch off and on, microseconds:\n\n| | off | on | off / on |\n|---|---:|---:|---:|\n";
    for (what, off, on) in &goals.switches {
        text += &format!("| {what} | {} | {} | {:.2} |\n", microseconds(*off), microseconds(*on), off / on);
    }
    text
}

fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}

pub(super) fn to_json(goals: &Goals) -> Value {
    let row = |row: &Ratio| json!({"what": row.what, "us": row.ours_us, "peer": row.peer, "peer_us": row.theirs_us, "at_most": row.at_most});
    let switch = |(what, off, on): &(&str, f64, f64)| json!({"what": what, "off_us": off, "on_us": on});
    json!({
        "ratios": goals.ratios.iter().map(row).collect::<Value>(),
        "switches": goals.switches.iter().map(switch).collect::<Value>(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn examples() -> Goals {
        let row = |what: &str, ours_us| Ratio {
            what: what.into(),
            ours_us,
            peer: "bare".into(),
            theirs_us: 10.0,
            at_most: 1.5,
        };
        let ratios = vec![row("fetch", 15.0), row("slow", 1600.0)];
        Goals { ratios, switches: vec![("tree", 300.0, 75.0)] }
    }

    #[test]
    fn a_ratio_is_compared_with_its_goal() {
        let text = to_markdown(&examples());
        assert!(text.contains("| fetch | 15.00 | bare | 10.00 | 1.50 | at most 1.5: reached |"), "{text}");
        assert!(
            text.contains("| slow | 1600 | bare | 10.00 | 160.00 | at most 1.5: not reached |"),
            "{text}"
        );
    }
}
