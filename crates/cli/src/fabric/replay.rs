//! The replay: the topology, its links coloured by queue, and a slider for the time.

use super::Outcome;
use crate::page::{self, escape};
use crate::svg;
use ferroce_fabric::topology::Topology;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const ROW: f64 = 110.0;
/// Most links that a picture shows.
const MAX_LINKS: usize = 4000;
/// Runs that the replay holds.
const MAX_RUNS: usize = 6;
/// Bytes of the page that the replay may take.
const MAX_BYTES: usize = 6 << 20;

/// Shows the state of all links at the time of the slider. Codes are two hex digits per link and direction:
/// 4 · log2(bytes), plus 128 while paused.
const SCRIPT: &str = r##"<script>
(function () {
  var data = JSON.parse(document.getElementById("frames").textContent);
  var links = document.querySelectorAll(".picture .link"), slider = document.getElementById("time");
  var choice = document.getElementById("which"), label = document.getElementById("clock");
  function show() {
    var run = data[choice.value], at = Math.min(slider.value, run.frames.length - 1);
    if (at < 0) return;
    var codes = run.frames[at];
    label.textContent = (run.times[at] / 1e6).toFixed(1) + " µs";
    links.forEach(function (link, n) {
      var a = parseInt(codes.substr(4 * n, 2), 16), b = parseInt(codes.substr(4 * n + 2, 2), 16);
      var queue = Math.max(a & 127, b & 127), paused = (a | b) & 128;
      var heat = Math.max(0, Math.min(1, (queue - 40) / 44));
      link.style.stroke = queue ? "hsl(" + (130 - 130 * heat) + " 75% 45%)" : "";
      link.style.strokeWidth = queue ? 1.5 + 3 * heat : 1.5;
      link.style.strokeDasharray = paused ? "3 3" : "";
    });
  }
  function choose() { slider.max = data[choice.value].frames.length - 1; show(); }
  slider.addEventListener("input", show);
  choice.addEventListener("change", choose);
  choose();
})();
</script>
"##;

pub(super) fn draw(page: &mut String, topology: &Topology, outcomes: &[Outcome]) {
    page.push_str("<h2>Replay</h2>\n");
    if topology.links.len() > MAX_LINKS {
        return page::note(page, &format!("Left out: {} links are too many to draw.", topology.links.len()));
    }
    let shown = &outcomes[..outcomes.len().min(MAX_RUNS)];
    page.push_str("<div class=\"replay\"><select id=\"which\" aria-label=\"run\">");
    for (n, outcome) in shown.iter().enumerate() {
        let _ = write!(page, "<option value=\"{n}\">{}</option>", escape(&outcome.report.name));
    }
    page.push_str("</select><input id=\"time\" type=\"range\" min=\"0\" value=\"0\" aria-label=\"time\"><span id=\"clock\"></span></div>\n");
    picture(page, topology);
    page.push_str("<script type=\"application/json\" id=\"frames\">");
    frames(page, shown);
    page.push_str("</script>\n");
    page.push_str(SCRIPT);
}

/// Where each node is drawn: hosts in the last row, the top tier in the first.
fn positions(topology: &Topology) -> Vec<(f64, f64)> {
    let top = topology.tiers.iter().copied().max().unwrap_or(0);
    let mut positions = vec![(0.0, 0.0); topology.nodes() as usize];
    for tier in 0..=top {
        let nodes: Vec<u32> = (0..topology.nodes()).filter(|node| topology.tier(*node) == tier).collect();
        for (n, node) in nodes.iter().enumerate() {
            let x = WIDTH * (n as f64 + 0.5) / nodes.len() as f64;
            positions[*node as usize] = (x, 20.0 + ROW * f64::from(top - tier));
        }
    }
    positions
}

fn picture(page: &mut String, topology: &Topology) {
    let top = f64::from(topology.tiers.iter().copied().max().unwrap_or(0));
    page::begin_figure(
        page,
        "picture",
        (WIDTH, 40.0 + ROW * top),
        "The topology; the table of queues above has its figures",
    );
    let positions = positions(topology);
    for link in &topology.links {
        svg::line(page, "link", positions[link.a as usize], positions[link.b as usize]);
    }
    for (node, (x, y)) in positions.iter().enumerate() {
        let (name, radius) = match (node as u32).checked_sub(topology.hosts) {
            None => (format!("host {node}"), 2.5),
            Some(switch) => (format!("switch {switch}"), 6.0),
        };
        let _ = writeln!(
            page,
            "<circle class=\"node\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{name}</title></circle>"
        );
    }
    let caption = "Links are coloured by the longer queue of their two directions: green 1 kB, red 2 MB. Dashed: paused.";
    page::end_figure(page, caption);
}

/// The frames of all runs as JSON; every n-th one if they would be too long.
fn frames(page: &mut String, outcomes: &[Outcome]) {
    let bytes: usize =
        outcomes.iter().flat_map(|o| &o.samples.frames).map(|frame| 2 * frame.links.len()).sum();
    let step = bytes.div_ceil(MAX_BYTES).max(1);
    page.push('[');
    for (n, outcome) in outcomes.iter().enumerate() {
        let kept: Vec<_> = outcome.samples.frames.iter().step_by(step).collect();
        let times: Vec<String> = kept.iter().map(|frame| frame.time_ps.to_string()).collect();
        let _ =
            write!(page, "{}{{\"times\":[{}],\"frames\":[", if n > 0 { "," } else { "" }, times.join(","));
        for (n, frame) in kept.iter().enumerate() {
            page.push_str(if n > 0 { ",\"" } else { "\"" });
            for code in &frame.links {
                let _ = write!(page, "{code:02x}");
            }
            page.push('"');
        }
        page.push_str("]}");
    }
    page.push(']');
}
