//! Opening and closing the link: joining and leaving the processes that share the port.

use super::receive::Receiver;
use super::send::Sender;
use super::sockets::{self, bind, open_receive_socket};
use super::source::{Source, SourceKind};
use super::steer;
use super::sys::{self, attach_steering};
use super::tx_sockets::{TxSockets, has_no_ipv6};
use super::{BoundAddress, UdpConfig, UdpLink};
use crate::link::shared_port::SharedPort;
use crate::link::{Link, LinkError};
use ferroce_os::lock::Mutex;
use ferroce_os::wait_set::WaitSet;
use ferroce_shm::registry::{Registry, default_base};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

impl UdpLink {
    /// Opens the port, claims a process slot and joins the processes that share the port.
    pub fn open(config: &UdpConfig) -> Result<UdpLink, LinkError> {
        let registry = Arc::new(Registry::open(&config.registry_base.clone().unwrap_or_else(default_base))?);
        let counters = Arc::default();
        let port = SharedPort::open(Arc::clone(&registry), Arc::clone(&counters))
            .map_err(|source| failed(format!("listen in {}", registry.directory().display()), source))?;
        let group_poll = WaitSet::new().map_err(|e| failed("open a poll set".into(), e))?;
        let tx_sockets = TxSockets::open(config.send_sockets, config.ecn)
            .map_err(|e| failed("open a socket to send from".into(), e))?;
        let sender = Sender::new(tx_sockets, config.gso, Arc::clone(&counters), config.capture.clone());
        let (addresses, token) = join_addresses(config, &registry)?;
        let mut sources: Vec<Source> = addresses
            .iter()
            .enumerate()
            .map(|(i, a)| Source::new(SourceKind::Address(i), a.socket.as_raw_fd()))
            .map(|source| if config.gro { source.merging() } else { source })
            .collect();
        sources.push(Source::new(SourceKind::Forwarded, port.as_raw_fd()));
        let receiver = Receiver::new(sources, &addresses, token);
        let link = UdpLink {
            config: config.clone(),
            slot: registry.slot(),
            addresses,
            sender,
            echoer: OnceLock::new(),
            receiver: Mutex::new(receiver),
            port: Arc::new(port),
            reports_outer_fields: AtomicBool::new(false),
            group_poll,
            counters,
            capture: config.capture.clone(),
        };
        // Both need the control messages of every packet.
        if config.ecn || config.timestamps {
            link.report_outer_fields();
        }
        if config.timestamps {
            for bound in &link.addresses {
                // Without time stamps, an RTT includes the time until this process is scheduled.
                let _ = sys::set_option(&bound.socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
            }
        }
        Ok(link)
    }

    /// Leaves all addresses without losing packets of other processes. First the steering excludes this process, then it forwards
    /// misrouted packets, then it closes the sockets and updates the roster. The roster stays locked throughout.
    fn leave_addresses(&self, addresses: Vec<BoundAddress>) {
        let Some(mut receiver) = self.receiver.try_lock() else { return };
        receiver.is_closing = true;
        let left = self.port.registry().update(|_, roster| {
            for bound in &addresses {
                if let Some(program) = steer::program_without(roster.order(bound.addr), self.slot) {
                    let _ = attach_steering(&bound.socket, &program);
                }
            }
            self.forward_rest(&mut receiver);
            let mut survivors = Vec::new();
            for BoundAddress { addr, socket } in addresses {
                drop(socket);
                roster.leave(addr, self.slot);
                survivors.extend(roster.order(addr).first().map(|&slot| (addr, slot)));
            }
            survivors
        });
        // Only a member of a group may attach a program, so a remaining process must do it. Until then some packets are misrouted.
        for (addr, slot) in left.unwrap_or_default() {
            self.port.request_reattach(slot, addr);
        }
        self.port.drain();
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        let addresses = std::mem::take(&mut self.addresses);
        self.leave_addresses(addresses);
    }
}

/// Binds every address and joins its reuseport group, while no other process joins or leaves.
fn join_addresses(config: &UdpConfig, registry: &Registry) -> Result<(Vec<BoundAddress>, u128), LinkError> {
    let everywhere = [sockets::unspecified(true), sockets::unspecified(false)];
    let wanted = config.bind.as_deref().unwrap_or(&everywhere);
    registry.update(|registry, roster| {
        let mut bound: Vec<BoundAddress> = Vec::new();
        for &addr in wanted {
            if bound.iter().any(|b| b.addr == addr) {
                continue;
            }
            let socket = match open_and_bind(addr, config) {
                Ok(socket) => socket,
                Err(e) if config.bind.is_none() && addr.is_ipv6() && is_missing(&e) => continue,
                Err(e) => {
                    bound.iter().for_each(|b| roster.leave(b.addr, registry.slot()));
                    return Err(e);
                }
            };
            roster.prune(addr, |slot| registry.is_alive(slot));
            roster.join(addr, registry.slot());
            // Without a program the kernel hashes flows, and misrouted packets are forwarded.
            let _ = attach_steering(&socket, &steer::program(roster.order(addr)));
            bound.push(BoundAddress { addr, socket });
        }
        Ok((bound, roster.token))
    })?
}

fn open_and_bind(addr: IpAddr, config: &UdpConfig) -> Result<socket2::Socket, LinkError> {
    let socket =
        open_receive_socket(addr, config).map_err(|e| failed(format!("open a socket for {addr}"), e))?;
    bind(&socket, addr)?;
    Ok(socket)
}

/// Whether this is the error of a machine without IPv6.
fn is_missing(error: &LinkError) -> bool {
    match error {
        LinkError::NoSuchAddress { .. } => true,
        LinkError::Socket { source, .. } => has_no_ipv6(source),
        _ => false,
    }
}

fn failed(what: String, source: io::Error) -> LinkError {
    LinkError::Socket { what, source }
}
