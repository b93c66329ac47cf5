//! Options of a stream socket. Options without an effect are stored, so that a program can read them back.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use super::Connection;
use super::shared::{Shared, State};
use crate::abi::*;
use crate::rsocket::calls::rdma_set_option;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::option::{
    self, Given, RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, Taken,
};
use crate::rsocket::stream::End;
use crate::rsocket::waiting::Watched;

const UNSUPPORTED: Errno = Errno(libc::ENOTSUP);
/// States of a TCP connection, as `TCP_INFO` names them.
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;

/// The options of a socket.
#[derive(Clone, Default)]
pub(crate) struct Options {
    reuse_address: bool,
    keep_alive: bool,
    keep_idle_s: Option<c_int>,
    out_of_band_inline: bool,
    linger: Option<c_int>,
    no_delay: bool,
    v6_only: bool,
    type_of_service: c_int,
    /// Path records for the next connection.
    pub(crate) route: Option<Vec<u8>>,
}

/// What a change of options requires of the keepalive service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeepAlive {
    Unchanged,
    Every(Duration),
    Off,
}

/// Whether a connection needs further probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Liveness {
    Alive,
    Ended,
}

impl Connection {
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &Given) -> Outcome<KeepAlive> {
        let mut shared = self.shared.lock();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE | libc::SO_LINGER | libc::SO_OOBINLINE) => {
                return shared.set_socket_flag(name, value);
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                let reuse = value.int()? != 0;
                // It has no effect on a bound socket, but a program that sets it late should not fail.
                if shared.state == State::Fresh {
                    shared.set_id_option(RDMA_OPTION_ID_REUSEADDR, c_int::from(reuse))?;
                }
                shared.options.reuse_address = reuse;
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if shared.endpoint.is_none() => {
                shared.sizing.set_recv_ring(value.size()?);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if shared.endpoint.is_none() => {
                shared.sizing.set_send_ring(value.size()?);
            }
            // Accepted without effect after the connection, as in the kernel.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                let tos = value.int()?;
                let byte = u8::try_from(tos).map_err(|_| Errno(libc::EINVAL))?;
                shared.set_id_option(RDMA_OPTION_ID_TOS, byte)?;
                shared.options.type_of_service = tos;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                let only = value.int()? != 0;
                shared.set_id_option(RDMA_OPTION_ID_AFONLY, c_int::from(only))?;
                shared.options.v6_only = only;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => return shared.set_idle(value.int()?),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => shared.options.no_delay = value.int()? != 0,
            // No effect: a reliable connection has its own retries.
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => {}
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            (SOL_RDMA, _) => shared.set_rdma_option(name, value)?,
            _ => return Err(UNSUPPORTED),
        }
        Ok(KeepAlive::Unchanged)
    }

    pub(crate) fn option(&self, level: c_int, name: c_int, into: &mut Taken) -> Outcome<()> {
        let mut shared = self.shared.lock();
        let options = &shared.options;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.out_of_band_inline.into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => shared.sizing.recv_ring as c_int,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => shared.sizing.send_ring as c_int,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (shared.state == State::Listening).into(),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ERROR) => shared.take_error(),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let l_onoff = options.linger.is_some().into();
                return into.put(&libc::linger { l_onoff, l_linger: options.linger.unwrap_or(0) });
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => options.type_of_service,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.v6_only.into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                options.keep_idle_s.unwrap_or_else(option::default_idle_s)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => shared.segment(),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return shared.put_tcp_info(into),
            (SOL_RDMA, RDMA_SQSIZE) => shared.sizing.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => shared.sizing.recv_queue.into(),
            (SOL_RDMA, RDMA_INLINE) => shared.sizing.inline as c_int,
            (SOL_RDMA, RDMA_IOMAPSIZE) => shared.sizing.mappings.into(),
            (SOL_RDMA, RDMA_ROUTE) => return into.put_bytes(options.route.as_deref().unwrap_or(&[])),
            _ => return Err(UNSUPPORTED),
        };
        into.put(&number)
    }

    /// Sends a probe.
    pub(crate) fn keep_alive(&self) -> Liveness {
        let mut shared = self.shared.lock();
        shared.progress(None);
        shared.on_silence();
        if shared.closed || shared.end().is_some() { Liveness::Ended } else { Liveness::Alive }
    }
}

