//! A preset with parameters, as users write it: `dcqcn-nic,g=1/256,scale=10`.

use super::{BadNumber, Controller, PRESETS, Path, Preset, Value};
use super::{parse_bytes, parse_number, parse_rate, parse_time};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::{fmt, str::FromStr};

/// A parameter of every preset: it multiplies all its times, for fabrics that run slower than the published ones.
const SCALE: &str = "scale";
const MAX_SCALE: f64 = 1e6;

/// Parameters of every preset that replace properties of the path.
const LINE_RATE: &str = "line_rate";
const BASE_RTT: &str = "base_rtt";

/// A preset and the values of its parameters.
#[derive(Clone, Debug)]
pub struct Choice {
    line_rate: Option<u64>,
    base_rtt_ns: Option<u64>,
    preset: &'static Preset,
    values: Vec<Value>,
    text: String,
}

/// A choice that names no preset, or sets a parameter wrongly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChoice {
    /// No preset has this name.
    #[error("there is no congestion control named {name:?}; choose one of {}", names())]
    Preset {
        /// The name.
        name: String,
    },
    /// A part is not of the form `name=value`.
    #[error("{part:?} in {choice:?} is not of the form name=value")]
    Form {
        /// The part.
        part: String,
        /// The whole choice.
        choice: String,
    },
    /// The preset has no parameter of this name.
    #[error("{preset} has no parameter {name:?}; it has {}", parameters(preset))]
    Parameter {
        /// The name of the parameter.
        name: String,
        /// The name of the preset.
        preset: &'static str,
    },
    /// The value is no number of the parameter's unit.
    #[error("{name}={value} of {preset}: {expected}")]
    Number {
        /// The name of the parameter.
        name: String,
        /// The value.
        value: String,
        /// The name of the preset.
        preset: &'static str,
        /// What a good value looks like.
        expected: BadNumber,
    },
    /// The value is outside of the bounds.
    #[error("{name}={value} of {preset} is outside of {bounds}")]
    Bounds {
        /// The name of the parameter.
        name: String,
        /// The value.
        value: String,
        /// The name of the preset.
        preset: &'static str,
        /// Smallest and largest value, in base units.
        bounds: String,
    },
}

fn names() -> String {
    join(PRESETS.iter().map(|preset| preset.name))
}

fn parameters(name: &str) -> String {
    let params = PRESETS.iter().filter(|preset| preset.name == name).flat_map(|preset| preset.params);
    join(params.map(|param| param.name).chain([SCALE, LINE_RATE, BASE_RTT]))
}

fn join<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

impl Choice {
    /// The preset.
    pub fn preset(&self) -> &'static Preset {
        self.preset
    }

    /// Builds the controller of one queue pair.
    pub fn build(&self, path: &Path) -> Controller {
        let path = &Path {
            line_rate: self.line_rate.unwrap_or(path.line_rate),
            base_rtt_ns: self.base_rtt_ns.unwrap_or(path.base_rtt_ns),
            ..*path
        };
        let values: Vec<f64> = self.values.iter().map(|value| value.resolve(path)).collect();
        (self.preset.build)(&values, path)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), BadChoice> {
        let preset = self.preset;
        let number = |expected| BadChoice::Number {
            name: name.to_string(),
            value: text.to_string(),
            preset: preset.name,
            expected,
        };
        let check = |value: f64, low: f64, high: f64| match (low..=high).contains(&value) {
            true => Ok(value),
            false => Err(BadChoice::Bounds {
                name: name.to_string(),
                value: text.to_string(),
                preset: preset.name,
                bounds: alloc::format!("{low} … {high}"),
            }),
        };
        if name == SCALE {
            let scale = check(parse_number(text).map_err(number)?, 1e-3, MAX_SCALE)?;
            for value in &mut self.values {
                if let Value::Time(ns) = value {
                    *ns *= scale;
                }
            }
            return Ok(());
        }
        if name == LINE_RATE {
            let bits = check(parse_rate(text).map_err(number)?, 1e6, 1e13)?;
            self.line_rate = Some((bits / 8.0) as u64);
            return Ok(());
        }
        if name == BASE_RTT {
            self.base_rtt_ns = Some(check(parse_time(text).map_err(number)?, 100.0, 1e9)? as u64);
            return Ok(());
        }
        let at = preset.params.iter().position(|param| param.name == name);
        let Some(at) = at else {
            return Err(BadChoice::Parameter { name: name.to_string(), preset: preset.name });
        };
        let value = parse_like(preset.params[at].default, text).map_err(number)?;
        let (low, high) = preset.params[at].bounds(value);
        check(value.number(), low, high)?;
        self.values[at] = value;
        Ok(())
    }
}

