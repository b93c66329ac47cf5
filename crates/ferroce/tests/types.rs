//! Guarantees of the types.

use ferroce::{
    AddressHandle, Buffer, Completion, CompletionError, Cq, Device, DeviceInfo, DeviceMemory, DeviceRegion,
    Done, Endpoint, Error, ImplicitRegion, MemoryWindow, Pd, Pending, RcQp, RecvHalf, Refused, Region,
    RemoteRegion, SendHalf, Srq, Type1, Type2, UcQp, Ud, UdQp, XrcDomain, XrcQp, XrcSrq, XrcTarget,
};
use std::fmt::Debug;

fn crosses_threads<T: Send + Sync + Debug + 'static>() {}
fn is_shared<T: Clone + Send + Sync + 'static>() {}

#[test]
fn everything_crosses_threads_and_borrows_nothing() {
    crosses_threads::<(Device, DeviceInfo)>();
    crosses_threads::<Pd>();
    crosses_threads::<Cq>();
    crosses_threads::<Srq>();
    crosses_threads::<(RcQp, UcQp, UdQp, XrcQp)>();
    crosses_threads::<(XrcDomain, XrcSrq, XrcTarget)>();
    crosses_threads::<(MemoryWindow<Type1>, DeviceMemory, DeviceRegion, ImplicitRegion)>();
    crosses_threads::<(SendHalf<Ud>, RecvHalf<Ud>)>();
    crosses_threads::<(Region, RemoteRegion, Buffer)>();
    crosses_threads::<(Pending, Done, Refused)>();
    crosses_threads::<(AddressHandle, Endpoint)>();
    crosses_threads::<(Completion, CompletionError, Error)>();
    is_shared::<(Device, Pd, Cq, Srq, RcQp, Region, AddressHandle)>();
    is_shared::<(XrcDomain, XrcSrq, XrcTarget, MemoryWindow<Type2>, DeviceMemory, DeviceRegion)>();
}

#[test]
fn devices_are_listed_without_opening_them() {
    let devices = Device::list().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].name(), "ferroce0");
    assert!(devices[0].gids().iter().any(|entry| entry.address.is_loopback()));
    let open = devices[0].open().unwrap();
    assert_eq!(open.gids(), devices[0].gids());
}