impl Shared {
    fn set_id_option<T>(&mut self, name: c_int, mut value: T) -> Outcome<()> {
        let (pointer, length) = ((&raw mut value).cast::<c_void>(), size_of::<T>());
        // SAFETY: the id lives as long as the channel, the value until this returns.
        Errno::check(unsafe { rdma_set_option(self.channel.id(), RDMA_OPTION_ID, name, pointer, length) })?;
        Ok(())
    }

    fn set_socket_flag(&mut self, name: c_int, value: &Given) -> Outcome<KeepAlive> {
        match name {
            libc::SO_LINGER => {
                let linger: libc::linger = value.get()?;
                self.options.linger = (linger.l_onoff != 0).then_some(linger.l_linger);
            }
            libc::SO_OOBINLINE => self.options.out_of_band_inline = value.int()? != 0,
            _ => {
                self.options.keep_alive = value.int()? != 0;
                return Ok(self.keep_alive_wish());
            }
        }
        Ok(KeepAlive::Unchanged)
    }

    fn keep_alive_wish(&self) -> KeepAlive {
        if !self.options.keep_alive {
            return KeepAlive::Off;
        }
        let idle_s = self.options.keep_idle_s.unwrap_or_else(option::default_idle_s);
        KeepAlive::Every(Duration::from_secs(idle_s.max(1) as u64))
    }

    fn set_idle(&mut self, seconds: c_int) -> Outcome<KeepAlive> {
        if seconds <= 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.options.keep_idle_s = Some(seconds);
        Ok(if self.options.keep_alive { self.keep_alive_wish() } else { KeepAlive::Unchanged })
    }

    fn set_rdma_option(&mut self, name: c_int, value: &Given) -> Outcome<()> {
        // A listener may change its sizes at any time: they apply to sockets that it accepts later.
        if self.endpoint.is_some() || self.state.is_opening() {
            return Err(Errno(libc::EINVAL));
        }
        match name {
            RDMA_SQSIZE => self.sizing.set_send_queue(value.size()?),
            RDMA_RQSIZE => self.sizing.set_recv_queue(value.size()?),
            RDMA_INLINE => self.sizing.set_inline(value.size()?),
            RDMA_IOMAPSIZE => self.sizing.set_mappings(value.size()?),
            RDMA_ROUTE => self.options.route = Some(value.bytes().to_vec()),
            _ => return Err(UNSUPPORTED),
        }
        Ok(())
    }

    /// Returns the error since the last query, and clears it.
    fn take_error(&mut self) -> c_int {
        self.progress(None);
        if self.end() == Some(End::Failed) && self.error == 0 {
            return libc::ECONNRESET;
        }
        std::mem::take(&mut self.error)
    }

    /// The path's MTU.
    fn segment(&self) -> c_int {
        // SAFETY: the id lives as long as the channel, and its path records as long as the id.
        unsafe {
            let route = &(*self.channel.id()).route;
            if route.num_paths > 0 && !route.path_rec.is_null() {
                1 << (7 + c_int::from((*route.path_rec).mtu & 7))
            } else {
                2048
            }
        }
    }

    fn put_tcp_info(&self, into: &mut Taken) -> Outcome<()> {
        let alive = self.link().is_some_and(|link| link.machine.life.is_connected());
        let mut info = option::TcpInfo::default();
        info.set_state(if alive { TCP_ESTABLISHED } else { TCP_CLOSE });
        info.set_window(self.sizing.send_queue.into());
        into.put_bytes(info.as_bytes())
    }
}