/// Parses a value of the same unit.
fn parse_like(unit: Value, text: &str) -> Result<Value, BadNumber> {
    Ok(match unit {
        Value::Number(_) => Value::Number(parse_number(text)?),
        Value::Time(_) => Value::Time(parse_time(text)?),
        Value::Bytes(_) => Value::Bytes(parse_bytes(text)?),
        Value::Rate(_) | Value::Share(_) => match text.strip_suffix('%') {
            Some(percent) => Value::Share(parse_number(percent)? / 100.0),
            None => Value::Rate(parse_rate(text).map_err(|_| BadNumber("a rate such as 40Mb/s or 0.1%"))?),
        },
    })
}

impl FromStr for Choice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Choice, BadChoice> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let preset = PRESETS.iter().find(|preset| preset.name == name);
        let preset = preset.ok_or_else(|| BadChoice::Preset { name: name.to_string() })?;
        let values = preset.params.iter().map(|param| preset.default_of(param)).collect();
        let (line_rate, base_rtt_ns) = (None, None);
        let mut choice = Choice { preset, values, text: text.to_string(), line_rate, base_rtt_ns };
        let parts: Vec<(&str, &str)> = parts
            .map(|part| {
                let form = || BadChoice::Form { part: part.to_string(), choice: text.to_string() };
                part.split_once('=').ok_or_else(form)
            })
            .collect::<Result<_, _>>()?;
        // The scale also applies to values of the same choice, in any order.
        let (scales, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(name, _)| *name == SCALE);
        for (name, value) in others.into_iter().chain(scales) {
            choice.set(name, value)?;
        }
        Ok(choice)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::CongestionControl;

    const PATH: Path = Path { line_rate: 12_500_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 2 };

    fn error(text: &str) -> String {
        text.parse::<Choice>().expect_err("a mistake").to_string()
    }

    #[test]
    fn every_preset_builds_and_its_defaults_are_within_bounds() {
        for preset in PRESETS {
            for param in preset.params {
                let value = preset.default_of(param);
                let (low, high) = param.bounds(value);
                assert!((low..=high).contains(&value.number()), "{} {}", preset.name, param.name);
            }
            for (name, _) in preset.overrides {
                assert!(preset.params.iter().any(|param| param.name == *name), "{} {name}", preset.name);
            }
            let built = preset.name.parse::<Choice>().expect(preset.name).build(&PATH);
            assert!(built.window() > 0, "{}", preset.name);
        }
    }

    #[test]
    fn parameters_take_effect() {
        let fixed = "fixed,window=64KiB".parse::<Choice>().expect("good").build(&PATH);
        assert_eq!(fixed.window(), 65536);
        let scaled = "dcqcn-paper,scale=10".parse::<Choice>().expect("good").build(&PATH);
        assert_eq!(scaled.needs().cnp_interval_ns, Some(500_000));
        let both = "dcqcn-paper,scale=10,cnp_interval=1us".parse::<Choice>().expect("good").build(&PATH);
        assert_eq!(both.needs().cnp_interval_ns, Some(10_000));
    }

    #[test]
    fn a_scale_that_makes_an_interval_shorter_than_1_ns_does_not_stop_a_controller() {
        let choice = "dcqcn-nic,alpha_interval=500ns,increase_interval=1us,scale=0.001".parse::<Choice>();
        let mut cc = choice.expect("good").build(&PATH);
        for now in 0..10 {
            cc.on_cnp(crate::time::Time(now * 1000));
        }
        assert!(cc.rate() < Some(PATH.line_rate), "{:?}", cc.rate());
    }

    #[test]
    fn what_is_known_of_the_path_can_be_replaced() {
        let choice = "dcqcn-paper,line_rate=1Gb/s".parse::<Choice>().expect("good");
        assert_eq!(choice.build(&PATH).rate(), Some(125_000_000));
        assert_eq!("dcqcn-paper".parse::<Choice>().expect("good").build(&PATH).rate(), Some(PATH.line_rate));
        let irn = "irn,base_rtt=100us,line_rate=1Gb/s".parse::<Choice>().expect("good");
        assert_eq!(irn.build(&PATH).window(), 12_500);
        assert_eq!(error("irn,base_rtt=2s"), "base_rtt=2s of irn is outside of 100 … 1000000000");
    }

    #[test]
    fn mistakes_are_explained() {
        assert!(
            error("bbr")
                .starts_with("there is no congestion control named \"bbr\"; choose one of dcqcn-paper")
        );
        assert_eq!(error("irn,7"), "\"7\" in \"irn,7\" is not of the form name=value");
        assert_eq!(error("irn,g=1"), "irn has no parameter \"g\"; it has bdp, scale, line_rate, base_rtt");
        assert_eq!(error("dctcp,g=often"), "g=often of dctcp: expected a number such as 0.5 or 1/256");
        assert_eq!(error("dctcp,g=2"), "g=2 of dctcp is outside of 0 … 1");
        assert_eq!(error("timely,delta=5us"), "delta=5us of timely: expected a rate such as 40Mb/s or 0.1%");
    }
}
