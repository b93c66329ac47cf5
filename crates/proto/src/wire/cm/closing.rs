//! RTU ends the handshake; DREQ and DREP end the connection (IBA 12.6.9 to 12.6.11).

use super::CommId;
use super::layout::message;
use crate::ids::Qpn;

message! {
    /// Ready to use: the REP was received.
    pub struct Rtu, private data from 8 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
    }
}

message! {
    /// Request to end the connection.
    pub struct Dreq, private data from 12 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
        /// The receiver's queue pair, which confirms the connection.
        remote_qpn: Qpn = qpn(8),
    }
}

message! {
    /// The connection has ended at the sender, too.
    pub struct Drep, private data from 8 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
    }
}
