//! Unreliable connection: packets in order or not at all, nothing repeated. Nothing is acknowledged either, except that two ferroce
//! ends [pace](pace) each other.

mod pace;
mod receiver;
mod sender;

pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
