//! Logarithmic axes: the coordinate of a value, and which values get a label.

/// Maps values to picture coordinates.
pub struct LogScale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogScale {
    /// A scale from `low` at `from` to `high` at `to`; `to` may be smaller, as it is for a vertical axis.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> LogScale {
        debug_assert!(low > 0.0 && high > low);
        LogScale { low: low.log10(), high: high.log10(), from, to }
    }

    /// The coordinate of a value.
    pub fn at(&self, value: f64) -> f64 {
        let share = (value.log10() - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    /// 1, 2 and 5 times the powers of ten inside the scale; true for those that get a label: all on a short scale,
    /// else the powers of ten and both ends.
    pub fn ticks(&self) -> Vec<(f64, bool)> {
        let label_all = self.high - self.low <= 3.2;
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        let inside = |value: f64| (self.low - 1e-9..=self.high + 1e-9).contains(&value.log10());
        let mut ticks: Vec<(f64, bool)> = decades
            .flat_map(|decade| {
                [1.0, 2.0, 5.0].map(|step| (step * 10f64.powi(decade), label_all || step == 1.0))
            })
            .filter(|(value, _)| inside(*value))
            .collect();
        if let [first, .., last] = ticks.as_mut_slice() {
            (first.1, last.1) = (true, true);
        }
        ticks
    }
}

/// The range that holds all values, widened to 1, 2 or 5 times a power of ten; none without a positive value.
pub fn round_range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    let steps = |value: f64| {
        let decade = 10f64.powf(value.log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|step| step * decade)
    };
    let floor = steps(low).into_iter().rev().find(|step| *step <= low * (1.0 + 1e-9)).unwrap_or(low);
    let ceiling = steps(high).into_iter().find(|step| *step >= high * (1.0 - 1e-9)).unwrap_or(high);
    // A single value still needs a range around it.
    Some(if floor < ceiling { (floor, ceiling) } else { (floor / 2.0, ceiling * 2.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_middle() {
        let scale = LogScale::new(1.0, 100.0, 300.0, 100.0);
        assert_eq!([1.0, 10.0, 100.0].map(|value| scale.at(value).round()), [300.0, 200.0, 100.0]);
    }

    #[test]
    fn ticks_lie_inside_and_rise() {
        let values = |low, high| LogScale::new(low, high, 0.0, 1.0).ticks();
        let few: Vec<f64> = values(2.0, 50.0).into_iter().map(|(value, _)| value).collect();
        assert_eq!(few, [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert!(values(2.0, 50.0).iter().all(|(_, label)| *label));
        let many = values(1e-3, 1e4);
        assert_eq!(many.iter().filter(|(_, label)| *label).count(), 8);
        assert!(many.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn ranges_hold_their_values() {
        let range = |values: &[f64]| round_range(values.iter().copied());
        assert_eq!(range(&[]), None);
        assert_eq!(range(&[0.0, -1.0, f64::NAN, f64::INFINITY]), None);
        assert_eq!(range(&[3.0, 40.0]), Some((2.0, 50.0)));
        assert_eq!(range(&[1.0, 10.0]), Some((1.0, 10.0)));
        let (low, high) = range(&[7.0]).expect("a value");
        assert!(low <= 7.0 && 7.0 <= high && low < high);
        let (low, high) = range(&[5.0, 5.0]).expect("a value");
        assert!(low < 5.0 && 5.0 < high);
    }
}
