//! Unreliable connection: no retransmission and no acknowledgement, except that two ferroce peers [pace](pace) each
//! other.

mod pace;
mod receiver;
mod sender;

pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
