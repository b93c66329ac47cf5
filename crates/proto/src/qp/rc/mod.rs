//! Reliable connection: a requester and a responder that share only the queue pair.

mod requester;
mod responder;

pub(crate) use requester::Requester;
pub use responder::REPORT_LEN;
pub(crate) use responder::Responder;
