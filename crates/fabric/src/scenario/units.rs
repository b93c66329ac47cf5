//! Numbers and files of a scenario, with mistakes that name their key.

use super::Mistake;
use ferroce_proto::cc::{parse_bytes, parse_rate, parse_time};
use std::io::Read;
use std::path::Path;

/// A time of at most 1000 s, so that sums of such times do not overflow 64 bits in picoseconds.
pub(super) fn time_ns(key: &str, text: &str) -> Result<f64, Mistake> {
    let ns = parse_time(text).map_err(|error| Mistake::new(format!("{key} = {text:?}: {error}")))?;
    match ns <= 1e12 {
        true => Ok(ns),
        false => Err(Mistake::new(format!("{key} = {text:?} is longer than 1000 s; use less"))),
    }
}

pub(super) fn rate(key: &str, text: &str) -> Result<f64, Mistake> {
    parse_rate(text).map_err(|error| Mistake::new(format!("{key} = {text:?}: {error}")))
}

/// A number of bytes that fits in 32 bits.
pub(super) fn bytes(key: &str, text: &str) -> Result<f64, Mistake> {
    let bytes = parse_bytes(text).map_err(|error| Mistake::new(format!("{key} = {text:?}: {error}")))?;
    match bytes <= f64::from(u32::MAX) {
        true => Ok(bytes),
        false => Err(Mistake::new(format!("{key} = {text:?} is more than 4 GB; use less"))),
    }
}

/// Largest file that a scenario may name.
const MAX_FILE: u64 = 1 << 30;

pub(super) fn read(folder: &Path, key: &str, name: &str) -> Result<String, Mistake> {
    let path = folder.join(name);
    let failed = |error: std::io::Error| {
        Mistake::new(format!("{key} = {name:?} cannot be read: {error}; paths are relative to the scenario"))
    };
    let mut text = String::new();
    let file = std::fs::File::open(&path).map_err(failed)?;
    let read = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    match read as u64 <= MAX_FILE {
        true => Ok(text),
        false => Err(Mistake::new(format!("{key} = {name:?} is larger than 1 GiB; use a smaller file"))),
    }
}

/// A mistake of the TOML itself, with its line, in one sentence.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> Mistake {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    match line {
        Some(line) => Mistake::new(format!("line {line}: {message}")),
        None => Mistake::new(message),
    }
}
