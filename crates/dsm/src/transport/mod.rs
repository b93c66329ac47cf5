//! How processes access each other's mappings: one-sided operations, over RDMA or emulated by messages.
//!
//! | file | how |
//! |---|---|
//! | `rdma` | READ, WRITE and FETCH_ADD of queue pairs: nothing runs at the other side |
//! | `messages` | requests and replies, which a thread at the other side serves; over UDP sockets or SEND and RECV |

mod messages;
mod rdma;

pub(crate) use messages::Messages;
pub(crate) use rdma::Rdma;

use crate::error::Error;
use crate::map::Mapping;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An operation on another process' mapping. Offsets are into its mapping or ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Copies their bytes to ours.
    Read { remote: usize, local: usize, len: usize },
    /// Copies our bytes to theirs. Ours must not change until the operation is done.
    Write { remote: usize, local: usize, len: usize },
    /// Writes eight bytes atomically.
    WriteWord { remote: usize, value: u64 },
    /// Writes eight bytes atomically, and wakes threads that sleep for such a word.
    WriteAndWake { remote: usize, value: u64 },
    /// Adds to eight bytes of theirs atomically; ours get the old value.
    FetchAdd { remote: usize, add: u64, old: usize },
}

/// Executes operations on the memory of other processes, in order for each process.
pub(crate) trait Transport: Send + Sync {
    /// Executes operations and returns when all are done. Calls `meanwhile` while they are in flight.
    fn execute(&self, ops: &[(u32, Op)], meanwhile: &mut dyn FnMut()) -> Result<(), Error>;
    /// Starts writes that [`Transport::finish`] waits for. The default waits for them itself.
    fn begin(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        self.execute(ops, &mut || ())
    }
    /// Waits for all writes to these processes that were begun.
    fn finish(&self, _to: &[u32]) -> Result<(), Error> {
        Ok(())
    }
    /// Starts writes, and does not wait for them.
    fn post(&self, ops: &[(u32, Op)]) -> Result<(), Error>;
    /// Makes progress on operations, ours and those of other processes. Threads that wait call it.
    fn progress(&self) -> Result<(), Error>;
    /// Sleeps until a peer wakes us, at most for `most`, and not at all if `ready`. The caller checks `ready` again
    /// afterwards.
    fn sleep(&self, most: Duration, ready: &mut dyn FnMut() -> bool) -> Result<(), Error>;
}

/// The memory of all processes, including our own.
pub(crate) struct Peers {
    rank: u32,
    mapping: Arc<Mapping>,
    /// None in a job of one process.
    transport: Option<Box<dyn Transport>>,
    /// Processes with writes that were begun and not waited for.
    begun: Mutex<Vec<u32>>,
}

impl Peers {
    pub(crate) fn new(rank: u32, mapping: Arc<Mapping>, transport: Option<Box<dyn Transport>>) -> Self {
        Self { rank, mapping, transport, begun: Mutex::default() }
    }

    pub(crate) fn execute(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        self.split(ops, |transport, ops| transport.execute(ops, &mut || ()))
    }

    /// Executes operations; calls `meanwhile` while any of them is in flight.
    pub(crate) fn execute_while(&self, ops: &[(u32, Op)], meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
        self.split(ops, |transport, ops| transport.execute(ops, meanwhile))
    }

    /// Starts writes whose source must not change before [`Peers::finish`].
    pub(crate) fn begin(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        let mut begun = self.begun.lock();
        begun.extend(ops.iter().map(|(to, _)| *to));
        begun.sort_unstable();
        begun.dedup();
        self.split(ops, |transport, ops| transport.begin(ops))
    }

    /// Whether all writes that were begun and not waited for go to this process. What is sent there next arrives after them.
    pub(crate) fn began_only_at(&self, to: u32) -> bool {
        self.begun.lock().iter().all(|begun| *begun == to)
    }

