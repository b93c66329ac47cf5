//! Fault injection options, translated to the variable that the NIC reads.

use crate::failure::Failure;
use ferroce_nic::link::FaultConfig;

/// The NIC of every process with this variable injects these faults into its own traffic.
pub(crate) const FAULTS_VARIABLE: &str = "FERROCE_FAULTS";

/// Fault options.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Faults (on RDMA packets, by this machine)")]
pub(crate) struct FaultArgs {
    /// Share of packets to lose, such as 1% or 0.01.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    loss: Option<String>,
    /// Share of packets to deliver late, after their successors.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    reorder: Option<String>,
    /// Share of packets to deliver twice.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    duplicate: Option<String>,
    /// Share of packets in which to flip a bit.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    corrupt: Option<String>,
    /// Share of packets to mark as a congested switch would (ECN; has an effect with congestion control that uses it).
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    mark: Option<String>,
    /// Make every packet late by this, such as 10us or 1ms.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    delay: Option<String>,
    /// And by a random time up to this.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    jitter: Option<String>,
    /// Seed of the faults: the same seed damages the same packets.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

impl FaultArgs {
    /// The value of the variable, such as `loss=1%,seed=7`; `None` without faults.
    pub(crate) fn to_variable(&self) -> Result<Option<String>, Failure> {
        let faults = [
            ("loss", &self.loss),
            ("reorder", &self.reorder),
            ("duplicate", &self.duplicate),
            ("corrupt", &self.corrupt),
            ("mark", &self.mark),
            ("delay", &self.delay),
            ("jitter", &self.jitter),
        ];
        let mut parts: Vec<String> = faults
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)))
            .collect();
        match (parts.is_empty(), self.seed) {
            (true, Some(_)) => {
                Err(Failure::usage("--seed needs a fault to seed").advise("Add for example --loss 1%"))
            }
            (true, None) => Ok(None),
            (false, seed) => {
                parts.extend(seed.map(|seed| format!("seed={seed}")));
                Ok(Some(parts.join(",")))
            }
        }
    }

    /// The value of the variable for this process: the options, or what the environment sets.
    pub(crate) fn or_environment(&self) -> Result<Option<String>, Failure> {
        let exported = || std::env::var(FAULTS_VARIABLE).ok().filter(|value| !value.is_empty());
        Ok(self.to_variable()?.or_else(exported))
    }

    /// Sets the variable in our own environment. Must be called before the first thread starts.
    pub(crate) fn apply_here(&self) -> Result<(), Failure> {
        if let Some(value) = self.to_variable()? {
            // SAFETY: only the main thread exists: the command has opened no device and drawn no progress bar yet. So no
            // other thread reads the environment meanwhile.
            unsafe { std::env::set_var(FAULTS_VARIABLE, value) };
        }
        Ok(())
    }
}

/// Accepts `1%`, `0.5%`, `0.01`; keeps a share in percent, as the NIC reads it.
fn parse_share(text: &str) -> Result<String, String> {
    let wrong = || format!("expected a share such as 1% or 0.01, not {text:?}");
    let (number, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 1.0),
        None => (text, 100.0),
    };
    let percent = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    if !(0.0..=100.0).contains(&percent) {
        return Err(wrong());
    }
    Ok(format!("{percent}%"))
}

/// Accepts what the NIC accepts, so that a wrong time is refused by the command line.
fn parse_time(text: &str) -> Result<String, String> {
    let text = text.trim();
    match format!("delay={text}").parse::<FaultConfig>() {
        Ok(_) if !text.contains(',') => Ok(text.to_owned()),
        _ => Err(format!("expected a time such as 10us, 1ms or 2s, not {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(parse_share("1%"), Ok("1%".into()));
        assert_eq!(parse_share("0.5 %"), Ok("0.5%".into()));
        assert_eq!(parse_share("0.25"), Ok("25%".into()));
        for text in ["", "%", "1,seed=3", "-1%", "101%", "2", "nan", "inf%"] {
            assert!(parse_share(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("10us"), Ok("10us".into()));
        for text in ["", "10", "1ms,loss=1", "-1ms", "2h"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_variable_lists_the_requested_faults() {
        let none = FaultArgs::default();
        assert_eq!(none.to_variable(), Ok(None));
        let faults = FaultArgs { loss: Some("1%".into()), seed: Some(7), ..none.clone() };
        assert_eq!(faults.to_variable(), Ok(Some("loss=1%,seed=7".into())));
        assert!(FaultArgs { seed: Some(7), ..none }.to_variable().is_err());
    }
}
