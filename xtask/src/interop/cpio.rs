//! The archive that a kernel unpacks as its first file system ("newc": the header is text, names and data are padded to
//! four bytes).

use std::io::{self, Write};

/// Types of files, as in `st_mode`.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CONSOLE: u32 = 0o020_600;

/// Writes one archive.
pub(crate) struct Archive<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 1 }
    }

    pub(crate) fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, FOLDER, (0, 0), &[])
    }

    /// A file. All files are executable: a guest for one test needs no finer permissions.
    pub(crate) fn file(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        self.entry(name, PROGRAM, (0, 0), data)
    }

    pub(crate) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, LINK, (0, 0), target.as_bytes())
    }

    /// The kernel opens it for the first process, before a file system with devices can be mounted.
    pub(crate) fn console(&mut self) -> io::Result<()> {
        self.entry("dev/console", CONSOLE, (5, 1), &[])
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let size = u32::try_from(data.len()).map_err(|_| io::Error::other(format!("{name} is too large")))?;
        let name_size = name.len() as u32 + 1;
        let (owner, group, links, time) = (0, 0, 1, 0);
        let fields =
            [self.inode, mode, owner, group, links, time, size, 0, 0, device.0, device.1, name_size, 0];
        self.inode += 1;
        let mut header = String::from("070701");
        fields.iter().for_each(|field| header.push_str(&format!("{field:08X}")));
        self.out.write_all(header.as_bytes())?;
        self.padded(format!("{name}\0").as_bytes(), header.len())?;
        self.padded(data, 0)
    }

    fn padded(&mut self, bytes: &[u8], before: usize) -> io::Result<()> {
        let pad = (before + bytes.len()).wrapping_neg() % 4;
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 3][..pad])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_at_multiples_of_four() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("etc").unwrap();
        archive.file("etc/word", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let starts: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, w)| *w == b"070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|at| at % 4 == 0));
        assert_eq!(bytes.len() % 4, 0);
    }
}
