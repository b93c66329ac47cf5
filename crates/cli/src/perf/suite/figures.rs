//! How figures are formatted, in the table and in the report.

use super::super::test::Test;
use super::results::{Cell, Results};

/// A row of the table: the tests whose figures share it.
pub(crate) struct Row {
    /// Its name.
    pub(crate) label: &'static str,
    /// The test of its latency.
    pub(crate) latency: Test,
    /// The test of its bandwidth and rate.
    pub(crate) bandwidth: Option<Test>,
}

/// The rows at each size; rows without a figure at a size are omitted there.
pub(crate) const ROWS: [Row; 8] = [
    Row { label: "TCP socket", latency: Test::TcpLat, bandwidth: Some(Test::TcpBw) },
    Row { label: "TCP request/reply *", latency: Test::TcpRr, bandwidth: None },
    Row { label: "TCP, spinning", latency: Test::TcpSpinLat, bandwidth: None },
    Row { label: "UDP, spinning", latency: Test::UdpLat, bandwidth: Some(Test::UdpBw) },
    Row { label: "RC send", latency: Test::SendLat, bandwidth: Some(Test::SendBw) },
    Row { label: "RC write", latency: Test::WriteLat, bandwidth: Some(Test::WriteBw) },
    Row { label: "RC read *", latency: Test::ReadLat, bandwidth: Some(Test::ReadBw) },
    Row { label: "RC atomic *", latency: Test::AtomicLat, bandwidth: Some(Test::AtomicBw) },
];

/// Headings of the figures of a row; the first column names it.
pub(crate) const HEADINGS: [&str; 7] = [
    "median\nµs",
    "p99\nµs",
    "p99.9\nµs",
    "× TCP\nlatency",
    "bandwidth\nGB/s",
    "rate\nM msg/s",
    "× TCP\nrate",
];

impl Row {
    /// The figures at a size, below [`HEADINGS`]; `None` if nothing was measured. `failed` shows an error.
    pub(crate) fn figures(
        &self,
        results: &Results,
        size: u64,
        failed: impl Fn(&str) -> String,
    ) -> Option<[String; 7]> {
        let of_latency = results.cell(self.latency, size);
        let of_bandwidth = self.bandwidth.and_then(|test| results.cell(test, size));
        of_latency.or(of_bandwidth)?;
        let error = |cell: Option<&Cell>| cell.and_then(|cell| cell.error.as_deref()).map(&failed);
        let latency = of_latency.and_then(|cell| cell.latency.as_ref());
        let bandwidth = of_bandwidth.and_then(|cell| cell.bandwidth.as_ref());
        // A row without a bandwidth test has no dash either.
        let shown = |words: String| if self.bandwidth.is_some() { words } else { String::new() };
        Some([
            error(of_latency).unwrap_or_else(|| microseconds(latency.map(|l| l.median_ns))),
            microseconds(latency.and_then(|l| l.p99_ns)),
            microseconds(latency.and_then(|l| l.p999_ns)),
            ratio(results.speed_up(self.latency, size)),
            error(of_bandwidth).unwrap_or_else(|| shown(rate(bandwidth.map(|b| b.gigabytes_per_s)))),
            shown(rate(bandwidth.map(|b| b.million_messages_per_s))),
            ratio(self.bandwidth.and_then(|test| results.speed_up(test, size))),
        ])
    }
}

/// Nothing was measured here.
const NOTHING: &str = "–";

/// Nanoseconds as microseconds, with three or more significant digits.
pub(crate) fn microseconds(ns: Option<f64>) -> String {
    ns.map_or(NOTHING.into(), |ns| significant(ns / 1e3))
}

/// A rate.
pub(crate) fn rate(value: Option<f64>) -> String {
    value.map_or(NOTHING.into(), significant)
}

/// A ratio, such as `1.34 ×`.
fn ratio(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{} ×", significant(value)))
}

fn significant(value: f64) -> String {
    match value {
        _ if !value.is_finite() => NOTHING.into(),
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ if value >= 100.0 => format!("{value:.1}"),
        _ if value >= 0.1 => format!("{value:.2}"),
        _ if value >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        assert_eq!(microseconds(Some(2163.0)), "2.16");
        assert_eq!(microseconds(Some(2_163_456.0)), "2163");
        assert_eq!(microseconds(None), "–");
        assert_eq!(rate(Some(0.01234)), "0.0123");
        assert_eq!(rate(Some(f64::INFINITY)), "–");
        assert_eq!(ratio(Some(1.337)), "1.34 ×");
        assert_eq!(ratio(None), "");
    }
}
