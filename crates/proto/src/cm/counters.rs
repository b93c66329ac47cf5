//! What the communication manager counts.

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CmCounters {
    /// Messages received and understood.
    pub received: u64,
    /// Messages sent, repeats included.
    pub sent: u64,
    /// Messages sent again, because no answer came or because theirs came again.
    pub repeated: u64,
    /// Messages that are no message.
    pub malformed: u64,
    /// Messages about connections that we do not have.
    pub strays: u64,
    /// Messages that came twice.
    pub duplicates: u64,
    /// Messages from another address than the connection's.
    pub wrong_address: u64,
    /// Messages that make no sense in the connection's state.
    pub unexpected: u64,
    /// Offers to services that nobody listens to.
    pub no_listener: u64,
    /// Offers dropped because their listener had as many undecided ones as it wants.
    pub backlog_full: u64,
    /// Offers dropped because there are too many undecided ones, or too many connections.
    pub overload: u64,
    /// Offers from queue pairs that still were in an older connection.
    pub stale: u64,
    /// Refusals that we received.
    pub rejected: u64,
    /// Refusals that we sent.
    pub refused: u64,
    /// Connections and questions given up for want of an answer.
    pub timed_out: u64,
    /// Connections that were established.
    pub established: u64,
}
