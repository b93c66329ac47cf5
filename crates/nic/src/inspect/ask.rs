//! The client side: finds all NICs of this user and queries them concurrently.

use super::process::{Activity, Process};
use super::question::Question;
use super::{Snapshot, slot_of, socket_path};
use ferroce_shm::registry::{self, RegistryError};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an answer may take. A process that runs answers within milliseconds, on a busy machine in tens of them.
const MAX_WAIT: Duration = Duration::from_millis(300);
/// The time that each NIC still gets when others have used up the time: enough to read an answer that has arrived.
const GRACE: Duration = Duration::from_millis(20);
/// How long the pages of one NIC with many queue pairs may take together.
const PAGES_PATIENCE: Duration = Duration::from_secs(3);
/// Longest accepted answer: far longer than any document.
const MAX_BYTES: usize = 4 << 20;

/// Why a NIC could not be queried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// Its process was stopped by a signal or a debugger.
    #[error("{process} in slot {slot} is stopped and cannot answer")]
    Stopped {
        /// The slot.
        slot: u8,
        /// Number of the process.
        pid: u32,
        /// The process, in words.
        process: String,
    },
    /// Its process ended, but a child that it forked keeps the slot.
    #[error("{process} in slot {slot} has ended, but a child that it forked still holds its device")]
    Orphaned {
        /// The slot.
        slot: u8,
        /// The process, in words.
        process: String,
    },
    /// No answer came in time.
    #[error("{process} in slot {slot} did not answer within {max_wait_ms} ms")]
    Silent {
        /// The slot.
        slot: u8,
        /// The process, in words.
        process: String,
        /// How long the client waited.
        max_wait_ms: u128,
    },
    /// The answer cannot be parsed.
    #[error("{process} in slot {slot} gave an answer that this program cannot read: {why}")]
    Garbled {
        /// The slot.
        slot: u8,
        /// The process, in words.
        process: String,
        /// What is wrong with it.
        why: String,
    },
    /// A system call failed.
    #[error("asking slot {slot}: {source}")]
    System {
        /// The slot.
        slot: u8,
        /// The error.
        source: io::Error,
    },
    /// The registry directory is unusable.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Queries every running NIC of this user and network namespace, in the order of their slots.
pub fn all() -> Vec<Result<Snapshot, InspectError>> {
    all_within(MAX_WAIT)
}

/// Like [`all`], but waits for `max_wait`. Stopped processes are not waited for.
pub fn all_within(max_wait: Duration) -> Vec<Result<Snapshot, InspectError>> {
    match registry::own_directory() {
        Ok(directory) => all_in(&directory, max_wait),
        Err(e) => vec![Err(e.into())],
    }
}

/// Like [`all`], but lists every queue pair, even of NICs whose first answer is too short for all, as far as they answer within a few
/// seconds. Includes the history of the queue pair `history_of`, given by the slot of its NIC and its number.
pub fn whole(history_of: Option<(u8, u32)>) -> Vec<Result<Snapshot, InspectError>> {
    match registry::own_directory() {
        Ok(directory) => whole_in(&directory, MAX_WAIT, history_of),
        Err(e) => vec![Err(e.into())],
    }
}

fn whole_in(
    directory: &Path,
    max_wait: Duration,
    history_of: Option<(u8, u32)>,
) -> Vec<Result<Snapshot, InspectError>> {
    let first = |slot| Question {
        after: 0,
        history_of: history_of.filter(|(of, _)| *of == slot).map_or(0, |(_, qpn)| qpn),
    };
    let mut answers = asked_in(directory, max_wait, first);
    answers.iter_mut().flatten().for_each(|snapshot| add_pages(directory, max_wait, snapshot));
    answers
}

/// Requests the queue pairs that a snapshot lacks, page by page.
fn add_pages(directory: &Path, max_wait: Duration, snapshot: &mut Snapshot) {
    let end = Instant::now() + PAGES_PATIENCE;
    while snapshot.queue_pairs_left_out > 0
        && let Some(last) = snapshot.queue_pairs.last()
        && Instant::now() < end
    {
        let after = last.qpn;
        let page = ask(directory, snapshot.slot, Question { after, history_of: 0 });
        let answer =
            page.and_then(Result::ok).and_then(|asked| asked.answer(directory, Instant::now(), max_wait));
        // A NIC of an older version returns the first page again, and a faulty one may repeat an earlier page.
        let Some(Ok(page)) = answer else { return };
        if page.queue_pairs.is_empty() || page.queue_pairs.iter().any(|qp| qp.qpn <= after) {
            return;
        }
        snapshot.queue_pairs_left_out = page.queue_pairs_left_out;
        snapshot.queue_pairs.extend(page.queue_pairs);
        let cqs = &mut snapshot.objects.completion_queues;
        cqs.extend(page.objects.completion_queues);
        cqs.sort_by_key(|cq| cq.id);
        cqs.dedup_by_key(|cq| cq.id);
    }
}

fn all_in(directory: &Path, max_wait: Duration) -> Vec<Result<Snapshot, InspectError>> {
    asked_in(directory, max_wait, |_| Question::default())
}

fn asked_in(
    directory: &Path,
    max_wait: Duration,
    question: impl Fn(u8) -> Question,
) -> Vec<Result<Snapshot, InspectError>> {
    let start = Instant::now();
    // Send all requests before reading the first answer: the NICs then answer concurrently, within one `max_wait`.
    let questions: Vec<_> =
        slots(directory).into_iter().filter_map(|slot| ask(directory, slot, question(slot))).collect();
    let answer = |asked: Result<PendingRequest, _>| match asked {
        Ok(asked) => asked.answer(directory, start, max_wait),
        Err(e) => Some(Err(e)),
    };
    questions.into_iter().filter_map(answer).collect()
}

