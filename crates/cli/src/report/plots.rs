//! The lines of the two plots.

use crate::page::{Axis, Marker, Plot, Series};
use crate::perf::suite::{Results, microseconds, rate};
use crate::perf::{Bandwidth, Test};
use crate::sizes::{format_size, label};

/// Latency against size.
pub(super) fn latency(results: &Results) -> Plot {
    let lines = [
        ("TCP", "tcp", Marker::Square, Test::TcpLat),
        ("TCP request/reply", "tcp-rr", Marker::Ring, Test::TcpRr),
        ("TCP, spinning", "udp", Marker::Cross, Test::TcpSpinLat),
        ("UDP, spinning", "udp", Marker::Cross, Test::UdpLat),
        ("RC send", "send", Marker::Circle, Test::SendLat),
        ("RC write", "write", Marker::Triangle, Test::WriteLat),
        ("RC read", "read", Marker::Wedge, Test::ReadLat),
        ("RC atomic", "atomic", Marker::Diamond, Test::AtomicLat),
    ];
    let point = |test, size| {
        let latency = results.latency(test, size)?;
        let times = [Some(latency.median_ns), latency.p99_ns, latency.p999_ns].map(microseconds);
        let [median, p99, p999] = times;
        Some((latency.median_ns, format!("median {median} µs, p99 {p99} µs, p99.9 {p999} µs")))
    };
    plot("Latency against message size", "latency, median", time_label, series(results, &lines, point))
}

/// Bandwidth against size.
pub(super) fn bandwidth(results: &Results) -> Plot {
    let lines = [
        ("TCP stream", "tcp", Marker::Square, Test::TcpBw),
        ("UDP stream", "udp", Marker::Cross, Test::UdpBw),
        ("RC send", "send", Marker::Circle, Test::SendBw),
        ("RC write", "write", Marker::Triangle, Test::WriteBw),
        ("RC read", "read", Marker::Wedge, Test::ReadBw),
        ("RC atomic", "atomic", Marker::Diamond, Test::AtomicBw),
    ];
    let point = |test, size| {
        let Bandwidth { gigabytes_per_s, million_messages_per_s, .. } = results.bandwidth(test, size)?;
        let [gigabytes, messages] =
            [*gigabytes_per_s, *million_messages_per_s].map(|value| rate(Some(value)));
        Some((gigabytes_per_s * 1e9, format!("{gigabytes} GB/s, {messages} million messages per second")))
    };
    plot("Bandwidth against message size", "bandwidth", rate_label, series(results, &lines, point))
}

/// A plot against message size, logarithmic on both axes.
fn plot(description: &str, y: &'static str, label: fn(f64) -> String, series: Vec<Series>) -> Plot {
    let size = |bytes: f64| format_size(bytes as u64);
    Plot {
        description: description.to_owned(),
        x: Axis { title: "message size", is_log: true, label: size, ticks_are_points: true },
        y: Axis { title: y, is_log: true, label, ticks_are_points: false },
        series,
    }
}

/// The lines of a plot: name, style class, marker and test of each. `point` is the value at a size, in words as well.
fn series(
    results: &Results,
    lines: &[(&'static str, &'static str, Marker, Test)],
    point: impl Fn(Test, u64) -> Option<(f64, String)>,
) -> Vec<Series> {
    let line = |&(name, class, marker, test): &(&'static str, &'static str, Marker, Test)| {
        let point = |size: u64| {
            let (value, words) = point(test, size)?;
            Some((size as f64, value, format!("{name}, {}: {words}", format_size(size))))
        };
        Series {
            name: name.to_owned(),
            class: class.to_owned(),
            marker: Some(marker),
            points: results.sizes().into_iter().filter_map(point).collect(),
        }
    };
    lines.iter().map(line).collect()
}

fn time_label(ns: f64) -> String {
    label(ns, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")])
}

fn rate_label(bytes_per_s: f64) -> String {
    label(bytes_per_s, &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_labels() {
        assert_eq!([500.0, 1e3, 2e3, 1e5, 1e6].map(time_label), ["500 ns", "1 µs", "2 µs", "100 µs", "1 ms"]);
        assert_eq!(
            [1e3, 5e6, 9.999999999e8, 2e10].map(rate_label),
            ["1 kB/s", "5 MB/s", "1 GB/s", "20 GB/s"]
        );
        assert_eq!(time_label(0.5), "0.5 ns");
    }
}
