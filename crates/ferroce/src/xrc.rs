//! Extended reliable connections (XRC, IBA annex A14).
//!
//! One connection reaches all shared receive queues of an XRC domain. The initiator, a [`XrcQp`](crate::XrcQp), names the
//! shared receive queue in each request. The target only receives: it has neither a protection domain nor completion queues of
//! its own, because each shared receive queue has both.

use crate::cq::Cq;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::macros::{debug, setters};
use crate::memory::{Buffer, RemoteRegion};
use crate::pd::Pd;
use crate::pending::{Pending, Refused};
use crate::qp::connect::{self, Settings};
use crate::qp::{QpBuilder, SendHalf, Target, XrcInitiator};
use crate::srq::Srq;
use ferroce_proto::verbs::{Access, AttrMask, QpAttr, QpState, SendOp, Transport};
use ferroce_proto::{Qpn, Srqn};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// An XRC domain: targets of a domain deliver messages to the shared receive queues of the same domain. Cheap to clone; it
/// lives until the last clone, target and shared receive queue are dropped.
#[derive(Clone)]
pub struct XrcDomain {
    nic: Arc<ferroce_nic::XrcDomain>,
    device: Device,
}

impl Device {
    /// Allocates an XRC domain.
    pub fn alloc_xrc_domain(&self) -> Result<XrcDomain, Error> {
        let nic = self.nic().alloc_xrc_domain().map_err(Error::in_call("open_xrcd"))?;
        Ok(XrcDomain { nic, device: self.clone() })
    }
}

impl XrcDomain {
    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Creates a shared receive queue of up to `depth` receives with up to `sges` scatter/gather entries each. Completions go to
    /// `cq`; regions of `pd` are accessible through it.
    pub fn srq(&self, pd: &Pd, cq: &Cq, depth: u32, sges: u32) -> Result<XrcSrq, Error> {
        let nic = pd.nic.create_xrc_srq(depth, sges, &self.nic, cq.nic());
        let nic = nic.map_err(Error::in_call("create_srq"))?;
        let number = nic.number().ok_or_else(|| Error::invalid("create_srq", "srq", "has no XRC number"))?;
        Ok(XrcSrq { srq: Srq::new(nic, pd), number, cq: cq.clone() })
    }

    /// Settings of a target of this domain.
    pub fn target(&self) -> XrcTargetBuilder {
        XrcTargetBuilder { domain: self.clone(), address: None, settings: Settings::random() }
    }
}

debug!(XrcDomain, |this| "XrcDomain({})", this.nic.id());

/// A shared receive queue of an XRC domain, made by [`XrcDomain::srq`]. It has all methods of [`Srq`]; owned receives complete
/// at [`Cq::wait_shared`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct XrcSrq {
    srq: Srq,
    number: Srqn,
    cq: Cq,
}

impl XrcSrq {
    /// The number by which initiators address it.
    pub fn number(&self) -> Srqn {
        self.number
    }

    /// The completion queue of its receives.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }
}

impl Deref for XrcSrq {
    type Target = Srq;
    fn deref(&self) -> &Srq {
        &self.srq
    }
}

/// Settings of an [`XrcTarget`]. Made by [`XrcDomain::target`].
#[must_use = "`create` creates the target"]
pub struct XrcTargetBuilder {
    domain: XrcDomain,
    address: Option<IpAddr>,
    settings: Settings,
}

impl XrcTargetBuilder {
    setters! {
        /// Local address; the default is entry 0 of the GID table.
        address(address: IpAddr) |b| b.address = Some(address);
        /// Operations that the initiator may execute, as far as regions allow them too; all by default.
        access(access: Access) |b| b.settings.access = access;
        /// READs and atomics that the target serves at a time; 16.
        rd_atomic(count: u8) |b| b.settings.rd_atomic = count;
    }

    /// Creates the target in INIT.
    pub fn create(mut self) -> Result<XrcTarget, Error> {
        let device = &self.domain.device;
        if let Some(address) = self.address {
            self.settings.gid_index = device.gid_index(address)?;
        }
        let nic = self.domain.nic.create_target(device.nic()).map_err(Error::in_call("create_qp"))?;
        let target =
            XrcTarget { inner: Arc::new(TargetInner { nic, domain: self.domain, settings: self.settings }) };
        let attr =
            QpAttr { state: QpState::Init, port: 1, access: self.settings.access, ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        target.inner.nic.modify(&attr, mask).map_err(Error::in_call("modify_qp"))?;
        Ok(target)
    }
}

/// The receiving end of an extended reliable connection. It posts nothing. Cheap to clone; destroyed with its last clone.
#[derive(Clone)]
pub struct XrcTarget {
    inner: Arc<TargetInner>,
}

struct TargetInner {
    nic: ferroce_nic::Qp,
    domain: XrcDomain,
    settings: Settings,
}

impl XrcTarget {
    /// Its queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.inner.nic.qpn()
    }
    /// Its XRC domain.
    pub fn domain(&self) -> &XrcDomain {
        &self.inner.domain
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.inner.nic.query().state
    }

    /// The description of this end for the initiator.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.inner.settings.endpoint(Transport::XrcTgt, self.qpn(), &self.inner.domain.device)
    }

    /// Connects to an initiator, as [`Qp::connect`](crate::Qp::connect) does.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        connect::to_peer(&self.inner.settings, &self.endpoint()?, peer, |attr, mask| {
            self.inner.nic.modify(attr, mask).map_err(Error::in_call("modify_qp"))
        })
    }

    /// Connects to the initiator at the other end of `stream`, as [`Qp::connect_over`](crate::Qp::connect_over) does.
    pub fn connect_over(&self, stream: &mut (impl Read + Write)) -> Result<Endpoint, Error> {
        connect::over(stream, &self.endpoint()?, |peer| self.connect(peer))
    }
}

debug!(XrcTarget, |this| "XrcTarget({}, {:?})", this.qpn(), this.state());

impl Pd {
    /// The sending end of an extended reliable connection, whose completions go to `cq`.
    pub fn xrc(&self, cq: &Cq) -> QpBuilder<XrcInitiator> {
        QpBuilder::new(self, cq)
    }
}

/// Each operation names the shared receive queue of the peer: it receives the message, and its protection domain decides which
/// regions are accessible. Operations on regions go through [`post_send`](SendHalf::post_send) with
/// [`SendWr::srq`](crate::SendWr::srq).
impl SendHalf<XrcInitiator> {
    /// Sends the message in `buffer`.
    pub fn send(&self, buffer: Buffer, to: Srqn) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Send, Target::Srq(to))
    }

    /// Sends the message in `buffer` with immediate data.
    pub fn send_with_imm(&self, buffer: Buffer, imm: u32, to: Srqn) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::SendImm(imm), Target::Srq(to))
    }

    /// Writes the message in `buffer` into a region of the peer.
    pub fn write_from(&self, buffer: Buffer, to: RemoteRegion, srq: Srqn) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Write { addr: to.addr, rkey: to.rkey }, Target::Srq(srq))
    }

    /// Reads as many bytes of a region of the peer as `buffer` is long.
    pub fn read_into(&self, buffer: Buffer, from: RemoteRegion, srq: Srqn) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Read { addr: from.addr, rkey: from.rkey }, Target::Srq(srq))
    }
}
