//! Summary of several runs of one program.

use serde_json::{Value, json};
use xtask::figure::{digits, median};

/// The shortest run, which is the least disturbed one, and the median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Times {
    pub(super) best_s: f64,
    pub(super) median_s: f64,
}

impl Times {
    /// Summarises runs. `None` if there are none.
    pub(super) fn of(mut runs: Vec<f64>) -> Option<Times> {
        let best_s = runs.iter().copied().reduce(f64::min)?;
        Some(Times { best_s, median_s: median(&mut runs) })
    }

    pub(super) fn to_json(self) -> Value {
        json!({"best_s": self.best_s, "median_s": self.median_s})
    }

    /// `12.3 / 14.5`, milliseconds.
    pub(super) fn show(&self) -> String {
        format!("{} / {}", digits(1e3 * self.best_s), digits(1e3 * self.median_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_and_the_median_are_kept() {
        let times = Times::of(vec![0.5, 0.0012, 0.02]).expect("three runs");
        assert_eq!(times, Times { best_s: 0.0012, median_s: 0.02 });
        assert_eq!(times.show(), "1.20 / 20.0");
        assert_eq!(Times::of(Vec::new()), None);
    }
}
