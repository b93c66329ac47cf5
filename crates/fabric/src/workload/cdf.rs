//! Flow sizes by published distributions.

use crate::rng::Pcg32;

/// A distribution of sizes: linear between points of (bytes, cumulative percent).
#[derive(Clone, Debug)]
pub struct SizeCdf {
    points: Vec<(f64, f64)>,
}

/// Why a table is not a distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadCdf {
    line: usize,
    what: &'static str,
}

/// The tables that come with ferroce.
const TABLES: &[(&str, &str)] = &[
    ("websearch", include_str!("../../data/websearch.cdf")),
    ("websearch-16", include_str!("../../data/websearch-16.cdf")),
    ("hadoop", include_str!("../../data/hadoop.cdf")),
    ("hadoop-fine", include_str!("../../data/hadoop-fine.cdf")),
    ("alistorage", include_str!("../../data/alistorage.cdf")),
    ("solar", include_str!("../../data/solar.cdf")),
    ("googlerpc", include_str!("../../data/googlerpc.cdf")),
];

impl SizeCdf {
    /// The names of the tables that come with ferroce.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLES.iter().map(|(name, _)| *name)
    }

    /// A table that comes with ferroce.
    pub fn named(name: &str) -> Option<SizeCdf> {
        let (_, text) = TABLES.iter().find(|(table, _)| *table == name)?;
        SizeCdf::parse(text).ok()
    }

    /// Reads lines of bytes and cumulative percent; `#` begins a comment.
    pub fn parse(text: &str) -> Result<SizeCdf, BadCdf> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut last = 0;
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = |what| BadCdf { line: at + 1, what };
            let mut numbers = line.split_whitespace().map(|word| word.parse::<f64>().ok());
            let (Some(Some(bytes)), Some(Some(percent)), None) =
                (numbers.next(), numbers.next(), numbers.next())
            else {
                return Err(bad("expected two numbers: bytes and cumulative percent"));
            };
            let (low_bytes, low_percent) = points.last().copied().unwrap_or((0.0, 0.0));
            if !(bytes >= low_bytes && percent >= low_percent && percent <= 100.0 && bytes <= 1e15) {
                return Err(bad("both columns must rise, and the percentage ends at 100"));
            }
            points.push((bytes, percent));
            last = at + 1;
        }
        let ends = points.last().is_some_and(|(bytes, percent)| *percent == 100.0 && *bytes >= 1.0);
        if ends {
            Ok(SizeCdf { points })
        } else {
            Err(BadCdf { line: last, what: "the last percentage must be 100" })
        }
    }

    /// The size at a percentage.
    fn at(&self, percent: f64) -> f64 {
        let mut low = (0.0, 0.0);
        for &(bytes, upto) in &self.points {
            if percent <= upto {
                let span = upto - low.1;
                return if span > 0.0 { low.0 + (bytes - low.0) * (percent - low.1) / span } else { bytes };
            }
            low = (bytes, upto);
        }
        low.0
    }

    /// A random size, at least 1 byte.
    pub fn draw(&self, rng: &mut Pcg32) -> u64 {
        (self.at(rng.unit() * 100.0) as u64).max(1)
    }

    /// The mean size.
    pub fn mean(&self) -> f64 {
        let mut low = (0.0, 0.0);
        let mut sum = 0.0;
        for &(bytes, percent) in &self.points {
            sum += (percent - low.1) / 100.0 * (low.0 + bytes) / 2.0;
            low = (bytes, percent);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn every_table_has_the_mean_that_its_heading_states_and_its_sizes_have_it_too() {
        for (name, text) in TABLES {
            let cdf = SizeCdf::named(name).expect(name);
            let stated = text.lines().find_map(|line| line.strip_prefix("# mean flow size by that rule: "));
            let stated: f64 = stated.and_then(|rest| rest.split(' ').next()?.parse().ok()).expect(name);
            assert!((cdf.mean() / stated - 1.0).abs() < 0.001, "{name}: {} {stated}", cdf.mean());
            let mut rng = Pcg32::stream(1, Purpose::Sizes, 0);
            let drawn = (0..200_000).map(|_| cdf.draw(&mut rng) as f64).sum::<f64>() / 2e5;
            assert!((drawn / stated - 1.0).abs() < 0.05, "{name}: {drawn} {stated}");
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        let error = |text: &str| SizeCdf::parse(text).expect_err("a mistake").to_string();
        assert_eq!(error("1 2 3\n"), "line 1: expected two numbers: bytes and cumulative percent");
        assert_eq!(error("10 50\n5 100\n"), "line 2: both columns must rise, and the percentage ends at 100");
        assert_eq!(error("10 50\n"), "line 1: the last percentage must be 100");
        assert_eq!(error("nan 100\n"), "line 1: both columns must rise, and the percentage ends at 100");
    }
}
