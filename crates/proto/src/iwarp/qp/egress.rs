//! The interface between a stream queue pair and its TCP stream.

use super::super::wire::Fpdu;
use crate::qp::{HostServices, TxError};

/// Transmission into the stream of one queue pair.
pub trait StreamEgress {
    /// Sends an FPDU from its byte `from` on. Returns how many of its bytes are taken in all, counted from its start. If that is fewer
    /// than all, the stream is full, and the next call passes the same FPDU with that number. The host owns a taken byte: its
    /// source may change afterwards.
    ///
    /// A host that computes a CRC must take the whole FPDU, because the program may change the payload between two calls.
    fn send_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<usize, TxError>;

    /// Takes an FPDU from its byte `from` on, even if the stream is full: a Terminate, or the FPDU in front of it. The host
    /// copies the bytes that the stream does not take, and sends them before it closes the stream. The default declines.
    fn keep_fpdu(&mut self, _fpdu: &Fpdu<'_>, _from: usize) -> Result<(), TxError> {
        Err(TxError::Full)
    }
}

/// Everything a stream queue pair calls in its NIC.
pub trait StreamHost: StreamEgress + HostServices {}

impl<T: StreamEgress + HostServices> StreamHost for T {}
