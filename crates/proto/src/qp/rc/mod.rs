//! Reliable connection: a requester and a responder that share only the queue pair.

mod requester;
mod responder;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;
