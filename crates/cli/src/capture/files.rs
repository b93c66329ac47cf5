//! Which capture files a run wrote: the named one, and one for each further process.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Capture files with their length and modification time, which distinguish the files of the run from older ones.
pub(super) type Snapshot = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// The files that are there now.
pub(super) fn snapshot(output: &Path) -> Snapshot {
    let folder = output.parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path == output || is_sibling(path, output))
        .filter_map(|path| {
            let about = path.metadata().ok().filter(|about| about.is_file())?;
            Some((path, (about.len(), about.modified().ok())))
        })
        .collect()
}

/// The files that are new or different since `before`; the named one first.
pub(super) fn changed(output: &Path, before: &Snapshot) -> Vec<PathBuf> {
    let now = snapshot(output);
    let mut paths: Vec<PathBuf> = now
        .into_iter()
        .filter(|(path, about)| before.get(path) != Some(about))
        .map(|(path, _)| path)
        .collect();
    paths.sort_by_key(|path| path != output);
    paths
}

/// Whether `path` is `x.<pid>.pcapng` for the output `x.pcapng`.
fn is_sibling(path: &Path, output: &Path) -> bool {
    let (Some(stem), Some(candidate)) = (output.file_stem(), path.file_stem()) else { return false };
    let Some(pid) = Path::new(candidate).extension().and_then(OsStr::to_str) else { return false };
    path.extension() == output.extension()
        && Path::new(candidate).file_stem() == Some(stem)
        && !pid.is_empty()
        && pid.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_carry_a_process_id() {
        let output = Path::new("/tmp/x.pcapng");
        for (name, expected) in [
            ("/tmp/x.123.pcapng", true),
            ("/tmp/x.pcapng", false),
            ("/tmp/x.12a.pcapng", false),
            ("/tmp/y.123.pcapng", false),
            ("/tmp/x.123.pcap", false),
            ("/tmp/x.y.123.pcapng", false),
            ("/tmp/123.pcapng", false),
        ] {
            assert_eq!(is_sibling(Path::new(name), output), expected, "{name}");
        }
    }
}
