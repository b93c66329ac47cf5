//! Maps descriptors to sockets. A socket's number is a real descriptor of the process, so it conflicts with no other.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Sockets by descriptor. A call holds its socket, so another thread may close it safely.
pub(crate) struct Table<T>(RwLock<BTreeMap<RawFd, Arc<T>>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    /// The socket behind a number.
    pub(crate) fn find(&self, fd: RawFd) -> Option<Arc<T>> {
        self.0.read().get(&fd).cloned()
    }

    pub(crate) fn insert(&self, fd: RawFd, socket: Arc<T>) {
        self.0.write().insert(fd, socket);
    }

    /// Removes it; later calls do not find it.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Arc<T>> {
        self.0.write().remove(&fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_lives_while_somebody_uses_it() {
        let table = Table::new();
        assert!(table.find(3).is_none() && table.remove(3).is_none());
        table.insert(3, Arc::new("three"));
        let held = table.find(3).unwrap();
        assert!(table.remove(3).is_some());
        assert!(table.find(3).is_none());
        assert_eq!(*held, "three");
    }
}
