//! Reliable connection: two machines that share nothing but the queue pair they belong to.

mod requester;
mod responder;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;
