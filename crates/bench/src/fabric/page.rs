//! The rows as Markdown.

use xtask::figure::digits;

use super::machine::Machine;
use super::verdict::Verdict;

/// The page in docs.
pub(crate) fn page(machine: &Machine, rounds: usize, verdicts: &[Verdict]) -> String {
    format!(
        "# Figures: one host and UDP\n\n\
         <!-- Made by `cargo xtask bench fabric --write`, with fabric-figures.svg and fabric-snapshot.json. -->\n\n\
         How fast are unmodified perftest programs under `ferroce run`, compared with UCX, bare memory and sockets on the same machine?\n\
         Ratios are comparable between machines, absolute figures are not. [The notes](fabric-figures-notes.md) explain the rows that lose.\n\n\
         ![How many times as good as the peer](fabric-figures.svg)\n\n{}\n\
         Latencies are medians: half a round trip for WRITE, SEND and the ping-pongs, a whole operation for READ and atomics. Each side has its\n\
         own core; the scheduler places the 64 queue pairs and their peer. UCX runs with `UCX_TLS=sm,self`, or with `tcp,self` where its name\n\
         ends with tcp: those rows have no goal and show a program without RDMA. `FERROCE_FAULTS=loss=1%` on both sides causes the losses.\n\
         Packets over UDP have up to 60 KiB, as loopback carries them; with losses, and in rows named path MTU (`FERROCE_MTU=4096`), they are as long as between two hosts.\n\
         [fabric-snapshot.json](fabric-snapshot.json) holds the ratios, so that a regression shows in review.\n",
        table(machine, rounds, verdicts)
    )
}

/// The table, and the machine on which it was measured.
pub(crate) fn table(machine: &Machine, rounds: usize, verdicts: &[Verdict]) -> String {
    let mut text =
        "| test | peer | ours | peer's | ratio | goal | reached |\n|---|---|---:|---:|---:|---|---|\n"
            .to_owned();
    verdicts.iter().for_each(|verdict| text += &line(verdict));
    let goals: Vec<bool> = verdicts.iter().filter_map(Verdict::reached).collect();
    let count = goals.iter().filter(|reached| **reached).count();
    text += &format!(
        "\n{count} of {} goals reached. A ratio above 1 means that ferroce is better. ",
        goals.len()
    );
    text + &format!("Rounds: {rounds}, medians.\n{}\n", machine.line())
}

fn line(verdict: &Verdict) -> String {
    let row = verdict.row;
    let (ours, peer, unit) = (row.ours.name, row.peer.name, row.ours.unit.symbol());
    let note = if row.note.is_empty() { String::new() } else { format!(" ({})", row.note) };
    let goal = row.goal.map_or_else(|| "–".to_owned(), |goal| format!("{goal:.2} ×{note}"));
    match &verdict.figures {
        Ok(figures) => format!(
            "| {ours} | {peer} | {} {unit} | {} {unit} | {:.2} × | {goal} | {} |\n",
            digits(figures.ours),
            digits(figures.peer),
            figures.ratio,
            verdict.reached().map_or("–", |reached| if reached { "yes" } else { "no" })
        ),
        Err(_) => format!("| {ours} | {peer} | – | – | – | {goal} | could not run |\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{machine, verdict};
    use super::*;

    #[test]
    fn every_row_has_its_line() {
        let text = page(&machine::example(), 3, &verdict::example());
        let first =
            "| ib_write_lat 8 B, local | UCX put latency 8 B | 1.00 µs | 1.10 µs | 1.10 × | 1.00 × | yes |";
        assert!(text.contains(first), "{text}");
        assert!(text.contains("| 0.77 × (aim: no worse than 1.3 ×) | yes |"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(", tcp |")).collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.ends_with("× | – | – |")), "{text}");
        assert!(text.contains(
            "| ib_send_lat 8 B, local | UCX tag latency 8 B | – | – | – | 1.30 × | could not run |"
        ));
        assert!(text.contains("Z80, 2 cores, Linux 6.1, 2026-01-31, path MTU 1024; 25 % busy"), "{text}");
    }

    #[test]
    fn figures_have_the_digits_that_matter() {
        assert_eq!([0.1724, 39.26, 35_800.4].map(digits), ["0.17", "39.3", "35800"]);
    }
}
