//! The configuration of fault injection, and its text form.

use std::str::FromStr;

/// Which faults to inject into the packets that a link sends, or into the streams of iWARP.
///
/// Reads from text such as `loss=1%,reorder=0.5%,dup=0.1%,corrupt=0.01%,mark=1%,delay=1ms,jitter=200us,seed=7`, or for
/// streams `short=20%,stall=5%,corrupt=0.01%,reset=0.01%,seed=7`. Missing values are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FaultConfig {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is overtaken by some of those behind it.
    pub reorder: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a bit of a packet flips on the way.
    pub corrupt: f64,
    /// Probability that a packet gets the ECN mark of a congested switch.
    pub mark: f64,
    /// Delay of every packet.
    pub delay_ns: u64,
    /// Upper bound of an additional random delay per packet.
    pub jitter_ns: u64,
    /// Streams: probability that a read or write moves only some of its bytes.
    pub short: f64,
    /// Streams: probability that a read or write moves nothing, and is repeated.
    pub stall: f64,
    /// Streams: probability that a read or write resets the connection.
    pub reset: f64,
    /// Seed of the random numbers. The same seed and the same packets give the same faults.
    pub seed: u64,
}

/// What is wrong with the text of a [`FaultConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultConfigError {
    /// A part is not of the form `name=value`.
    #[error("`{0}` is not of the form name=value")]
    NoValue(String),
    /// There is no such fault.
    #[error(
        "`{0}` is no fault; there are loss, reorder, dup, corrupt, mark, delay, jitter, short, stall, reset and seed"
    )]
    UnknownName(String),
    /// Not a probability.
    #[error("{name}: `{value}` is no probability between 0 and 1 (1% or 0.01)")]
    BadProbability {
        /// The fault.
        name: String,
        /// What was given.
        value: String,
    },
    /// Not a duration.
    #[error("{name}: `{value}` is no duration (10us, 1ms, 2s)")]
    BadDuration {
        /// The fault.
        name: String,
        /// What was given.
        value: String,
    },
    /// Not a seed.
    #[error("seed: `{0}` is no whole number")]
    BadSeed(String),
}

impl FaultConfig {
    /// Whether it contains faults for packets only, which have no effect on streams because TCP repairs them.
    pub(crate) fn hits_packets(&self) -> bool {
        (self.loss, self.duplicate, self.reorder, self.mark) != (0.0, 0.0, 0.0, 0.0)
            || (self.delay_ns, self.jitter_ns) != (0, 0)
    }

    /// Whether it contains faults for streams only.
    pub(crate) fn hits_streams(&self) -> bool {
        (self.short, self.stall, self.reset) != (0.0, 0.0, 0.0)
    }

    /// Whether loss is the only fault for packets.
    pub(super) fn only_loses(&self) -> bool {
        let FaultConfig { reorder, duplicate, corrupt, mark, delay_ns, jitter_ns, .. } = *self;
        (reorder, duplicate, corrupt, mark, delay_ns, jitter_ns) == (0.0, 0.0, 0.0, 0.0, 0, 0)
    }
}

impl FromStr for FaultConfig {
    type Err = FaultConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut config = FaultConfig::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| FaultConfigError::NoValue(part.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            match name {
                "loss" => config.loss = probability(name, value)?,
                "reorder" => config.reorder = probability(name, value)?,
                "dup" | "duplicate" => config.duplicate = probability(name, value)?,
                "corrupt" => config.corrupt = probability(name, value)?,
                "mark" => config.mark = probability(name, value)?,
                "short" => config.short = probability(name, value)?,
                "stall" => config.stall = probability(name, value)?,
                "reset" => config.reset = probability(name, value)?,
                "delay" => config.delay_ns = duration_ns(name, value)?,
                "jitter" => config.jitter_ns = duration_ns(name, value)?,
                "seed" => {
                    config.seed = value.parse().map_err(|_| FaultConfigError::BadSeed(value.to_owned()))?;
                }
                _ => return Err(FaultConfigError::UnknownName(name.to_owned())),
            }
        }
        Ok(config)
    }
}

fn probability(name: &str, value: &str) -> Result<f64, FaultConfigError> {
    let parsed = match value.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => value.parse(),
    };
    let bad = || FaultConfigError::BadProbability { name: name.to_owned(), value: value.to_owned() };
    parsed.ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(bad)
}

fn duration_ns(name: &str, value: &str) -> Result<u64, FaultConfigError> {
    let bad = || FaultConfigError::BadDuration { name: name.to_owned(), value: value.to_owned() };
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns = match &value[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" if digits == "0" => 1.0,
        _ => return Err(bad()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| bad())?;
    // A delay of hours is a typing error.
    let ns = number * unit_ns;
    if (0.0..=3600e9).contains(&ns) { Ok(ns as u64) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_reads() {
        let text = "loss=1%, reorder=0.5%,dup=0.1%,corrupt=0.0001,mark=2%,delay=1ms,jitter=1.5us,seed=7";
        let config: FaultConfig = text.parse().unwrap();
        let expected = FaultConfig {
            loss: 0.01,
            reorder: 0.005,
            duplicate: 0.001,
            corrupt: 0.0001,
            mark: 0.02,
            delay_ns: 1_000_000,
            jitter_ns: 1_500,
            seed: 7,
            ..FaultConfig::default()
        };
        assert_eq!(config, expected);
        assert!(config.hits_packets() && !config.hits_streams());
        let config: FaultConfig = "short=20%,stall=5%,reset=1%,corrupt=1%".parse().unwrap();
        let expected =
            FaultConfig { short: 0.2, stall: 0.05, reset: 0.01, corrupt: 0.01, ..FaultConfig::default() };
        assert_eq!(config, expected);
        assert!(config.hits_streams() && !config.hits_packets());
        assert_eq!("".parse(), Ok(FaultConfig::default()));
    }

    #[test]
    fn mistakes_are_named() {
        let message = |text: &str| text.parse::<FaultConfig>().unwrap_err().to_string();
        assert_eq!(message("loss"), "`loss` is not of the form name=value");
        assert!(message("los=1%").contains("`los` is no fault"));
        assert!(message("loss=110%").contains("no probability"));
        assert!(message("loss=nan").contains("no probability"));
        assert!(message("delay=5").contains("no duration"));
        assert!(message("delay=-5ms").contains("no duration"));
        assert!(message("seed=x").contains("no whole number"));
    }
}
