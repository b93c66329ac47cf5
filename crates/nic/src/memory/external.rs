//! Registered memory that goes to the wire from where it is.
//!
//! A large payload is not copied into the packet: the packet points to it, and the kernel copies it out of the region.
//! So the region must stay registered a little longer than a copy takes, until the system call is done: [`Pins`].
//!
//! A payload in the memory of a GPU is copied first, and the packets point to the copy.

use super::access::{pieces, region};
use super::gpu::{self, Fetched, ReadAhead};
use super::region::{Backing, Peer, Span};
use super::table::{Held, RegionTable};
use ferroce_proto::verbs::{Access, MemoryFault, Sge};
use ferroce_proto::{PdId, RKey};
use smallvec::SmallVec;

/// Regions that one batch of packets may point into. More are rare, and then their bytes are copied.
const MOST_PINS: usize = 8;

/// Bytes of a region, or a copy of them, that a packet points to. Only good while the [`Pins`] that gave it hold the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct External(Span);

impl External {
    /// Number of bytes.
    pub(crate) fn len(self) -> usize {
        self.0.len
    }
    /// Some of them. They must be among those that it has.
    pub(crate) fn part(self, from: usize, len: usize) -> External {
        debug_assert!(from + len <= self.0.len);
        External(Span { start: self.0.start + from, len, ..self.0 })
    }
    /// The first of them. The kernel may read from here, or write with the right to; nobody may make a reference of it.
    pub(crate) fn as_ptr(self) -> *const u8 {
        self.0.start as *const u8
    }
    /// Copies the bytes.
    ///
    /// # Safety
    /// The region is still held.
    pub(crate) unsafe fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len());
        // SAFETY: as in `summed`; `out` is as long.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), out.as_mut_ptr(), out.len()) };
    }
    /// What `sum` computes from the bytes.
    ///
    /// The application may change them between this and the system call that copies them. Then the ICRC is wrong, the
    /// receiver drops the packet, and it is sent again.
    ///
    /// # Safety
    /// The region is still held, and `sum` computes a checksum and nothing else.
    #[inline]
    pub(crate) unsafe fn summed<T>(self, sum: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: `Region::local` found the bytes inside a registration, which by the caller's promise is still held, so
        // they are mapped. The application may write them meanwhile, as under hardware: whatever the checksum then
        // reads, it only computes a number from it, and the slice is gone when it returns.
        sum(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }
}

#[derive(Default)]
struct Copies(Vec<Fetched>);

/// Regions held for packets that point into them: none of them can be deregistered before [`Pins::release`].
pub(crate) struct Pins<'a> {
    table: &'a RegionTable,
    held: SmallVec<[Held<'a>; 1]>,
    /// Copies of bytes in the memory of a GPU. Few batches have any, and all are dropped.
    copies: Option<Box<Copies>>,
}

impl<'a> Pins<'a> {
    pub(crate) fn new(table: &'a RegionTable) -> Self {
        Pins { table, held: SmallVec::new(), copies: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Lets go of all regions. No packet may point into them any more.
    pub(crate) fn release(&mut self) {
        self.held.clear();
        self.copies = None;
    }

    /// `len` bytes from `offset` on of the concatenated entries, if they lie in one piece; `None` if they must be copied. They are a message
    /// of `reader`.
    pub(crate) fn local(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        len: usize,
        reader: usize,
    ) -> Result<Option<External>, MemoryFault> {
        let Some(piece) = pieces(sges, offset, len).next().filter(|piece| piece.len as usize == len) else {
            return Ok(None);
        };
        let known = self.held.iter().position(|held| region(held).lkey == piece.lkey);
        if known.is_none() && self.held.len() == MOST_PINS {
            return Ok(None);
        }
        let held = match known {
            Some(at) => &self.held[at],
            None => {
                let held = self.table.pin_by_lkey(piece.lkey, self.held.is_empty())?;
                self.held.push(held);
                &self.held[self.held.len() - 1]
            }
        };
        let span = region(held).local(pd, piece.addr, u64::from(piece.len), Access::empty())?;
        match span.backing {
            Backing::Mapped => Ok(Some(External(span))),
            Backing::Gpu(gpu) => {
                let ahead = match sges {
                    [only] => region(held).ahead(span, reader, u64::from(only.len) - offset, offset == 0),
                    _ => ReadAhead::NONE,
                };
                let fetched = gpu::fetch(gpu, span, ahead)?;
                let copied = fetched.span();
                self.copies.get_or_insert_default().0.push(fetched);
                Ok(Some(External(copied)))
            }
            // On-demand pages may be missing, and a null region has none: the caller copies, and that copy can fail.
            Backing::Watched | Backing::OnDemand | Backing::Null => Ok(None),
        }
    }

    /// `len` bytes that the peer has the rights `need` on, if the kernel can read or write them in place; `None` if they must be copied.
    pub(crate) fn remote(
        &mut self,
        peer: Peer,
        rkey: RKey,
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Option<External>, MemoryFault> {
        if self.held.len() == MOST_PINS {
            return Ok(None);
        }
        let held = self.table.by_rkey(rkey)?;
        let span = region(&held).remote(peer, addr, len as u64, need)?;
        if span.backing != Backing::Mapped {
            return Ok(None);
        }
        self.held.push(held);
        Ok(Some(External(span)))
    }
}
