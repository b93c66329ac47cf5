//! The side that requests tests and measures.

use super::affinity::Pinned;
use super::baseline::{tcp, udp, udp_stream};
use super::control::Control;
use super::handshake::{self, Request};
use super::measure::{Budget, Measurement};
use super::params::{Params, Transport};
use super::rdma;
use super::test::{Operation, Test};
use crate::failure::Failure;

/// A connection to a server.
pub(crate) struct Client {
    control: Control,
    local: rdma::Local,
}

impl Client {
    /// Exchanges greetings with the server.
    pub(crate) fn new(mut control: Control, local: rdma::Local) -> Result<Client, Failure> {
        handshake::greet(&mut control)?;
        Ok(Client { control, local })
    }

    /// Runs one test at one size.
    pub(crate) fn run(&mut self, params: &Params, budget: Budget) -> Result<Measurement, Failure> {
        self.local.prepare(params)?;
        let _pinned = self.local.pin.filter(|_| params.test.polls()).map(Pinned::to_core_of);
        let offer = handshake::request_test(&mut self.control, params)?;
        match params.test.operation() {
            Operation::Tcp => tcp::run(&mut self.control, params, budget, &offer, self.local.single_core),
            Operation::Udp if params.test == Test::UdpBw => {
                udp_stream::run(&mut self.control, params, budget, &offer, self.local.single_core)
            }
            Operation::Udp => udp::run(&mut self.control, params, budget, &offer, self.local.single_core),
            _ => rdma::run(&mut self.control, params, budget, &offer, &self.local),
        }
    }

    /// Connects very many queue pairs.
    pub(crate) fn connect_many(&mut self, params: &Params) -> Result<rdma::Connections, Failure> {
        self.local.prepare(params)?;
        let _pinned = self.local.pin.map(Pinned::to_core_of);
        rdma::connect_many(&mut self.control, params, &self.local)
    }

    /// Largest datagram message on the path to the server.
    pub(crate) fn path_mtu(&self, params: &Params) -> Result<u64, Failure> {
        self.local.prepare(params)?;
        Ok(self.local.path_mtu(&self.control, Transport::Ud)?.bytes().into())
    }

    /// Ends the session; ignores a server that has already ended.
    pub(crate) fn leave(mut self) {
        let _ = self.control.send(&Request::Bye);
    }
}
