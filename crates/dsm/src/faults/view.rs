//! The program's mapping of the heap, and how its pages are opened and closed.

use super::sources::Sources;
use super::userfault::{Opened, Userfault};
use crate::PAGE;
use crate::coherence::{Access, Run};
use crate::error::Error;
use crate::heap::HEAP_ADDRESS;
use crate::map::{Change, Mapping};
use crate::settings::FaultKind;
use parking_lot::Mutex;

/// Pages that are allocated in the file together before they are opened. Each further page costs a fault.
const AROUND: usize = 16;

pub(crate) struct View {
    pub(crate) mapping: Mapping,
    pub(crate) sources: Sources,
    how: How,
    /// How faults are caught, and why, for the user.
    pub(crate) story: String,
}

enum How {
    /// Rights of the mapping.
    Rights,
    Userfault(Entries),
}

/// Entries of the page table.
struct Entries {
    userfault: Userfault,
    /// The access rights that each page was opened with.
    wanted: Mutex<Vec<Access>>,
}

impl View {
    /// Maps the heap, the last `len` bytes of our own mapping, with all pages closed.
    pub(crate) fn new(sources: Sources, len: usize, kind: FaultKind) -> Result<Self, Error> {
        let mut story = "SIGSEGV".to_owned();
        let (own, heap) = sources.mapping(sources.own())?;
        if kind != FaultKind::Signal {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let mapping = Mapping::fixed(&own.file, heap, len, HEAP_ADDRESS, rights)?;
            match Entries::new(&mapping, &sources) {
                Ok(entries) => {
                    let (how, story) = (How::Userfault(entries), "userfaultfd".to_owned());
                    return Ok(Self { mapping, sources, how, story });
                }
                Err(error) if kind == FaultKind::Userfault => return Err(error),
                Err(error) => story = format!("SIGSEGV, since userfaultfd is refused ({error})"),
            }
        }
        let mapping = Mapping::fixed(&own.file, heap, len, HEAP_ADDRESS, libc::PROT_NONE)?;
        Ok(Self { mapping, sources, how: How::Rights, story })
    }

    /// Changes the program's access rights to pages.
    pub(crate) fn protect(&self, run: Run, access: Access) -> Result<Change, Error> {
        let (offset, len) = (run.first * PAGE, run.count * PAGE);
        match &self.how {
            How::Rights => return self.mapping.protect(offset, len, access),
            How::Userfault(entries) if access == Access::None => entries.close(&self.mapping, run)?,
            How::Userfault(entries) => {
                // One system call can only open pages of one mapping.
                let (mut first, end) = (run.first, run.first + run.count);
                while first < end {
                    let piece = self.sources.first_piece(Run { first, count: end - first });
                    entries.open_for(&self.mapping, &self.sources, piece, access)?;
                    first += piece.count;
                }
            }
        }
        Ok(Change::Done)
    }

    /// Shows pages of another mapping, without access rights.
    pub(crate) fn show(&self, run: Run, rank: u32) -> Result<Change, Error> {
        self.replace(run, rank, false)
    }

    /// Shows our own mapping again for those of the pages that show another one, even at the limit of mappings.
    pub(crate) fn show_own(&self, run: Run) -> Result<(), Error> {
        let (mut first, end) = (run.first, run.first + run.count);
        while first < end {
            let piece = self.sources.first_piece(Run { first, count: end - first });
            let own = self.sources.own();
            if self.sources.rank(first) != own && self.replace(piece, own, false)? != Change::Done {
                let _ = self.replace(piece, own, true)?;
            }
            first += piece.count;
        }
        Ok(())
    }

    fn replace(&self, run: Run, rank: u32, taken: bool) -> Result<Change, Error> {
        let (offset, len) = (run.first * PAGE, run.count * PAGE);
        let (source, heap) = self.sources.mapping(rank)?;
        // No access rights at first: each access must fault.
        let from = (&source.file, heap + offset);
        if self.mapping.replace((offset, len), from, taken)? == Change::TooManyMappings {
            return Ok(Change::TooManyMappings);
        }
        self.sources.set(run, rank);
        match &self.how {
            How::Rights => Ok(Change::Done),
            How::Userfault(entries) => {
                entries.register(run)?;
                match self.mapping.protect(offset, len, Access::Write)? {
                    Change::Done => Ok(Change::Done),
                    Change::TooManyMappings => {
                        Err(Error::system("mprotect of a co-located process's part of the heap"))
                    }
                }
            }
        }
    }

