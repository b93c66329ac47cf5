//! The service of `SO_KEEPALIVE`: one thread that probes idle connections while a socket has the option.
//!
//! A probe is a zero-length WRITE, which the peer's NIC acknowledges without its program. If no acknowledgement arrives, the
//! connection fails and its waiters wake up.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::connection::Liveness;
use super::socket::Socket;

struct Entry {
    socket: Weak<Socket>,
    every: Duration,
    due: Instant,
}

struct Service {
    entries: Vec<Entry>,
    /// The process whose thread runs the service. A forked child has no such thread.
    served_by: Option<u32>,
}

static SERVICE: Mutex<Service> = Mutex::new(Service { entries: Vec::new(), served_by: None });
static CHANGED: Condvar = Condvar::new();

/// Starts probing the socket at this interval.
pub(crate) fn start(socket: &Arc<Socket>, every: Duration) {
    let mut service = SERVICE.lock();
    service.forget(socket);
    service.entries.push(Entry { socket: Arc::downgrade(socket), every, due: Instant::now() + every });
    CHANGED.notify_one();
    let process = Some(std::process::id());
    if service.served_by != process {
        // Without a thread the option has no effect, which rdma-core's manual page allows.
        let started = ferroce_os::thread::spawn("rsocket-alive", serve);
        service.served_by = if started.is_ok() { process } else { None };
    }
}

/// Stops probing the socket.
pub(crate) fn stop(socket: &Arc<Socket>) {
    SERVICE.lock().forget(socket);
    CHANGED.notify_one();
}

impl Service {
    fn forget(&mut self, socket: &Arc<Socket>) {
        self.entries.retain(|entry| !std::ptr::eq(entry.socket.as_ptr(), Arc::as_ptr(socket)));
    }
}

fn serve() {
    let mut service = SERVICE.lock();
    loop {
        let now = Instant::now();
        let mut due = Vec::new();
        for entry in service.entries.iter_mut().filter(|entry| entry.due <= now) {
            entry.due = now + entry.every;
            due.extend(entry.socket.upgrade());
        }
        // The service is unlocked: closing a socket takes both locks in the opposite order.
        MutexGuard::unlocked(&mut service, || due.retain(|socket| socket.keep_alive() == Liveness::Ended));
        due.iter().for_each(|ended| service.forget(ended));
        service.entries.retain(|entry| entry.socket.strong_count() > 0);
        MutexGuard::unlocked(&mut service, || drop(due));
        let Some(next) = service.entries.iter().map(|entry| entry.due).min() else {
            service.served_by = None;
            return;
        };
        CHANGED.wait_until(&mut service, next);
    }
}
