//! The program's mapping of the heap, and how its pages are opened and closed.

use super::userfault::{Opened, Userfault};
use crate::PAGE;
use crate::coherence::Access;
use crate::error::Error;
use crate::heap::HEAP_ADDRESS;
use crate::map::Mapping;
use crate::settings::FaultKind;
use parking_lot::Mutex;
use std::fs::File;
use std::sync::Arc;

/// Pages that are brought into the file at once before they are opened; what lies further on costs a fault of its own.
const AROUND: usize = 16;

pub(crate) struct View {
    mapping: Mapping,
    how: How,
    /// What the user is told about it.
    story: String,
}

enum How {
    /// Rights of the mapping.
    Rights,
    Userfault(Entries),
}

/// Entries of the page table.
struct Entries {
    userfault: Userfault,
    /// The same memory, always open; and where in it the heap begins.
    window: Arc<Mapping>,
    heap: usize,
    /// What each page was opened for.
    wanted: Mutex<Vec<Access>>,
}

impl View {
    /// Maps the heap, which is `len` bytes from `heap` on in `file`, with all pages closed.
    pub(crate) fn new(
        file: &File,
        window: &Arc<Mapping>,
        heap: usize,
        len: usize,
        kind: FaultKind,
    ) -> Result<Self, Error> {
        let mut story = "SIGSEGV".to_owned();
        if kind != FaultKind::Signal {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let mapping = Mapping::fixed(file, heap, len, HEAP_ADDRESS, rights)?;
            match Entries::new(&mapping, window, heap) {
                Ok(entries) => {
                    return Ok(Self {
                        mapping,
                        how: How::Userfault(entries),
                        story: "userfaultfd".to_owned(),
                    });
                }
                Err(error) if kind == FaultKind::Userfault => return Err(error),
                Err(error) => story = format!("SIGSEGV, since userfaultfd is refused ({error})"),
            }
        }
        let mapping = Mapping::fixed(file, heap, len, HEAP_ADDRESS, libc::PROT_NONE)?;
        Ok(Self { mapping, how: How::Rights, story })
    }

    /// How pages are opened and closed, and why so.
    pub(crate) fn story(&self) -> &str {
        &self.story
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Changes what the program may do with `len` bytes from `offset` on. `false`: there are too many pieces of
    /// different rights already.
    pub(crate) fn protect(&self, offset: usize, len: usize, access: Access) -> Result<bool, Error> {
        match &self.how {
            How::Rights => self.mapping.protect(offset, len, access),
            How::Userfault(entries) => entries.protect(&self.mapping, offset, len, access).map(|()| true),
        }
    }

    /// A page faulted that the program may use: it was not opened with its neighbours because nothing was in it.
    pub(crate) fn reopen(&self, page: usize) -> Result<(), Error> {
        match &self.how {
            How::Rights => Ok(()),
            How::Userfault(entries) => entries.reopen(page),
        }
    }

    /// The end of coherence: everything may be read and written.
    pub(crate) fn open_to_all(&self) -> Result<(), Error> {
        match &self.how {
            How::Rights => self.mapping.protect(0, self.mapping.len(), Access::Write).map(|_| ()),
            How::Userfault(entries) => entries.userfault.unregister(),
        }
    }
}

impl Entries {
    fn new(mapping: &Mapping, window: &Arc<Mapping>, heap: usize) -> Result<Self, Error> {
        let refused = |source| Error::System { call: "userfaultfd", source };
        let userfault = Userfault::new(HEAP_ADDRESS, mapping.len()).map_err(refused)?;
        let this = Self { userfault, window: window.clone(), heap, wanted: Mutex::default() };
        // Systems before 6.4 cannot open a page for reading alone.
        this.fill(0, 1);
        match this.userfault.open(0, PAGE, Access::Read)? {
            Opened::All => mapping.unmap_entries(0, PAGE).map(|()| this),
            Opened::Before(_) | Opened::UpToHole => {
                Err(refused(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)))
            }
        }
    }

    /// Brings pages into the file.
    fn fill(&self, first: usize, count: usize) {
        for page in first..first + count {
            self.window.touch(self.heap + page * PAGE);
        }
    }

    fn protect(&self, mapping: &Mapping, offset: usize, len: usize, access: Access) -> Result<(), Error> {
        let (first, end) = (offset / PAGE, (offset + len) / PAGE);
        let mut wanted = self.wanted.lock();
        if access == Access::None {
            let known = first.min(wanted.len())..end.min(wanted.len());
            wanted[known].fill(Access::None);
            return mapping.unmap_entries(offset, len);
        }
        if wanted.len() < end {
            wanted.resize(end.next_power_of_two(), Access::None);
        }
        if wanted[first..end].iter().any(|before| *before != Access::None) {
            if access == Access::Read {
                self.userfault.protect(offset, len, true)?;
            } else {
                // Given the right to write, an entry still faults once more in the kernel; a new entry does not.
                mapping.unmap_entries(offset, len)?;
                wanted[first..end].fill(Access::None);
            }
        }
        self.fill(first, (end - first).min(AROUND));
        let mut page = first;
        while page < end {
            let closed = wanted[page..end].iter().take_while(|before| **before == Access::None).count();
            self.open(page, closed, access)?;
            page += closed.max(1);
        }
        wanted[first..end].fill(access);
        Ok(())
    }

    /// Opens pages, except those that are open already and those that are not in the file.
    fn open(&self, first: usize, count: usize, access: Access) -> Result<(), Error> {
        let (mut at, end) = (first * PAGE, (first + count) * PAGE);
        while at < end {
            match self.userfault.open(at, end - at, access)? {
                Opened::All => return Ok(()),
                Opened::Before(offset) => at = offset + PAGE,
                // Where one is missing, more are. They come when they are touched.
                Opened::UpToHole => return Ok(()),
            }
        }
        Ok(())
    }

    fn reopen(&self, page: usize) -> Result<(), Error> {
        let wanted = self.wanted.lock();
        let Some(&access) = wanted.get(page).filter(|access| **access != Access::None) else { return Ok(()) };
        let alike = wanted[page..].iter().take(AROUND).take_while(|other| **other == access).count();
        self.fill(page, alike);
        self.open(page, alike, access)?;
        if access == Access::Write { self.userfault.protect(page * PAGE, PAGE, false) } else { Ok(()) }
    }
}
