//! What can be wrong with a `modify`.

use super::state_name;
use crate::verbs::{AttrMask, QpState};
use core::fmt;

/// Why a `modify` was refused. Nothing of it has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// This transport knows no way between the two states.
    NoSuchTransition {
        /// State of the queue pair.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// The transition needs these attributes too.
    Missing(AttrMask),
    /// The transition does not take these attributes.
    NotAllowed(AttrMask),
    /// The queue pair is not in the state that the caller believes.
    WrongCurrentState {
        /// What the caller said.
        claimed: QpState,
        /// What is.
        actual: QpState,
    },
    /// A value is larger than the device or the protocol allows.
    OutOfRange {
        /// Which field.
        attribute: &'static str,
        /// What it holds.
        value: u64,
        /// The most it may hold (for flags: every bit that is known).
        limit: u64,
    },
    /// A field is zero that names something.
    Zero {
        /// Which field.
        attribute: &'static str,
    },
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ModifyError::NoSuchTransition { from, to } => {
                write!(
                    f,
                    "a queue pair of this transport cannot go from {} to {}",
                    state_name(from),
                    state_name(to)
                )
            }
            ModifyError::Missing(mask) => write!(f, "the transition also needs {}", SourceRef(mask)),
            ModifyError::NotAllowed(mask) => write!(f, "the transition does not take {}", SourceRef(mask)),
            ModifyError::WrongCurrentState { claimed, actual } => {
                write!(
                    f,
                    "cur_state is {}, but the queue pair is in {}",
                    state_name(claimed),
                    state_name(actual)
                )
            }
            ModifyError::OutOfRange { attribute, value, limit } => {
                write!(f, "{attribute} is {value} ({value:#x}), the limit is {limit} ({limit:#x})")
            }
            ModifyError::Zero { attribute } => write!(f, "{attribute} must not be zero"),
        }
    }
}

impl core::error::Error for ModifyError {}

/// Attribute names for a sentence.
struct SourceRef(AttrMask);

impl fmt::Display for SourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, _)) in self.0.iter_names().enumerate() {
            write!(f, "{}{name}", if i == 0 { "" } else { ", " })?;
        }
        let unknown = self.0.bits() & !AttrMask::all().bits();
        if unknown != 0 {
            write!(f, "{}unknown bits {unknown:#x}", if self.0.bits() == unknown { "" } else { ", " })?;
        }
        Ok(())
    }
}
