//! Maps descriptors to sockets. A socket's number is a real descriptor of the process, so it conflicts with no other.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, RwLock};

/// Sockets by descriptor. A call keeps its socket alive, so another thread may close it safely.
pub(crate) struct Table<T> {
    sockets: RwLock<Option<HashMap<RawFd, Arc<T>>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { sockets: RwLock::new(None) }
    }

    /// The socket behind a number.
    pub(crate) fn find(&self, fd: RawFd) -> Option<Arc<T>> {
        // A poisoned lock guards a map that is whole: nothing panics between its steps.
        let sockets = self.sockets.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        sockets.as_ref()?.get(&fd).cloned()
    }

    pub(crate) fn insert(&self, fd: RawFd, socket: Arc<T>) {
        let mut sockets = self.sockets.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        sockets.get_or_insert_with(HashMap::new).insert(fd, socket);
    }

    /// Removes it; later calls do not find it.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Arc<T>> {
        let mut sockets = self.sockets.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        sockets.as_mut()?.remove(&fd)
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