    /// Opens an accessible page that faulted because it was empty when adjacent pages were opened.
    pub(crate) fn reopen(&self, page: usize) -> Result<(), Error> {
        match &self.how {
            How::Rights => Ok(()),
            How::Userfault(entries) => entries.reopen(&self.sources, page),
        }
    }

    /// Ends coherence: all pages become readable and writable.
    pub(crate) fn open_to_all(&self) -> Result<(), Error> {
        match &self.how {
            How::Rights => self.mapping.protect(0, self.mapping.len(), Access::Write).map(|_| ()),
            How::Userfault(entries) => entries.userfault.unregister(),
        }
    }
}

impl Entries {
    fn new(mapping: &Mapping, sources: &Sources) -> Result<Self, Error> {
        let refused = |source| Error::System { call: "userfaultfd", source };
        let userfault = Userfault::new(HEAP_ADDRESS, mapping.len()).map_err(refused)?;
        let this = Self { userfault, wanted: Mutex::default() };
        // Kernels before 6.4 cannot open a page for reading alone.
        sources.touch(0);
        match this.userfault.open(0, PAGE, Access::Read)? {
            Opened::All => mapping.unmap_entries(0, PAGE).map(|()| this),
            Opened::Before(_) | Opened::UpToHole => {
                Err(refused(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP)))
            }
        }
    }

    /// Registers pages that were mapped again and have no rights yet.
    fn register(&self, run: Run) -> Result<(), Error> {
        self.forget(&mut self.wanted.lock(), run);
        let refused = |source| Error::System { call: "UFFDIO_REGISTER", source };
        self.userfault.register(run.first * PAGE, run.count * PAGE).map_err(refused)
    }

    fn forget(&self, wanted: &mut [Access], run: Run) {
        let known = run.first.min(wanted.len())..(run.first + run.count).min(wanted.len());
        wanted[known].fill(Access::None);
    }

    fn close(&self, mapping: &Mapping, run: Run) -> Result<(), Error> {
        let mut wanted = self.wanted.lock();
        self.forget(&mut wanted, run);
        mapping.unmap_entries(run.first * PAGE, run.count * PAGE)
    }

    /// Opens pages of one mapping, or changes the access rights of open ones.
    fn open_for(&self, mapping: &Mapping, sources: &Sources, run: Run, access: Access) -> Result<(), Error> {
        let (offset, len) = (run.first * PAGE, run.count * PAGE);
        let (first, end) = (run.first, run.first + run.count);
        let mut wanted = self.wanted.lock();
        if wanted.len() < end {
            wanted.resize(end.next_power_of_two(), Access::None);
        }
        if wanted[first..end].iter().any(|before| *before != Access::None) {
            if access == Access::Read {
                self.userfault.protect(offset, len, true)?;
            } else {
                // An entry that is made writable faults once more in the kernel; a new entry does not.
                mapping.unmap_entries(offset, len)?;
                wanted[first..end].fill(Access::None);
            }
        }
        (first..end).take(AROUND).for_each(|page| sources.touch(page));
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
                // Pages after a hole are usually holes, too. They are opened when they are accessed.
                Opened::UpToHole => return Ok(()),
            }
        }
        Ok(())
    }

    fn reopen(&self, sources: &Sources, page: usize) -> Result<(), Error> {
        let wanted = self.wanted.lock();
        let Some(&access) = wanted.get(page).filter(|access| **access != Access::None) else { return Ok(()) };
        let alike = wanted[page..].iter().take(AROUND).take_while(|other| **other == access).count();
        let alike = sources.first_piece(Run { first: page, count: alike });
        alike.pages().for_each(|page| sources.touch(page));
        self.open(page, alike.count, access)?;
        if access == Access::Write { self.userfault.protect(page * PAGE, PAGE, false) } else { Ok(()) }
    }
}
