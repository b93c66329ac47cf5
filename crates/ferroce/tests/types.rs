//! What the types promise.

use ferroce::{
    AddressHandle, Buffer, Completion, CompletionError, Cq, Device, Done, Endpoint, Error, Pd, Pending, RcQp,
    RecvHalf, Refused, Region, RemoteRegion, SendHalf, Srq, UcQp, Ud, UdQp,
};
use std::fmt::Debug;

fn crosses_threads<T: Send + Sync + Debug + 'static>() {}
fn is_shared<T: Clone + Send + Sync + 'static>() {}

#[test]
fn everything_crosses_threads_and_borrows_nothing() {
    crosses_threads::<Device>();
    crosses_threads::<Pd>();
    crosses_threads::<Cq>();
    crosses_threads::<Srq>();
    crosses_threads::<(RcQp, UcQp, UdQp)>();
    crosses_threads::<(SendHalf<Ud>, RecvHalf<Ud>)>();
    crosses_threads::<(Region, RemoteRegion, Buffer)>();
    crosses_threads::<(Pending, Done, Refused)>();
    crosses_threads::<(AddressHandle, Endpoint)>();
    crosses_threads::<(Completion, CompletionError, Error)>();
    is_shared::<(Device, Pd, Cq, Srq, RcQp, Region, AddressHandle)>();
}
