//! Several capture files as one, in the order of time: one process wrote each of them.

use super::{Damage, Frame, Records};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BUFFER_LEN: usize = 1 << 20;
/// Size of the reorder buffer in packets. A packet is recorded when its send call returns, with the time when the call began:
/// the answer may precede it in the files.
const REORDERED: usize = 256;

/// Bytes of a packet that are kept: the longest IP packet and its link-layer header. A record may have 16 MiB, and many are held.
const MAX_HELD_LEN: usize = (64 << 10) + 256;

/// The files of a capture, which are read more than once.
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    bytes: u64,
}

impl Files {
    /// Checks that all of them are regular files, and adds up their lengths.
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
        Ok(Merged {
            sources,
            position,
            held: BinaryHeap::new(),
            read: 0,
            current: Vec::new(),
            spare: Vec::new(),
        })
    }
}

/// Files that are being read.
pub(crate) struct Merged {
    sources: Vec<Source>,
    position: Arc<AtomicU64>,
    held: BinaryHeap<Reverse<Held>>,
    /// Packets read so far. It keeps packets with equal times in order.
    read: u64,
    /// The bytes of the packet that was returned last, and buffers to use again.
    current: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

struct Held {
    order: (u64, u64),
    about: Frame<'static>,
    bytes: Vec<u8>,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.order == other.order
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

struct Source {
    path: PathBuf,
    records: Records<Counted>,
    head: Head,
    /// Whether `head` is the next packet of the file.
    is_read: bool,
    damage: Option<Damage>,
}

/// A copy of the next packet of a file. The file is read further only once this packet was the earliest of all files.
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
        while self.held.len() < REORDERED
            && let Some(held) = self.read_earliest()
        {
            self.held.push(Reverse(held));
        }
        let Reverse(next) = self.held.pop()?;
        self.spare.push(std::mem::replace(&mut self.current, next.bytes));
        Some(Frame { bytes: &self.current, ..next.about })
    }

    /// The earliest of the next packets of all files.
    fn read_earliest(&mut self) -> Option<Held> {
        self.sources.iter_mut().for_each(Source::read_ahead);
        let with_packet = self.sources.iter_mut().filter(|source| source.head.about.is_some());
        let source = with_packet.min_by_key(|source| source.head.about.map(|frame| frame.time_ns))?;
        source.is_read = false;
        let about = source.head.about.take()?;
        let bytes = std::mem::replace(&mut source.head.bytes, self.spare.pop().unwrap_or_default());
        self.read += 1;
        Some(Held { order: (about.time_ns, self.read), about, bytes })
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
                self.head.bytes.extend_from_slice(&frame.bytes[..frame.bytes.len().min(MAX_HELD_LEN)]);
                self.head.about = Some(Frame { bytes: &[], ..frame });
            }
            Ok(None) => {}
            Err(damage) => self.damage = Some(damage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with a packet of one byte at each of these microseconds.
    fn pcap(name: &str, times: &[u32]) -> PathBuf {
        let mut file: Vec<u8> = [0xa1b2_c3d4, 0, 0, 0, 0, 1].map(u32::to_le_bytes).concat();
        for &time in times {
            file.extend([0, time, 1, 1].map(u32::to_le_bytes).concat());
            file.push(time as u8);
        }
        let path = std::env::temp_dir().join(format!("ferroce-merge-{name}-{}", std::process::id()));
        std::fs::write(&path, file).expect("a file of ours");
        path
    }

    #[test]
    fn a_packet_longer_than_any_of_ip_is_cut() {
        let path = pcap("long", &[]);
        let mut file = std::fs::read(&path).expect("our own file");
        file.extend([0, 1, 1 << 20, 1 << 20].map(u32::to_le_bytes).concat());
        file.resize(file.len() + (1 << 20), 7);
        std::fs::write(&path, file).expect("our own file");
        let mut merged = Files::new(vec![path.clone()]).expect("a file").open().expect("a capture");
        assert_eq!(merged.next().map(|frame| frame.bytes.len()), Some(MAX_HELD_LEN));
        std::fs::remove_file(path).expect("our own file");
    }

    #[test]
    fn packets_of_all_files_come_in_the_order_of_time() {
        let paths = vec![pcap("a", &[1, 5, 3, 9]), pcap("b", &[2, 4, 4]), pcap("c", &[])];
        let mut merged = Files::new(paths.clone()).expect("files").open().expect("captures");
        let mut found = Vec::new();
        while let Some(frame) = merged.next() {
            found.push((frame.time_ns / 1000, frame.bytes.to_vec()));
        }
        let expected: Vec<_> = [1, 2, 3, 4, 4, 5, 9].map(|time| (time, vec![time as u8])).into();
        assert_eq!(found, expected);
        assert_eq!(merged.damaged().count(), 0);
        paths.iter().for_each(|path| std::fs::remove_file(path).expect("our own file"));
    }
}
