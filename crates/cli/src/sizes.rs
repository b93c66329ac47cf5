//! Message sizes and durations: how people write them, and how we print them.

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
    fn wrong_sizes_are_refused() {
        for text in ["", "K", "-1", "1.5M", "8x", "99999999999999999999", "18446744073709551615K", "µ"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }
}
