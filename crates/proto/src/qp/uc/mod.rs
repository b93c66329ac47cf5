//! Unreliable connection: packets in order or not at all, nothing acknowledged, nothing repeated.

mod receiver;
mod sender;

pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
