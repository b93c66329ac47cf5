//! A ratio for each row, and regressions.

use serde_json::{Map, Value, json};

use super::machine::Machine;
use super::table::Row;

/// Two runs on one quiet machine differ by less than this.
const NOISE: f64 = 0.15;

/// Both figures of a row.
pub(crate) struct Figures {
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    /// Ratio of ferroce to the peer; more than 1 is better than the peer.
    pub(crate) ratio: f64,
}

/// One row, measured.
pub(crate) struct Verdict {
    pub(crate) row: &'static Row,
    /// The figures, or the reason for each program that could not run.
    pub(crate) figures: Result<Figures, Vec<String>>,
}

impl Verdict {
    /// Whether the goal is reached. `None` for a row without a goal.
    pub(crate) fn reached(&self) -> Option<bool> {
        let goal = self.row.goal?;
        Some(self.figures.as_ref().is_ok_and(|figures| figures.ratio >= goal))
    }

    fn to_json(&self) -> Value {
        let Row { id, ours, peer, goal, note } = self.row;
        let mut json = json!({"id": id, "test": ours.name, "peer": peer.name, "unit": ours.unit.symbol(),
            "goal": goal, "note": note, "reached": self.reached()});
        match &self.figures {
            Ok(figures) => {
                json["ours"] = json!(figures.ours);
                json["theirs"] = json!(figures.peer);
                json["ratio"] = json!(figures.ratio);
            }
            Err(reasons) => json["failures"] = json!(reasons),
        }
        json
    }
}

/// Compares the rows with their goals, from the answer of the worker.
pub(crate) fn of(rows: Vec<&'static Row>, answer: &Value) -> Vec<Verdict> {
    let figure = |name: &str| -> Result<f64, String> {
        let source = &answer[name];
        let reason = || source["failure"].as_str().unwrap_or("no answer").to_owned();
        source["figure"].as_f64().ok_or_else(|| format!("{name}: {}", reason()))
    };
    let verdict = |row: &'static Row| {
        let figures = match (figure(row.ours.name), figure(row.peer.name)) {
            (Ok(ours), Ok(peer)) => Ok(Figures { ours, peer, ratio: row.ours.unit.ratio(ours, peer) }),
            (ours, peer) => Err([ours.err(), peer.err()].into_iter().flatten().collect()),
        };
        Verdict { row, figures }
    };
    rows.into_iter().map(verdict).collect()
}

/// Each program that could not run, once, with its reason.
pub(crate) fn failures(verdicts: &[Verdict]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for reason in verdicts.iter().filter_map(|verdict| verdict.figures.as_ref().err()).flatten() {
        if !all.contains(&reason.as_str()) {
            all.push(reason);
        }
    }
    all
}

pub(crate) fn to_json(machine: &Machine, rounds: usize, verdicts: &[Verdict]) -> Value {
    let rows: Vec<Value> = verdicts.iter().map(Verdict::to_json).collect();
    json!({"machine": machine.to_json(), "rounds": rounds, "rows": rows})
}

/// The ratios, which are comparable between machines, with two digits, so that noise does not change every line.
pub(crate) fn snapshot(verdicts: &[Verdict]) -> Value {
    let ratio = |verdict: &Verdict| {
        let figures = verdict.figures.as_ref().ok()?;
        Some((verdict.row.id.to_owned(), json!((figures.ratio * 100.0).round() / 100.0)))
    };
    Value::Object(verdicts.iter().filter_map(ratio).collect::<Map<String, Value>>())
}

/// A sentence for each row that is worse than the snapshot by more than noise.
pub(crate) fn regressions(verdicts: &[Verdict], kept: &Value) -> Vec<String> {
    let worse = |verdict: &Verdict| {
        let (now, before) = (verdict.figures.as_ref().ok()?.ratio, kept[verdict.row.id].as_f64()?);
        let names = format!("{} against {}", verdict.row.ours.name, verdict.row.peer.name);
        (now < before * (1.0 - NOISE))
            .then(|| format!("worse than in the snapshot: {names}: {now:.2} ×, was {before:.2} ×"))
    };
    verdicts.iter().filter_map(worse).collect()
}

#[cfg(test)]
pub(crate) fn example() -> Vec<Verdict> {
    let mut answer = Map::new();
    let rows = super::table::rows(&[]);
    for (at, source) in super::table::sources(&rows).into_iter().enumerate() {
        answer.insert(source.name.to_owned(), json!({"figure": 1.0 + at as f64 / 10.0}));
    }
    answer.insert("ib_send_lat 8 B, local".to_owned(), json!({"failure": "no <space>\nmore"}));
    of(rows, &Value::Object(answer))
}

#[cfg(test)]
mod tests {
    use super::super::machine;
    use super::super::table::{rows, sources};
    use super::*;

    #[test]
    fn for_latencies_less_is_better_and_for_bandwidths_more() {
        let verdicts = example();
        let ratio =
            |at: usize| verdicts[at].figures.as_ref().map(|figures| figures.ratio).unwrap_or(f64::NAN);
        assert!(
            (ratio(0) - 1.1).abs() < 1e-9 && verdicts[0].reached() == Some(true),
            "a latency of 1.0 against 1.1"
        );
        assert!(ratio(5) < 1.0 && verdicts[5].reached() == Some(false), "a bandwidth less than its peer's");
    }

    #[test]
    fn a_row_that_could_not_run_is_named_once() {
        let verdicts = example();
        assert_eq!(failures(&verdicts), ["ib_send_lat 8 B, local: no <space>\nmore"]);
        let none = of(rows(&[]), &json!({}));
        assert_eq!(failures(&none).len(), sources(&rows(&[])).len());
        let json = to_json(&machine::example(), 3, &verdicts);
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(verdicts.len()));
        assert_eq!(json["rows"][4]["reached"], false);
        assert_eq!((&json["rows"][10]["goal"], &json["rows"][10]["reached"]), (&Value::Null, &Value::Null));
        assert_eq!(json["rows"][4]["failures"], json!(["ib_send_lat 8 B, local: no <space>\nmore"]));
    }

    #[test]
    fn the_snapshot_shows_what_became_worse() {
        let verdicts = example();
        let mut kept = snapshot(&verdicts);
        assert_eq!(kept.as_object().map(Map::len), Some(verdicts.len() - 1));
        assert!(regressions(&verdicts, &kept).is_empty());
        kept["write-lat-8/ucx-put"] = json!(1.5);
        let sentences = regressions(&verdicts, &kept);
        assert_eq!(sentences.len(), 1);
        assert!(sentences[0].contains("1.10 ×, was 1.50 ×"), "{sentences:?}");
    }
}