fn slots(directory: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut slots: Vec<u8> = entries.filter_map(|e| slot_of(e.file_name().to_str()?)).collect();
    slots.sort_unstable();
    slots
}

/// A NIC with a pending request.
struct PendingRequest {
    slot: u8,
    /// `None` if the listen queue of the NIC is full.
    stream: Option<UnixStream>,
    process: Option<Process>,
}

/// Sends the request to one NIC. `None` if the socket belongs to a dead process.
fn ask(directory: &Path, slot: u8, question: Question) -> Option<Result<PendingRequest, InspectError>> {
    match connect(&socket_path(directory, slot), question) {
        Ok(stream) => {
            let process = Process::behind(&stream);
            Some(Ok(PendingRequest { slot, stream: Some(stream), process }))
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => None,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            Some(Ok(PendingRequest { slot, stream: None, process: None }))
        }
        Err(source) => Some(Err(InspectError::System { slot, source })),
    }
}

/// Connects without waiting for a listener whose queue is full.
fn connect(path: &Path, question: Question) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(name) = question.name() {
        socket.bind(&SockAddr::unix(format!("\0{name}"))?)?;
    }
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

impl PendingRequest {
    /// The answer; `None` if the NIC was closed meanwhile.
    fn answer(
        self,
        directory: &Path,
        start: Instant,
        max_wait: Duration,
    ) -> Option<Result<Snapshot, InspectError>> {
        let slot = self.slot;
        let process = self.process.as_ref().map_or_else(|| "the process".to_owned(), Process::to_string);
        match self.process {
            Some(Process { activity: Activity::Stopped, pid, .. }) => {
                return Some(Err(InspectError::Stopped { slot, pid, process }));
            }
            Some(Process { activity: Activity::Gone, .. }) => {
                return Some(Err(InspectError::Orphaned { slot, process }));
            }
            _ => {}
        }
        let max_wait_ms = max_wait.as_millis();
        let Some(stream) = self.stream else {
            return Some(Err(InspectError::Silent { slot, process, max_wait_ms }));
        };
        let deadline = (start + max_wait).max(Instant::now() + GRACE);
        match read_until_end(stream, deadline) {
            Ok(bytes) if !bytes.is_empty() => {
                let mut read = Snapshot::parse(&bytes, slot);
                if let (Ok(snapshot), Some(seen)) = (&mut read, &self.process) {
                    // In a container the process may have another process ID than here.
                    snapshot.pid = seen.pid;
                }
                Some(read.map_err(|why| InspectError::Garbled { slot, process, why }))
            }
            Err(e) if is_timeout(&e) => Some(Err(InspectError::Silent { slot, process, max_wait_ms })),
            _ if ask(directory, slot, Question::default()).is_none() => None,
            Ok(_) => Some(Err(InspectError::Garbled { slot, process, why: "it is empty".into() })),
            Err(source) => Some(Err(InspectError::System { slot, source })),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Reads to the end of the stream, until `deadline` and at most [`MAX_BYTES`].
fn read_until_end(mut stream: UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    while bytes.len() <= MAX_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("the answer does not end"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn fresh_directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("ferroce-ask-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn nobody_there_and_dead_sockets_are_no_error() {
        let directory = fresh_directory("dead");
        assert!(all_in(&directory, MAX_WAIT).is_empty());
        drop(UnixListener::bind(socket_path(&directory, 3)).unwrap());
        std::fs::write(socket_path(&directory, 4), "a file").unwrap();
        assert!(all_in(&directory, MAX_WAIT).is_empty());
        std::fs::remove_dir_all(directory).unwrap();
        assert!(all_in(Path::new("/nonexistent"), MAX_WAIT).is_empty());
    }

    #[test]
    fn nonsense_empty_and_endless_answers_are_told_apart() {
        let directory = fresh_directory("strange");
        let listen = |slot| UnixListener::bind(socket_path(&directory, slot)).unwrap();
        let (nonsense, empty, endless) = (listen(1), listen(2), listen(3));
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| nonsense.accept().unwrap().0.write_all(b"{}").unwrap());
            scope.spawn(|| drop(empty.accept().unwrap()));
            scope.spawn(|| {
                let (mut stream, _) = endless.accept().unwrap();
                while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
            });
            all_in(&directory, Duration::from_secs(30))
        });
        use InspectError as E;
        let [Err(one), Err(two), Err(three)] = &answers[..] else { panic!("{answers:?}") };
        assert!(matches!(one, E::Garbled { slot: 1, .. }), "{one}");
        assert!(matches!(two, E::Garbled { slot: 2, .. }), "{two}");
        assert!(matches!(three, E::System { slot: 3, .. }), "{three}");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn silence_is_not_waited_for_longer_than_said() {
        let directory = fresh_directory("silent");
        let listener = UnixListener::bind(socket_path(&directory, 1)).unwrap();
        let answers = all_in(&directory, Duration::from_millis(50));
        let [Err(error)] = &answers[..] else { panic!("{answers:?}") };
        assert!(error.to_string().contains("did not answer within 50 ms"), "{error}");
        drop(listener);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_full_queue_is_silence() {
        let directory = fresh_directory("full");
        let listener = UnixListener::bind(socket_path(&directory, 9)).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = connect(&socket_path(&directory, 9), Question::default()) {
            waiting.push(stream);
            assert!(waiting.len() < 100_000, "the kernel's queue has no end");
        }
        let answers = all_in(&directory, MAX_WAIT);
        assert!(matches!(answers[..], [Err(InspectError::Silent { slot: 9, .. })]), "{answers:?}");
        drop(listener);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
