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
//!     // Two connected queue pairs. `connect_over` connects through a socket.
//!     let (alice, bob) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
//!     alice.connect(&bob.endpoint()?)?;
//!     bob.connect(&alice.endpoint()?)?;
//!
//!     // The NIC owns the buffer until the message arrives.
//!     let received = bob.recv(pd.buffer(64)?)?;
//!
//!     let mut message = pd.buffer(64)?;
//!     message.set(b"hello")?;
//!     alice.send(message)?.wait()?;
//!
//!     assert_eq!(&*received.wait()?.buffer, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! | topic | types |
//! |---|---|
//! | devices | [`Device`], [`Device::list`], [`Config`] |
//! | protection domains | [`Pd`] |
//! | memory of messages | [`Buffer`]: owned by the program or by the NIC, never by both |
//! | memory for one-sided operations | [`Region`], and its description for peers, [`RemoteRegion`] |
//! | memory windows, device memory, on-demand paging | [`MemoryWindow`], [`DeviceMemory`], [`RegionBuilder::on_demand`] |
//! | queue pairs | [`RcQp`], [`UcQp`], [`UdQp`], [`QpBuilder`]; halves for two threads: [`SendHalf`], [`RecvHalf`] |
//! | connecting by address and port | [`Listener`], [`Connector`], [`Connection`] |
//! | connecting by other means | [`Endpoint`], [`Qp::connect`], [`Qp::connect_over`]; datagrams: [`AddressHandle`] |
//! | shared receive queues | [`Srq`] |
//! | extended reliable connections (XRC) | [`XrcDomain`], [`XrcTarget`], [`XrcQp`], [`XrcSrq`] |
//! | completions | [`Cq`], [`Pending`], [`Done`], [`CompletionError`] |
//! | async | [`AsyncCq`] on any [`Reactor`]: features `tokio` and `async-io`, or one of your own |
//! | raw work requests | [`wr`], [`SendWr`], [`RecvWr`] |
//! | errors | [`Error`]; `FERROCE_LOG=1` explains every failed completion and dropped packet |
//!
//! All types are `Send` and `Sync`. Objects are reference counted and keep alive what they need, so none has a lifetime.
#![deny(unsafe_code)]

mod address;
mod cm;
mod cq;
mod device;
mod endpoint;
mod error;
mod in_flight;
mod macros;
mod memory;
mod pd;
mod pending;
mod qp;
mod reactor;
mod reexports;
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
    BadRemoteRegion, Buffer, DeviceMemory, DeviceRegion, GpuRegion, ImplicitRegion, MemoryWindow, Region,
    RegionBuilder, RemoteRegion, Type1, Type2, WindowKind,
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
pub use reexports::*;
pub use srq::Srq;
pub use xrc::{XrcDomain, XrcSrq, XrcTarget, XrcTargetBuilder};
