//! The mappings of this process, as the kernel reports them.
//!
//! Linux 6.11 and later can report the mapping at one address (`PROCMAP_QUERY`). On older kernels the whole list must be read,
//! which takes long in a process with many mappings. Both give the same result.

use std::fs::File;
use std::io::{Error, Read, Result};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) pages: Range<usize>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) shared: bool,
    /// Offset of the mapping in its file; meaningless if there is no file.
    pub(crate) offset: u64,
    /// 0 if there is no file.
    pub(crate) inode: u64,
    /// The file's device, as `stat` writes it.
    pub(crate) device: u64,
    pub(crate) origin: Origin,
}

/// The kind of the mapped memory, derived from the name of the mapping. The name of a file is trusted only together with its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Memory without a file.
    Memory,
    /// Special memory of the kernel or the stack: `[stack]`, `[vvar]`, `[vdso]`.
    Special,
    /// Anonymous private huge pages (`MAP_HUGETLB`). The kernel reports a file for them.
    HugeMemory,
    /// A memfd of the program.
    Memfd,
    /// A memfd into which registered memory was moved. It is removed with the registration.
    MemfdPages,
    /// Anonymous shared memory. The kernel reports `/dev/zero` as its file.
    SharedMemory,
    /// A System V segment; the inode number is its ID.
    SystemV,
    /// Any other file.
    File,
}

impl Origin {
    fn of_file(name: &[u8]) -> Origin {
        match name {
            b"/anon_hugepage (deleted)" => Origin::HugeMemory,
            b"/dev/zero (deleted)" => Origin::SharedMemory,
            b"/memfd:ferroce (deleted)" => Origin::MemfdPages,
            _ if name.starts_with(b"/memfd:") => Origin::Memfd,
            _ if name.starts_with(b"/SYSV") => Origin::SystemV,
            _ => Origin::File,
        }
    }

    /// Names that the kernel, or `prctl`, gives to ordinary memory.
    fn of_memory(name: &[u8]) -> Origin {
        match name {
            b"" | b"[heap]" => Origin::Memory,
            _ if name.starts_with(b"[anon:") => Origin::Memory,
            _ => Origin::Special,
        }
    }

    /// Only files have a path. The first System V segment of a machine has inode 0, like memory without a file.
    fn new(inode: u64, name: &[u8]) -> Origin {
        if inode == 0 && !name.starts_with(b"/") { Origin::of_memory(name) } else { Origin::of_file(name) }
    }
}

impl Vma {
    /// Memory of this process alone: private, without a file, for data.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_private_data() && self.inode == 0 && self.origin == Origin::Memory
    }

    /// Private huge pages for data. The kernel reports a file for them.
    pub(crate) fn is_huge(&self) -> bool {
        self.is_private_data() && self.origin == Origin::HugeMemory
    }

    fn is_private_data(&self) -> bool {
        self.readable && self.writable && !self.executable && !self.shared
    }
}

/// The mappings that have a page in `range`, in order.
pub(crate) fn mappings(range: &Range<usize>) -> Result<Vec<Vma>> {
    let mut file = File::open("/proc/self/maps")?;
    match ask(&file, range) {
        // Errors of a kernel without this `ioctl`, and of sandboxes.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::EPERM)) => {
            list(&mut file, range)
        }
        answer => answer,
    }
}

/// Whether `found` covers `range` without a gap.
pub(crate) fn covers(found: &[Vma], range: &Range<usize>) -> bool {
    let end = found.iter().fold(range.start, |reached, mapping| {
        if mapping.pages.start <= reached { reached.max(mapping.pages.end) } else { reached }
    });
    end >= range.end
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// Longer than any name that `Origin` recognises: names of memory have up to 80 characters, those of memfds up to 267.
const NAME_LEN: usize = 512;

fn ask(file: &File, range: &Range<usize>) -> Result<Vec<Vma>> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(mapping) = ask_one(file, at)?.filter(|mapping| mapping.pages.start < range.end) else {
            break;
        };
        at = mapping.pages.end;
        found.push(mapping);
    }
    Ok(found)
}

