//! The mappings of co-located processes, opened as files, so that the program can use their pages in place.

use crate::error::Error;
use crate::faults::Source;
use crate::map::Mapping;
use crate::meet::{Hosts, Meeting};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Opens the mappings of co-located processes. Skips one that cannot be opened or mapped: its pages are fetched like
/// those of other hosts. All processes must call it, or none.
pub(super) fn open(
    rank: u32,
    hosts: &Hosts,
    own: &File,
    len: usize,
    meeting: &Meeting,
) -> Result<BTreeMap<u32, Source>, Error> {
    let lines = meeting.gather(&format!("mapping {} {}", std::process::id(), own.as_raw_fd()))?;
    let others = hosts.colocated(rank).filter(|other| *other != rank);
    Ok(others.filter_map(|other| Some((other, source(&lines[other as usize], len)?))).collect())
}

fn source(line: &str, len: usize) -> Option<Source> {
    let mut words = line.strip_prefix("mapping ")?.split(' ');
    let (process, descriptor): (u32, u32) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let place = format!("/proc/{process}/fd/{descriptor}");
    let file = OpenOptions::new().read(true).write(true).open(place).ok()?;
    // Any other file is no mapping of this job.
    if file.metadata().ok()?.len() != len as u64 {
        return None;
    }
    let mapping = Arc::new(Mapping::anywhere(&file, 0, len).ok()?);
    Some(Source { file, mapping })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::anonymous_file;

    #[test]
    fn only_a_file_of_the_right_length_is_mapped() {
        let file = anonymous_file(c"test", 8192).expect("memory");
        let line = format!("mapping {} {}", std::process::id(), file.as_raw_fd());
        let found = source(&line, 8192).expect("our own");
        Mapping::anywhere(&file, 0, 8192)
            .expect("a mapping")
            .word(4096)
            .store(7, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(found.mapping.word(4096).load(std::sync::atomic::Ordering::Relaxed), 7);
        assert!(source(&line, 4096).is_none());
        assert!(source("mapping 1 99999", 8192).is_none() && source("done", 8192).is_none());
    }
}
