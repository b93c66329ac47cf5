//! Several capture files as one, in the order of time: one process wrote each of them.

use super::{Damage, Frame, Records};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BUFFER_LEN: usize = 1 << 20;

/// The files of a capture, which are read more than once.
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    bytes: u64,
}

impl Files {
    /// Notes which files they are.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Result<Files, (PathBuf, std::io::Error)> {
        let mut bytes = 0;
        for path in &paths {
            let about = std::fs::metadata(path).map_err(|error| (path.clone(), error))?;
            if !about.is_file() {
                let error = std::io::Error::other("it is no regular file, and must be read twice");
                return Err((path.clone(), error));
            }
            bytes += about.len();
        }
        Ok(Files { paths, bytes })
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts to read them.
    pub(crate) fn open(&self) -> Result<Merged, (PathBuf, Damage)> {
        let position = Arc::new(AtomicU64::new(0));
        let open = |path: &PathBuf| {
            let file = File::open(path).map_err(|error| (path.clone(), Damage::Io(error)))?;
            let counted = Counted {
                source: BufReader::with_capacity(BUFFER_LEN, file),
                position: Arc::clone(&position),
            };
            Records::open(counted)
                .map(|records| Source {
                    path: path.clone(),
                    records,
                    head: Head::default(),
                    is_read: false,
                    damage: None,
                })
                .map_err(|damage| (path.clone(), damage))
        };
        let sources = self.paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Merged { sources, position })
    }
}

/// Files that are being read.
pub(crate) struct Merged {
    sources: Vec<Source>,
    position: Arc<AtomicU64>,
}

struct Source {
    path: PathBuf,
    records: Records<Counted>,
    head: Head,
    /// Whether `head` is the next packet of the file.
    is_read: bool,
    damage: Option<Damage>,
}

/// The next packet of a file, copied from it, since a file is read on only when its packet is the earliest.
#[derive(Default)]
struct Head {
    bytes: Vec<u8>,
    about: Option<Frame<'static>>,
}

struct Counted {
    source: BufReader<File>,
    position: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.position.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

impl Merged {
    /// The earliest packet that was not returned yet.
    pub(crate) fn next(&mut self) -> Option<Frame<'_>> {
        self.sources.iter_mut().for_each(Source::read_ahead);
        let with_packet = self.sources.iter_mut().filter(|source| source.head.about.is_some());
        let source = with_packet.min_by_key(|source| source.head.about.map(|frame| frame.time_ns))?;
        source.is_read = false;
        let about = source.head.about.take()?;
        Some(Frame { bytes: &source.head.bytes, ..about })
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Relaxed)
    }

    /// The files that could not be read to their ends, and why.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (&Path, &Damage)> {
        self.sources.iter().filter_map(|source| Some((source.path.as_path(), source.damage.as_ref()?)))
    }
}

impl Source {
    fn read_ahead(&mut self) {
        if self.is_read || self.damage.is_some() {
            return;
        }
        self.is_read = true;
        match self.records.next() {
            Ok(Some(frame)) => {
                self.head.bytes.clear();
                self.head.bytes.extend_from_slice(frame.bytes);
                self.head.about = Some(Frame { bytes: &[], ..frame });
            }
            Ok(None) => {}
            Err(damage) => self.damage = Some(damage),
        }
    }
}