/// The mapping at `addr`, or the next one above.
fn ask_one(file: &File, addr: usize) -> Result<Option<Vma>> {
    let mut name = [0u8; NAME_LEN];
    let answer = match send(file, addr, &mut name) {
        // Only a path of a file is that long.
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => send(file, addr, &mut [])?,
        answer => answer?,
    };
    let Some(query) = answer else { return Ok(None) };
    let len = (query.vma_name_size as usize).saturating_sub(1).min(NAME_LEN);
    Ok(Some(Vma {
        pages: query.vma_start as usize..query.vma_end as usize,
        readable: query.vma_flags & READABLE != 0,
        writable: query.vma_flags & WRITABLE != 0,
        executable: query.vma_flags & EXECUTABLE != 0,
        shared: query.vma_flags & SHARED != 0,
        offset: query.vma_offset,
        inode: query.inode,
        device: libc::makedev(query.dev_major, query.dev_minor),
        origin: Origin::new(query.inode, &name[..len]),
    }))
}

fn send(file: &File, addr: usize, name: &mut [u8]) -> Result<Option<Query>> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        query_flags: COVERING_OR_NEXT,
        query_addr: addr as u64,
        vma_name_size: name.len() as u32,
        vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
        ..Query::default()
    };
    // SAFETY: the structure contains its own size and the length of the name's buffer; the call writes only to these two objects.
    match unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY, &mut query) } {
        0 => Ok(Some(query)),
        _ => match Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            error => Err(error),
        },
    }
}

fn list(file: &mut File, range: &Range<usize>) -> Result<Vec<Vma>> {
    // Names of files need not be UTF-8.
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let lines = text.split(|&byte| byte == b'\n').filter_map(parse);
    Ok(lines.filter(|m| m.pages.start < range.end && m.pages.end > range.start).collect())
}