    /// Waits for the writes that were begun.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        let mut begun = self.begun.lock();
        match &self.transport {
            Some(transport) if !begun.is_empty() => transport.finish(&begun)?,
            _ => {}
        }
        begun.clear();
        Ok(())
    }

    pub(crate) fn post(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
        self.split(ops, |transport, ops| transport.post(ops))
    }

    pub(crate) fn progress(&self) -> Result<(), Error> {
        self.transport.as_ref().map_or(Ok(()), |transport| transport.progress())
    }

    pub(crate) fn sleep(&self, most: Duration, ready: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        match &self.transport {
            Some(transport) => transport.sleep(most, ready),
            None => {
                std::thread::sleep(most.min(Duration::from_millis(1)));
                Ok(())
            }
        }
    }

    fn split(
        &self,
        ops: &[(u32, Op)],
        mut send: impl FnMut(&dyn Transport, &[(u32, Op)]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(transport) =
            self.transport.as_deref().filter(|_| ops.iter().any(|(to, _)| *to != self.rank))
        else {
            ops.iter().for_each(|(_, op)| perform(&self.mapping, *op));
            return Ok(());
        };
        if ops.iter().all(|(to, _)| *to != self.rank) {
            return send(transport, ops);
        }
        let (ours, theirs): (Vec<_>, Vec<_>) = ops.iter().partition(|(to, _)| *to == self.rank);
        ours.iter().for_each(|(_, op)| perform(&self.mapping, *op));
        send(transport, &theirs)
    }
}

/// How long to poll before other threads of this core may run. A reply within this time needs no other thread of this core.
const EAGER: Duration = Duration::from_micros(20);

/// Polls until `ready`, for at most `most`. Returns whether it is ready. After a while other threads of this core may run
/// between two polls: where cores are scarce, one of them may be the thread that answers.
pub(crate) fn poll_until(
    most: Duration,
    mut ready: impl FnMut() -> bool,
    mut poll: impl FnMut() -> Result<(), Error>,
) -> Result<bool, Error> {
    let start = Instant::now();
    while !ready() {
        let waited = start.elapsed();
        if waited >= most {
            return Ok(false);
        }
        poll()?;
        if waited >= EAGER {
            std::thread::yield_now();
        }
    }
    Ok(true)
}

/// Executes an operation on our own mapping. It is atomic with remote ones, which use the same instructions.
fn perform(mapping: &Mapping, op: Op) {
    match op {
        Op::Read { remote, local, len } => mapping.copy_within(remote, local, len),
        Op::Write { remote, local, len } => mapping.copy_within(local, remote, len),
        Op::WriteWord { remote, value } | Op::WriteAndWake { remote, value } => {
            mapping.long(remote).store(value, Ordering::Release)
        }
        Op::FetchAdd { remote, add, old } => {
            let before = mapping.long(remote).fetch_add(add, Ordering::SeqCst);
            mapping.long(old).store(before, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::anonymous_file;

    /// Records the receivers of begun writes, and those that were waited for.
    #[derive(Default)]
    struct Recorder(Arc<Mutex<Vec<Call>>>);
    type Call = (&'static str, Vec<u32>);

    impl Transport for Recorder {
        fn execute(&self, _ops: &[(u32, Op)], _meanwhile: &mut dyn FnMut()) -> Result<(), Error> {
            Ok(())
        }
        fn begin(&self, ops: &[(u32, Op)]) -> Result<(), Error> {
            self.0.lock().push(("begin", ops.iter().map(|(to, _)| *to).collect()));
            Ok(())
        }
        fn finish(&self, to: &[u32]) -> Result<(), Error> {
            self.0.lock().push(("finish", to.to_vec()));
            Ok(())
        }
        fn post(&self, _ops: &[(u32, Op)]) -> Result<(), Error> {
            Ok(())
        }
        fn progress(&self) -> Result<(), Error> {
            Ok(())
        }
        fn sleep(&self, _most: Duration, _ready: &mut dyn FnMut() -> bool) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn writes_that_were_begun_are_waited_for_once() {
        let file = anonymous_file(c"test", 4096).expect("memory");
        let mapping = Arc::new(Mapping::anywhere(&file, 0, 4096).expect("a mapping"));
        let recorder = Recorder::default();
        let calls = recorder.0.clone();
        let peers = Peers::new(0, mapping, Some(Box::new(recorder)));
        let write = Op::WriteWord { remote: 0, value: 1 };
        peers.finish().expect("nothing to wait for");
        peers.begin(&[(2, write), (1, write), (2, write)]).expect("begun");
        assert!(!peers.began_only_at(2));
        peers.finish().expect("done");
        peers.finish().expect("nothing to wait for");
        peers.begin(&[(2, write)]).expect("begun");
        assert!(peers.began_only_at(2) && !peers.began_only_at(1));
        let expected = [("begin", vec![2, 1, 2]), ("finish", vec![1, 2]), ("begin", vec![2])];
        assert_eq!(*calls.lock(), expected);
    }
}
