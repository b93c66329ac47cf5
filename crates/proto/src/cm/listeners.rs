//! Listeners by service and address.

use super::{CmError, PortSpace, ServiceId};
use crate::ids::Gid;
use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// How long after its listener closed a service may reopen. A rejected peer fails, while a peer without an answer
/// retransmits. `ib_send_bw -R` closes and listens again between its two connections.
const REOPEN_NS: u64 = 500_000_000;
/// Maximum number of closed services that are stored; the oldest are removed first.
const MAX_CLOSED: usize = 64;

/// Identifies a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// The addresses of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One address.
    Only(Gid),
    /// All IPv4 addresses.
    AnyV4,
    /// All IPv6 addresses.
    AnyV6,
    /// All addresses.
    Any,
}

impl Scope {
    /// Whether it includes `address`.
    pub fn covers(self, address: Gid) -> bool {
        match self {
            Scope::Only(own) => own == address,
            Scope::AnyV4 => address.to_ipv4().is_some(),
            Scope::AnyV6 => address.to_ipv4().is_none(),
            Scope::Any => true,
        }
    }

    /// Whether the two sets overlap.
    pub fn overlaps(self, other: Scope) -> bool {
        match (self, other) {
            (Scope::Only(a), b) | (b, Scope::Only(a)) => b.covers(a),
            (Scope::Any, _) | (_, Scope::Any) => true,
            (a, b) => a == b,
        }
    }
}

/// The requests that a listener accepts, and the form of their private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// SIDR requests instead of connections.
    pub datagrams: bool,
    /// The private data including the bytes of the IP header, even if that header is invalid.
    pub whole_private_data: bool,
}

impl ListenerOptions {
    /// The default of the port space of a service.
    fn of(service: ServiceId) -> ListenerOptions {
        let datagrams = service.space().is_some_and(PortSpace::is_datagram);
        ListenerOptions { datagrams, whole_private_data: false }
    }
}

struct Listener {
    options: ListenerOptions,
    service: ServiceId,
    scope: Scope,
    backlog: u32,
    pending: u32,
}

#[derive(Default)]
pub(super) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    by_service: BTreeMap<ServiceId, Vec<(Scope, ListenerId)>>,
    /// Recently closed services, oldest first.
    closed: VecDeque<(ServiceId, Time)>,
    last: u32,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        service: ServiceId,
        scope: Scope,
        backlog: u32,
    ) -> Result<ListenerId, CmError> {
        let same = self.by_service.entry(service).or_default();
        if same.iter().any(|(other, _)| *other == scope) {
            return Err(CmError::InUse);
        }
        self.last += 1;
        let id = ListenerId(self.last);
        same.push((scope, id));
        // Most specific first: one address, then a family, then all.
        same.sort_unstable();
        let options = ListenerOptions::of(service);
        self.all.insert(id, Listener { options, service, scope, backlog, pending: 0 });
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ListenerId, now: Time) {
        let Some(listener) = self.all.remove(&id) else { return };
        if self.closed.len() == MAX_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back((listener.service, now));
        if let Some(same) = self.by_service.get_mut(&listener.service) {
            same.retain(|(scope, other)| (*scope, *other) != (listener.scope, id));
            if same.is_empty() {
                self.by_service.remove(&listener.service);
            }
        }
    }

    pub(super) fn find(&self, service: ServiceId, address: Gid) -> Option<ListenerId> {
        let same = self.by_service.get(&service)?;
        same.iter().find(|(scope, _)| scope.covers(address)).map(|(_, id)| *id)
    }

    /// Whether the listener of `service` closed recently and may reopen.
    pub(super) fn may_reopen(&mut self, service: ServiceId, now: Time) -> bool {
        while self.closed.front().is_some_and(|(_, closed)| now >= *closed + REOPEN_NS) {
            self.closed.pop_front();
        }
        self.closed.iter().any(|(closed, _)| *closed == service)
    }

    /// The options of a listener; the default if it does not exist.
    pub(super) fn options(&self, id: ListenerId) -> ListenerOptions {
        self.all.get(&id).map_or(ListenerOptions::of(ServiceId(0)), |listener| listener.options)
    }

    pub(super) fn set_options(&mut self, id: ListenerId, options: ListenerOptions) {
        if let Some(listener) = self.all.get_mut(&id) {
            listener.options = options;
        }
    }

    pub(super) fn is_below_backlog(&self, id: ListenerId) -> bool {
        self.all.get(&id).is_some_and(|l| l.pending < l.backlog)
    }

    pub(super) fn change_pending(&mut self, id: Option<ListenerId>, change: i32) {
        if let Some(listener) = id.and_then(|id| self.all.get_mut(&id)) {
            listener.pending = listener.pending.saturating_add_signed(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    #[test]
    fn the_most_specific_listener_gets_the_req() {
        let one = Gid::from_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        let two = Gid::from_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
        let six = Gid::from_ip(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let mut listeners = Listeners::default();
        let service = ServiceId(7);
        let any = listeners.add(service, Scope::Any, 1).unwrap();
        let v4 = listeners.add(service, Scope::AnyV4, 1).unwrap();
        let only = listeners.add(service, Scope::Only(one), 1).unwrap();
        assert_eq!(listeners.add(service, Scope::AnyV4, 1), Err(CmError::InUse));
        let find = |l: &Listeners, gid| l.find(service, gid);
        assert_eq!([one, two, six].map(|g| find(&listeners, g)), [Some(only), Some(v4), Some(any)]);
        listeners.remove(only, Time(0));
        listeners.remove(any, Time(0));
        assert_eq!([one, two, six].map(|g| find(&listeners, g)), [Some(v4), Some(v4), None]);
        assert_eq!(listeners.find(ServiceId(8), one), None);
    }

    #[test]
    fn closed_services_are_stored_briefly_and_bounded() {
        let mut listeners = Listeners::default();
        for at in 0..=MAX_CLOSED as u64 {
            let id = listeners.add(ServiceId(at), Scope::Any, 1).unwrap();
            listeners.remove(id, Time(at));
        }
        assert_eq!(listeners.closed.len(), MAX_CLOSED);
        assert!(
            !listeners.may_reopen(ServiceId(0), Time(100)) && listeners.may_reopen(ServiceId(1), Time(100))
        );
        assert!(!listeners.may_reopen(ServiceId(1), Time(1 + REOPEN_NS)));
        assert!(listeners.may_reopen(ServiceId(2), Time(1 + REOPEN_NS)));
    }

    #[test]
    fn scopes_overlap() {
        let one = Scope::Only(Gid::from_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))));
        assert!(one.overlaps(Scope::AnyV4) && Scope::Any.overlaps(one) && one.overlaps(one));
        assert!(!one.overlaps(Scope::AnyV6) && !Scope::AnyV4.overlaps(Scope::AnyV6));
        assert!(Scope::AnyV6.overlaps(Scope::Any));
    }
}
