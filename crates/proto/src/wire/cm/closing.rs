//! RTU ends the handshake; DREQ and DREP end the connection (IBA 12.6.9 to 12.6.11).

use super::CommId;
use super::layout::{Cursor, Layout};
use crate::ids::Qpn;

/// Ready to use: the answer was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Id of the receiver.
    pub remote_comm_id: CommId,
    /// What the program sent along.
    pub private_data: [u8; Rtu::PRIVATE_LEN],
}

impl Default for Rtu {
    fn default() -> Self {
        let none = CommId::NONE;
        Rtu { local_comm_id: none, remote_comm_id: none, private_data: [0; Rtu::PRIVATE_LEN] }
    }
}

impl Rtu {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;
}

impl Layout for Rtu {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.comm_id(4, &mut self.remote_comm_id);
        c.bytes(8, &mut self.private_data);
    }
}

/// The sender wants to end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Id of the receiver.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair: proof that the right connection is meant.
    pub remote_qpn: Qpn,
    /// What the program sent along.
    pub private_data: [u8; Dreq::PRIVATE_LEN],
}

impl Default for Dreq {
    fn default() -> Self {
        Dreq {
            local_comm_id: CommId::NONE,
            remote_comm_id: CommId::NONE,
            remote_qpn: Qpn::new(0),
            private_data: [0; Dreq::PRIVATE_LEN],
        }
    }
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 220;
}

impl Layout for Dreq {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.comm_id(4, &mut self.remote_comm_id);
        c.qpn(8, &mut self.remote_qpn);
        c.bytes(12, &mut self.private_data);
    }
}

/// The connection has ended at the sender, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Id of the receiver.
    pub remote_comm_id: CommId,
    /// What the program sent along.
    pub private_data: [u8; Drep::PRIVATE_LEN],
}

impl Default for Drep {
    fn default() -> Self {
        let none = CommId::NONE;
        Drep { local_comm_id: none, remote_comm_id: none, private_data: [0; Drep::PRIVATE_LEN] }
    }
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;
}

impl Layout for Drep {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.comm_id(4, &mut self.remote_comm_id);
        c.bytes(8, &mut self.private_data);
    }
}
