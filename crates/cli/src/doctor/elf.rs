//! The facts about a program file that the loader does not report: which loader, and which processor.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

/// An ELF file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// 1: 32 bits, 2: 64 bits.
    class: u8,
    machine: u16,
    /// The loader that it names.
    pub(super) loader: Option<PathBuf>,
    /// Whether it has a dynamic section, so that a loader must load it.
    pub(super) is_dynamic: bool,
}

impl Elf {
    /// Parses the headers as little-endian numbers. `None` if this is no ELF file, or if a header lies outside of it.
    pub(super) fn parse(file: &[u8]) -> Option<Elf> {
        if file.get(..4)? != b"\x7fELF" {
            return None;
        }
        let class = *file.get(4)?;
        let machine = number(file, 18, 2)? as u16;
        let mut elf = Elf { class, machine, loader: None, is_dynamic: false };
        // Offsets in the ELF header: the table of program headers, the size and number of its entries. Offsets in an entry: where the
        // segment begins in the file, and its size there. Then the size of such a number.
        let (table, size, count, start, length, word) =
            if class == 2 { (32, 54, 56, 8, 32, 8) } else { (28, 42, 44, 4, 16, 4) };
        let (table, size, count) =
            (number(file, table, word)?, number(file, size, 2)?, number(file, count, 2)?);
        for at in 0..count {
            let header = table.checked_add(at * size)? as usize;
            match number(file, header, 4)? as u32 {
                PT_DYNAMIC => elf.is_dynamic = true,
                PT_INTERP => {
                    let from = number(file, header.checked_add(start)?, word)? as usize;
                    let len = number(file, header.checked_add(length)?, word)? as usize;
                    let name = file.get(from..from.checked_add(len)?)?;
                    elf.loader = Some(OsStr::from_bytes(name.strip_suffix(b"\0").unwrap_or(name)).into());
                }
                _ => {}
            }
        }
        Some(elf)
    }

    /// Whether libraries of `other` can be loaded into it.
    pub(super) fn fits(&self, other: &Elf) -> bool {
        (self.class, self.machine) == (other.class, other.machine)
    }
}

fn number(file: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(file.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_file_is_understood() {
        let file = std::fs::read("/proc/self/exe").expect("Linux");
        let own = Elf::parse(&file).expect("an ELF file");
        assert!(own.is_dynamic && own.fits(&own), "{own:?}");
        assert!(own.loader.is_some_and(|loader| loader.exists()));
    }

    #[test]
    fn damaged_files_are_no_elf_files() {
        let file = std::fs::read("/proc/self/exe").expect("Linux");
        for len in [0, 3, 4, 19, 33, 63, 64, 100] {
            assert_eq!(Elf::parse(&file[..len]), None, "{len} bytes");
        }
        let mut far = file[..4096].to_vec();
        far[32..40].fill(0xff);
        assert_eq!(Elf::parse(&far), None);
        assert_eq!(Elf::parse(b"#!/bin/sh\n"), None);
    }
}
