//! Parses and prints message sizes and durations.

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `65536` as `64 KiB`; other numbers stay in bytes, so that nothing is rounded.
pub fn format_size(bytes: u64) -> String {
    let whole = |&&(_, unit): &&(&str, u64)| bytes >= unit && bytes.is_multiple_of(unit);
    let (name, unit) = UNITS.iter().find(whole).copied().unwrap_or(("B", 1));
    format!("{} {name}", bytes / unit)
}

/// A time in a suitable unit.
pub(crate) fn format_duration(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 * 1e-3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 * 1e-6),
        _ => format!("{:.2} s", ns as f64 * 1e-9),
    }
}

/// Bytes with about three digits.
pub(crate) fn format_amount(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        10_000_000..10_000_000_000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Prefixes of plain numbers.
const PREFIXES: [(f64, &str); 6] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];

/// The value in the largest unit that it reaches within `slack`, or in the last unit. The units are in descending order.
fn in_unit<'a>(value: f64, units: &[(f64, &'a str)], slack: f64) -> (f64, &'a str) {
    let fits = |(unit, _): &&(f64, &str)| value >= unit * (1.0 - slack);
    let (unit, name) = units.iter().find(fits).or(units.last()).copied().unwrap_or((1.0, ""));
    (value / unit, name)
}

/// A number in at most six characters: `1.25M`.
pub(crate) fn short(value: f64) -> String {
    // The sum of no rates is -0.0, and 999.96 would be rounded to 1000.0.
    let (value, name) = in_unit(value + 0.0, &PREFIXES, 0.0005);
    let digits = match value {
        _ if name.is_empty() && value.fract() == 0.0 || value >= 100.0 => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}{name}")
}

/// A label of an axis in one of these units. Ticks are round, so rounding only removes the noise of the logarithm.
pub(crate) fn label(value: f64, units: &[(f64, &str)]) -> String {
    let (value, name) = in_unit(value, units, 1e-9);
    format!("{}{name}", (value * 1e3).round() / 1e3)
}

/// A label of an axis of plain numbers: `1.5k`.
pub(crate) fn tick(value: f64) -> String {
    label(value, &PREFIXES)
}

/// Reads `8`, `64K`, `1MiB`, `8 m`: a number and an optional binary unit.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 =
        text[..digits].parse().map_err(|_| "expected a number of bytes such as 8, 64K or 1M")?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        other => return Err(format!("{other:?} is not a unit; use K, M or G")),
    };
    number.checked_mul(unit).ok_or_else(|| "that many bytes do not fit 64 bits".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_in_the_largest_whole_unit() {
        let shown: Vec<_> = [0, 2, 1000, 1024, 1536, 65536, 8 << 20, 1 << 30].map(format_size).into();
        assert_eq!(shown, ["0 B", "2 B", "1000 B", "1 KiB", "1536 B", "64 KiB", "8 MiB", "1 GiB"]);
    }

    #[test]
    fn printed_sizes_are_read_back() {
        for bytes in [0, 1, 2, 1023, 1024, 1536, 65536, 8 << 20, 3 << 30] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn durations_have_a_suitable_unit() {
        let shown = [0, 999, 12_345, 1_500_000_000].map(format_duration);
        assert_eq!(shown, ["0", "999 ns", "12.3 µs", "1500.0 ms"]);
    }

    #[test]
    fn amounts_and_numbers_are_short() {
        assert_eq!([9_999, 20_480, 1 << 30].map(format_amount), ["9999 B", "20.0 KiB", "1024.0 MiB"]);
        let shown: Vec<String> =
            [-0.0, 7.0, 0.25, 99.95, 999.96, 1234.0, 12_345_678.0, 3.2e9, 1e18].map(short).into();
        assert_eq!(shown, ["0", "7", "0.25", "100.0", "1.00k", "1.23k", "12.3M", "3.20G", "1000P"]);
        let ticks = [0.0, 0.25, 12.5, 100.0, 1500.0, 9.999999999e5, 2e6, 3.25e9].map(tick);
        assert_eq!(ticks, ["0", "0.25", "12.5", "100", "1.5k", "1M", "2M", "3.25G"]);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for text in ["", "K", "-1", "1.5M", "8x", "99999999999999999999", "18446744073709551615K", "µ"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
