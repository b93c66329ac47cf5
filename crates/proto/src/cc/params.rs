//! Parameters of controllers: name, unit, default, bounds and meaning, each in one line.

use super::{Controller, Path};

/// A value with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A plain number.
    Number(f64),
    /// A time in nanoseconds.
    Time(f64),
    /// An amount in bytes.
    Bytes(f64),
    /// A rate in bits per second.
    Rate(f64),
    /// A rate as a share of the line rate.
    Share(f64),
}

impl Value {
    /// The number without its unit.
    pub fn number(self) -> f64 {
        let (Value::Number(n) | Value::Time(n) | Value::Bytes(n) | Value::Rate(n) | Value::Share(n)) = self;
        n
    }

    /// Numbers as they are, times in nanoseconds, amounts in bytes, rates in bytes per second.
    pub(super) fn resolve(self, path: &Path) -> f64 {
        match self {
            Value::Rate(bits) => bits / 8.0,
            Value::Share(share) => share * path.line_rate as f64,
            other => other.number(),
        }
    }
}

/// One parameter of a controller.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name in a choice such as `dcqcn-nic,g=1/256`.
    pub name: &'static str,
    /// The value of the publication. Its unit is the unit of the parameter.
    pub default: Value,
    /// Smallest value.
    pub low: f64,
    /// Largest value.
    pub high: f64,
    /// What it does.
    pub meaning: &'static str,
}

impl Param {
    /// Smallest and largest number in the unit of `value`.
    pub(super) fn bounds(&self, value: Value) -> (f64, f64) {
        if matches!(value, Value::Share(_)) { (0.0, 1.0) } else { (self.low, self.high) }
    }
}

/// A controller with its parameters as one publication or product sets them.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Who published it, and where these values come from.
    pub citation: &'static str,
    /// The parameters of the algorithm.
    pub params: &'static [Param],
    /// Where this preset differs from their defaults.
    pub overrides: &'static [(&'static str, Value)],
    pub(super) build: fn(&[f64], &Path) -> Controller,
}

impl Preset {
    /// The value of a parameter in this preset.
    pub fn default_of(&self, param: &Param) -> Value {
        self.overrides.iter().find(|(name, _)| *name == param.name).map_or(param.default, |(_, value)| *value)
    }
}

/// Declares `Params`: one field per parameter, in base units, and the table that users see.
macro_rules! params {
    ($($name:ident: $unit:ident($default:expr), $low:expr, $high:expr, $meaning:literal;)*) => {
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Params {
            $(#[doc = $meaning] pub(super) $name: f64,)*
        }

        impl Params {
            pub(super) const TABLE: &'static [$crate::cc::Param] = &[$($crate::cc::Param {
                name: stringify!($name),
                default: $crate::cc::Value::$unit($default),
                low: $low,
                high: $high,
                meaning: $meaning,
            }),*];

            /// Values in the order of the table.
            pub(super) fn new(values: &[f64]) -> Params {
                let mut values = values.iter().copied();
                Params { $($name: values.next().unwrap_or_default()),* }
            }
        }
    };
}
pub(super) use params;
