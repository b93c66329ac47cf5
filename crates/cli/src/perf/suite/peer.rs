//! The suite's second process: a server that ends with the suite.

use super::super::PEER_COMMAND;
use super::super::affinity::Side;
use super::super::client::Client;
use super::super::control::Control;
use super::super::measure::{Budget, Measurement};
use super::super::params::Params;
use super::super::rdma::{Connections, Local, Network};
use super::super::{handshake, server};
use crate::child::Helper;
use crate::failure::Failure;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// The second process. Started when first needed, and again after a failure, so that one broken test does not end the
/// run.
#[derive(Default)]
pub(super) struct Peer {
    running: Option<(Client, Helper)>,
    network: Network,
}

impl Peer {
    /// A second process on this network, as is this one while it talks to it.
    pub(super) fn on(network: Network) -> Peer {
        Peer { running: None, network }
    }

    /// Runs a test against it.
    pub(super) fn run(&mut self, params: &Params, budget: Budget) -> Result<Measurement, Failure> {
        self.with_client(|client| client.run(params, budget))
    }

    /// Connects very many queue pairs with it.
    pub(super) fn connect_many(&mut self, params: &Params) -> Result<Connections, Failure> {
        self.with_client(|client| client.connect_many(params))
    }

    fn with_client<T>(&mut self, what: impl FnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
        if self.running.is_none() {
            self.running = Some(start(&self.network)?);
        }
        let Some((client, _)) = &mut self.running else { unreachable!("started above") };
        let outcome = what(client);
        if outcome.is_err() {
            self.running = None;
        }
        outcome
    }

    /// Ends it.
    pub(super) fn leave(self) {
        if let Some((client, _helper)) = self.running {
            client.leave();
        }
    }
}

fn start(network: &Network) -> Result<(Client, Helper), Failure> {
    let cannot = |error: std::io::Error| Failure::io("cannot start the second process of the test", error);
    let program = std::env::current_exe().map_err(cannot)?;
    let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
    let mut command = Command::new(program);
    command.arg(PEER_COMMAND).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    command.envs(network.variable());
    let helper = Helper::spawn(command).map_err(cannot)?;
    let control = Control::over_pair(ours).map_err(cannot)?;
    let local = Local::new(Some(Side::Client), None).on(network.clone());
    Ok((Client::new(control, local)?, helper))
}

/// Runs the second process: serves the other end of standard input.
pub(crate) fn run_peer() -> Result<(), Failure> {
    let not_ours = || {
        Failure::usage(format!("`{PEER_COMMAND}` is started by `ferroce perf` itself"))
            .advise("Run `ferroce perf`")
    };
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(|_| not_ours())?;
    if rustix::net::sockopt::socket_domain(&input) != Ok(rustix::net::AddressFamily::UNIX) {
        return Err(not_ours());
    }
    let mut control = Control::over_pair(UnixStream::from(input))
        .map_err(|error| Failure::io("cannot use the channel to ferroce perf", error))?;
    let served = handshake::greet(&mut control)
        .and_then(|()| server::serve(&mut control, &Local::new(Some(Side::Server), None), None, |_| Ok(())));
    // Failures are reported to the client, which prints them.
    drop(served);
    Ok(())
}
