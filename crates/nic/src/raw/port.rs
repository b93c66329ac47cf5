//! Who sends and receives through the packet socket, and the thread that receives.

use super::flow::{Destination, Flow, FlowRule, Installed, steer};
use super::frame::Frame;
use super::socket::PacketSocket;
use crate::error::Error;
use crate::gids::GidEntry;
use ferroce_os::eventfd::EventFd;
use ferroce_os::fork::Generation;
use ferroce_os::lock::{Mutex, RwLock};
use ferroce_os::log;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Bytes of the longest frame, with room for its tags.
const FRAME_ROOM: usize = (1 << 16) + 64;

/// What the receiving thread and the callers share.
struct Wire {
    socket: PacketSocket,
    is_loopback: bool,
    /// In the order of their priorities.
    rules: RwLock<Vec<Arc<Installed>>>,
    stop: AtomicBool,
    bell: EventFd,
}

/// The port's interface, as raw queue pairs see it. Made with the first of them, gone with the last.
pub(crate) struct RawPort {
    wire: Arc<Wire>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ids: AtomicU64,
    born: Generation,
}

impl RawPort {
    pub(crate) fn open(entry: &GidEntry) -> Result<RawPort, Error> {
        let socket = PacketSocket::open(entry.if_index).map_err(Error::system("opening a packet socket"))?;
        let wire = Wire {
            is_loopback: socket.is_loopback(),
            socket,
            rules: RwLock::default(),
            stop: AtomicBool::new(false),
            bell: EventFd::new().map_err(Error::system("creating an event descriptor"))?,
        };
        let (thread, ids) = (Mutex::new(None), AtomicU64::new(1));
        Ok(RawPort { wire: Arc::new(wire), thread, ids, born: Generation::current() })
    }

    /// Sends a frame. What the interface cannot take now is lost, as on any wire; a frame it could never take is an
    /// error.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.wire.socket.send(bytes) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)) => {
                return Err(error);
            }
            Err(error) => log::drop(format_args!("a raw packet was not sent: {error}")),
            Ok(()) => {}
        }
        if !self.wire.is_loopback {
            self.wire.arrive(bytes);
        }
        Ok(())
    }

    pub(super) fn add_rule(self: &Arc<Self>, rule: FlowRule, to: Destination) -> Result<Flow, Error> {
        self.listen()?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut rules = self.wire.rules.write();
        let at = rules.partition_point(|other| other.rule.priority <= rule.priority);
        rules.insert(at, Arc::new(Installed { id, rule, to }));
        Ok(Flow { id, port: self.clone() })
    }

    pub(super) fn remove_rule(&self, id: u64) {
        self.wire.rules.write().retain(|installed| installed.id != id);
    }

    /// Starts to receive, once.
    fn listen(&self) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        self.wire.socket.listen().map_err(Error::system("listening on a packet socket"))?;
        let wire = self.wire.clone();
        let started = ferroce_os::thread::spawn("ferroce-raw", move || wire.run());
        *thread = Some(started.map_err(Error::system("starting the thread for raw packets"))?);
        Ok(())
    }
}

impl Drop for RawPort {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get_mut().take() else { return };
        if !self.born.is_current() {
            // In a forked child the thread does not exist.
            return std::mem::forget(thread);
        }
        self.wire.stop.store(true, Ordering::SeqCst);
        self.wire.bell.add();
        let _ = thread.join();
    }
}

impl Wire {
    fn run(&self) {
        let mut buffer = vec![0; FRAME_ROOM];
        while !self.stop.load(Ordering::SeqCst) {
            self.socket.wait(self.bell.as_raw_fd());
            while let Some(received) = self.socket.receive(&mut buffer) {
                // On the loopback interface every frame passes twice: going out and coming in.
                if !(received.is_outgoing && self.is_loopback) {
                    self.arrive(&buffer[received.frame]);
                }
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }

    fn arrive(&self, bytes: &[u8]) {
        let Some(frame) = Frame::parse(bytes) else { return };
        let rules = self.rules.read();
        steer(&rules, &frame, bytes);
    }
}
