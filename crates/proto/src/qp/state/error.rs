//! Errors of `modify`.

use super::state_name;
use crate::verbs::{AttrMask, QpState};
use core::fmt;

/// Why a `modify` was refused. A refused call has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The transport has no transition between the two states.
    #[error("a queue pair cannot go from {} to {}; the order is RESET, INIT, RTR, RTS", state_name(*from), state_name(*to))]
    NoSuchTransition {
        /// State of the queue pair.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// The transition requires these attributes.
    #[error("the transition also needs {} in the attribute mask", AttrNames(*.0))]
    Missing(AttrMask),
    /// The transition does not allow these attributes.
    #[error("the transition does not take {}; remove it from the attribute mask", AttrNames(*.0))]
    NotAllowed(AttrMask),
    /// iWARP: only a connection leads to this state.
    #[error("an iWARP queue pair enters {} when the connection manager connects it, not by modify", state_name(*to))]
    OnlyByConnection {
        /// Requested state.
        to: QpState,
    },
    /// `cur_state` differs from the actual state.
    #[error("cur_state is {}, but the queue pair is in {}", state_name(*claimed), state_name(*actual))]
    WrongCurrentState {
        /// The `cur_state` given.
        claimed: QpState,
        /// The actual state.
        actual: QpState,
    },
    /// A value is larger than the device or the protocol allows.
    #[error("{attribute} is {value} ({value:#x}), the limit is {limit} ({limit:#x})")]
    OutOfRange {
        /// Which field.
        attribute: &'static str,
        /// The value given.
        value: u64,
        /// The maximum (for flags: all known bits).
        limit: u64,
    },
    /// A required field is zero.
    #[error("{attribute} must not be zero")]
    Zero {
        /// Which field.
        attribute: &'static str,
    },
}

/// Attribute names for an error text.
struct AttrNames(AttrMask);

impl fmt::Display for AttrNames {
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
