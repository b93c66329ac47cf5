//! RDMA for every machine: a safe verbs API over a software NIC.
//!
//! No RDMA hardware, no kernel module, no root: real RoCEv2 packets over UDP, from an ordinary process. A first program,
//! with both sides in one process:
//!
//! ```
//! use ferroce::{Device, Error};
//!
//! fn main() -> Result<(), Error> {
//!     let device = Device::open()?;
//!     let pd = device.alloc_pd()?;
//!     let cq = device.create_cq(16)?;
//!
//!     // Two queue pairs that know each other. `connect_over` does this over a socket.
//!     let (alice, bob) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
//!     alice.connect(&bob.endpoint()?)?;
//!     bob.connect(&alice.endpoint()?)?;
//!
//!     // Bob waits for a message. While the NIC has his buffer, nobody else does.
//!     let letter = bob.recv(pd.buffer(64)?)?;
//!
//!     let mut message = pd.buffer(64)?;
//!     message.set(b"hello")?;
//!     alice.send(message)?.wait()?;
//!
//!     assert_eq!(&*letter.wait()?.buffer, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! | what | where |
//! |---|---|
//! | the device | [`Device`], [`Config`] |
//! | who works together | [`Pd`] |
//! | memory for messages | [`Buffer`]: owned by the program or by the NIC, never both |
//! | memory for peers | [`Region`], and what they must know of it, [`RemoteRegion`] |
//! | queue pairs | [`RcQp`], [`UcQp`], [`UdQp`], [`QpBuilder`]; halves for two threads: [`SendHalf`], [`RecvHalf`] |
//! | how they meet, by address and port | [`Listener`], [`Connector`], [`Connection`] |
//! | how they meet, by other means | [`Endpoint`], [`Qp::connect`], [`Qp::connect_over`]; datagrams: [`AddressHandle`] |
//! | receives for many | [`Srq`] |
//! | what became of it | [`Cq`], [`Pending`], [`Done`], [`CompletionError`]; for tasks: `AsyncCq` (feature `tokio`) |
//! | raw work requests | [`wr`], [`SendWr`], [`RecvWr`] |
//! | what went wrong | [`Error`]; `FERROCE_LOG=1` explains every failed completion and dropped packet |
//!
//! Everything is `Send` and `Sync`, and keeps alive what it needs: there are no lifetimes to fight.
#![deny(unsafe_code)]

mod address;
mod cm;
mod cq;
mod device;
mod endpoint;
mod error;
mod in_flight;
mod memory;
mod pd;
mod pending;
mod qp;
mod reactor;
mod sleep;
mod srq;
pub mod wr;
mod xrc;

pub use address::AddressHandle;
pub use cm::{Connection, ConnectionEvent, Connector, Listener, ListenerBuilder, Request};
pub use cq::{AsyncCq, Cq};
pub use device::{Device, DeviceInfo};
pub use endpoint::{BadEndpoint, Endpoint};
pub use error::{CompletionError, Error, Outcome};
pub use memory::{
    BadRemoteRegion, Buffer, DeviceMemory, DeviceRegion, ImplicitRegion, MemoryWindow, Region, RegionBuilder,
    RemoteRegion, Type1, Type2, WindowKind,
};
pub use pd::Pd;
pub use pending::{Done, Pending, Refused};
pub use qp::connect::ConnectError;
pub use qp::{
    Connected, HasPeer, Qp, QpBuilder, Rc, RcQp, Receives, RecvHalf, Reliable, SendHalf, Service, Uc, UcQp,
    Ud, UdQp, XrcInitiator, XrcQp,
};
#[cfg(feature = "async-io")]
pub use reactor::AsyncIo;
#[cfg(feature = "tokio")]
pub use reactor::Tokio;
pub use reactor::{Reactor, Readable};
pub use srq::Srq;
pub use xrc::{XrcDomain, XrcSrq, XrcTarget, XrcTargetBuilder};

/// Why the NIC refused a call.
pub use ferroce_nic::Error as Refusal;
/// Faults to inject, and what the link below counted.
pub use ferroce_nic::link::{FaultConfig, LinkCounters};
/// What the NIC below gives as it is: settings, tables and numbers.
pub use ferroce_nic::{
    AsyncEvent, CmRefusal, Config, ConfigError, Counters, DeviceAttr, EventSource, GidEntry, KeyError,
    LinkChoice, Prefetch, QpReport, RejectReason, Secret, SrqAttr, read_key,
};
pub use ferroce_proto::qp::state::ModifyError;
/// The vocabulary of the verbs.
pub use ferroce_proto::qp::{PostError, QpCounters, Reason};
pub use ferroce_proto::verbs::{
    Access, AddressVector, AtomicOp, AttrMask, Completion, EventKind, MemoryFault, Mtu, Payload, QpAttr,
    QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Transport, UdTarget, WcFlags, WcOpcode, WcStatus,
};
pub use ferroce_proto::{Gid, LKey, PdId, Psn, Qkey, Qpn, RKey, Srqn};