/// `7f01c000-7f01d000 rw-p 00000000 00:00 0      [heap]`
fn parse(line: &[u8]) -> Option<Vma> {
    let mut words = line.splitn(6, |&byte| byte == b' ').map(str::from_utf8);
    let mut word = || words.next()?.ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = word()?.split_once('-')?;
    let rights = word()?.as_bytes();
    let offset = hex(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let name = line.splitn(6, |&byte| byte == b' ').nth(5).unwrap_or_default().trim_ascii();
    Some(Vma {
        pages: hex(start)? as usize..hex(end)? as usize,
        readable: rights.first() == Some(&b'r'),
        writable: rights.get(1) == Some(&b'w'),
        executable: rights.get(2) == Some(&b'x'),
        shared: rights.get(3) == Some(&b's'),
        offset,
        inode,
        device: libc::makedev(hex(major)? as u32, hex(minor)? as u32),
        origin: Origin::new(inode, name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Range<usize> = 0..usize::MAX;

    fn at(found: &[Vma], addr: usize) -> &Vma {
        found.iter().find(|mapping| mapping.pages.contains(&addr)).expect("mapped")
    }

    #[test]
    fn lines_are_understood() {
        let heap = parse(b"55d0-55f1 rw-p 00000000 00:00 0                          [heap]").expect("a line");
        assert!(heap.is_plain() && heap.pages == (0x55d0..0x55f1));
        assert!(parse(b"7f00-7f01 rw-p 00000000 00:00 0 ").expect("a line").is_plain());
        assert!(
            parse(b"7f00-7f01 rw-p 00000000 00:00 0    [anon: glibc: malloc]").expect("a line").is_plain()
        );
        let refused: [&[u8]; 7] = [
            b"7f00-7f01 r--p 00000000 00:00 0 ",
            b"7f00-7f01 rwxp 00000000 00:00 0 ",
            b"7f00-7f01 rw-s 00000000 00:00 0 ",
            b"7f00-7f01 rw-p 00000000 08:01 12   /tmp/a name [heap]",
            b"7f00-7f01 rw-p 00000000 08:01 12   /tmp/\xff",
            b"7f00-7f01 rw-p 00000000 00:00 0    [stack]",
            b"7f00-7f01 rw-p 00000000 00:00 0    [vvar]",
        ];
        for line in refused {
            let mapping = parse(line).expect("a line");
            assert!(!mapping.is_plain(), "{mapping:?}");
        }
        let file = parse(b"7f00-7f01 r--p 0001f000 08:02 12   /tmp/x").expect("a line");
        assert_eq!((file.offset, file.inode, file.device), (0x1f000, 12, libc::makedev(8, 2)));
        let origin = |line: &[u8]| parse(line).expect("a line").origin;
        assert_eq!(origin(b"7f00-7f01 rw-s 00000000 00:01 9   /memfd:mine (deleted)"), Origin::Memfd);
        assert_eq!(origin(b"7f00-7f01 rw-s 00000000 00:01 9   /memfd:ferroce (deleted)"), Origin::MemfdPages);
        assert_eq!(origin(b"7f00-7f01 rw-s 00000000 00:01 9   /SYSV0000002a (deleted)"), Origin::SystemV);
        assert_eq!(origin(b"7f00-7f01 rw-s 00000000 00:01 0   /SYSV00000000 (deleted)"), Origin::SystemV);
        assert_eq!(origin(b"7f00-7f01 rw-s 00000000 00:01 9   /dev/zero (deleted)"), Origin::SharedMemory);
        let huge = parse(b"7f00-7f01 rw-p 00000000 00:11 9   /anon_hugepage (deleted)").expect("a line");
        assert!(huge.is_huge() && !huge.is_plain());
        for line in ["", "7f00", "7f00-7f01 rw-p", "x-y rw-p 0 0:0 0 ", "7f00-7f01 rw-p 0 0 0 "] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn both_ways_say_the_same() {
        // Other tests map and unmap meanwhile, so only mappings that certainly stay are compared.
        let stays =
            [main_code(), std::ptr::from_ref(&0u32).addr(), Box::leak(Box::new(7u64)) as *const _ as usize];
        let mut file = File::open("/proc/self/maps").expect("maps");
        let asked = match ask(&file, &EVERYTHING) {
            Ok(asked) => asked,
            Err(error) => {
                println!("SKIPPED: this kernel knows no PROCMAP_QUERY ({error}); it came with Linux 6.11");
                return;
            }
        };
        let listed = list(&mut file, &EVERYTHING).expect("list");
        for addr in stays {
            let (asked, listed) = (at(&asked, addr), at(&listed, addr));
            let same =
                |a: &Vma| (a.readable, a.writable, a.executable, a.shared, a.inode, a.device, a.origin);
            assert_eq!(same(asked), same(listed));
        }
        let stack =
            |found: &[Vma]| found.iter().filter(|m| m.origin == Origin::Special && m.writable).count();
        assert_eq!(stack(&asked), stack(&listed), "the main thread's stack is told apart both ways");
    }

    fn main_code() -> usize {
        main_code as fn() -> usize as usize
    }

    #[test]
    fn gaps_are_seen() {
        let piece = |pages: Range<usize>| Vma {
            pages,
            ..parse(b"1000-2000 rw-p 00000000 00:00 0 ").expect("a line")
        };
        let two = [piece(0x1000..0x2000), piece(0x2000..0x4000)];
        assert!(covers(&two, &(0x1000..0x4000)) && covers(&two, &(0x1800..0x2800)));
        assert!(!covers(&two, &(0x1000..0x4001)) && !covers(&two, &(0xfff..0x2000)));
        assert!(!covers(&[piece(0x1000..0x2000), piece(0x3000..0x4000)], &(0x1000..0x4000)));
        assert!(!covers(&[], &(0x1000..0x2000)));
    }
}
