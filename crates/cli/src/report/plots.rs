//! Which lines the two plots have.

use super::line_plot::{Marker, Plot, Series};
use crate::perf::Test;
use crate::perf::suite::{Results, microseconds, rate};
use crate::sizes::format_size;

/// Latency against size.
pub(super) fn latency(results: &Results) -> Plot {
    let series = |name, class, marker, test| Series {
        name,
        class,
        marker,
        points: latency_points(results, name, test),
    };
    Plot {
        description: "Latency against message size, logarithmic on both axes; the table below holds every figure.",
        axis: "latency, median",
        label: time_label,
        series: vec![
            series("TCP", "tcp", Marker::Square, Test::TcpLat),
            series("TCP request/reply", "tcp-rr", Marker::Ring, Test::TcpRr),
            series("UDP, spinning", "udp", Marker::Cross, Test::UdpLat),
            series("RC send", "send", Marker::Circle, Test::SendLat),
            series("RC write", "write", Marker::Triangle, Test::WriteLat),
            series("RC read", "read", Marker::Wedge, Test::ReadLat),
            series("RC atomic", "atomic", Marker::Diamond, Test::AtomicLat),
        ],
    }
}

/// Bandwidth against size.
pub(super) fn bandwidth(results: &Results) -> Plot {
    let series = |name, class, marker, test| Series {
        name,
        class,
        marker,
        points: bandwidth_points(results, name, test),
    };
    Plot {
        description: "Bandwidth against message size, logarithmic on both axes; the table below holds every figure.",
        axis: "bandwidth",
        label: rate_label,
        series: vec![
            series("TCP stream", "tcp", Marker::Square, Test::TcpBw),
            series("UDP stream", "udp", Marker::Cross, Test::UdpBw),
            series("RC send", "send", Marker::Circle, Test::SendBw),
            series("RC write", "write", Marker::Triangle, Test::WriteBw),
            series("RC read", "read", Marker::Wedge, Test::ReadBw),
            series("RC atomic", "atomic", Marker::Diamond, Test::AtomicBw),
        ],
    }
}

fn latency_points(results: &Results, name: &str, test: Test) -> Vec<(u64, f64, String)> {
    let point = |size: u64| {
        let latency = results.latency(test, size)?;
        let words = format!(
            "{name}, {}: median {} µs, p99 {} µs, p99.9 {} µs",
            format_size(size),
            microseconds(Some(latency.median_ns)),
            microseconds(latency.p99_ns),
            microseconds(latency.p999_ns)
        );
        Some((size, latency.median_ns, words))
    };
    results.sizes().into_iter().filter_map(point).collect()
}

fn bandwidth_points(results: &Results, name: &str, test: Test) -> Vec<(u64, f64, String)> {
    let point = |size: u64| {
        let bandwidth = results.bandwidth(test, size)?;
        let words = format!(
            "{name}, {}: {} GB/s, {} million messages per second",
            format_size(size),
            rate(Some(bandwidth.gigabytes_per_s)),
            rate(Some(bandwidth.million_messages_per_s))
        );
        Some((size, bandwidth.gigabytes_per_s * 1e9, words))
    };
    results.sizes().into_iter().filter_map(point).collect()
}

fn time_label(ns: f64) -> String {
    scaled(ns, &[("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)])
}

fn rate_label(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, &[("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0)])
}

fn scaled(value: f64, units: &[(&str, f64)]) -> String {
    let fits = |(_, unit): &&(&str, f64)| value >= unit * (1.0 - 1e-9);
    let (name, unit) = units.iter().find(fits).or(units.last()).copied().unwrap_or(("", 1.0));
    // Ticks are 1, 2 or 5 times a power of ten, so rounding only removes the noise of the logarithm.
    let shown = (value / unit * 1e3).round() / 1e3;
    format!("{shown} {name}")
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
