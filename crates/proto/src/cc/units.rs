//! Numbers with units as people write them: `50us`, `10MB`, `40Gb/s`, `1/256`.

/// A text that is not a number of the expected kind. Contains an example of a valid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct BadNumber(pub &'static str);

/// A plain number, or a fraction such as `1/256`.
pub fn parse_number(text: &str) -> Result<f64, BadNumber> {
    const EXPECTED: BadNumber = BadNumber("a number such as 0.5 or 1/256");
    let plain = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let number = match text.split_once('/') {
        Some((over, under)) => plain(over).zip(plain(under)).map(|(over, under)| over / under),
        None => plain(text),
    };
    number.filter(|number| number.is_finite()).ok_or(EXPECTED)
}

/// A time in nanoseconds.
pub fn parse_time(text: &str) -> Result<f64, BadNumber> {
    const UNITS: &[(&str, f64)] = &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    scaled(text, UNITS).ok_or(BadNumber("a time with its unit such as 500ns, 50us, 10ms or 1s"))
}

/// An amount in bytes.
pub fn parse_bytes(text: &str) -> Result<f64, BadNumber> {
    const UNITS: &[(&str, f64)] = &[
        ("KiB", 1024.0),
        ("MiB", 1048576.0),
        ("GiB", 1073741824.0),
        ("kB", 1e3),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("B", 1.0),
        ("", 1.0),
    ];
    scaled(text, UNITS).ok_or(BadNumber("an amount such as 1000, 150kB, 10MB or 64KiB"))
}

/// A rate in bits per second.
pub fn parse_rate(text: &str) -> Result<f64, BadNumber> {
    const UNITS: &[(&str, f64)] = &[
        ("Gb/s", 1e9),
        ("Mb/s", 1e6),
        ("kb/s", 1e3),
        ("b/s", 1.0),
        ("Gbps", 1e9),
        ("Mbps", 1e6),
        ("G", 1e9),
        ("M", 1e6),
    ];
    scaled(text, UNITS).ok_or(BadNumber("a rate with its unit such as 40Mb/s or 100Gb/s"))
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim_end(), *factor)))?;
    let ends_in_digit = number.ends_with(|c: char| c.is_ascii_digit() || c == '.');
    let value = number.parse::<f64>().ok().filter(|_| ends_in_digit)? * factor;
    (value.is_finite() && value >= 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_scale_and_mistakes_are_named() {
        assert_eq!(parse_time("1.5us"), Ok(1500.0));
        assert_eq!(parse_time("2s"), Ok(2e9));
        assert_eq!(parse_bytes("64KiB"), Ok(65536.0));
        assert_eq!(parse_bytes("1000"), Ok(1000.0));
        assert_eq!(parse_rate("40 Gb/s"), Ok(40e9));
        assert_eq!(parse_number("1/4"), Ok(0.25));
        for bad in ["", "us", "-1us", "1", "1e999s", "nanus", "infs", "inf"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        for bad in ["", "1/0", "x", "NaN", "inf", "1/2/3"] {
            assert!(parse_number(bad).is_err(), "{bad}");
        }
    }
}
