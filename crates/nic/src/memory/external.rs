//! Zero-copy payloads in registered memory.
//!
//! A large payload is not copied into the packet: the packet points to it, and the kernel copies it out of the region. [`Pins`] keep the
//! region registered until the system call returns.
//!
//! A payload in the memory of a GPU is copied first, and the packets point to the copy.

use super::access::{pieces, region};
use super::gpu::{self, Fetched, ReadAhead};
use super::region::{Backing, Peer, Span};
use super::table::{Held, RegionTable};
use ferroce_proto::verbs::{Access, MemoryFault, Sge};
use ferroce_proto::{PdId, RKey};
use smallvec::SmallVec;

/// Most regions that one batch of packets may point into. Payloads in further regions are copied.
const MAX_PINS: usize = 8;

/// Bytes of a region, or a copy of them, that a packet points to. Valid only while the [`Pins`] that returned it hold the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct External(Span);

impl External {
    /// Number of bytes.
    pub(crate) fn len(self) -> usize {
        self.0.len
    }
    /// Some of the bytes, as [`Span::part`].
    pub(crate) fn part(self, offset: usize, len: usize) -> External {
        External(self.0.part(offset, len))
    }
    /// A pointer to the first byte. The kernel may read from it, or write if write access was checked. It must not become a reference.
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
    /// Reads a byte of each page, for a packet whose ICRC leaves out the payload. If the program has unmapped registered memory, this raises
    /// SIGSEGV, whose handler explains it; the system call would only refuse the packet.
    ///
    /// # Safety
    /// The region is still held.
    #[inline]
    pub(crate) unsafe fn touch(self) {
        const PAGE: usize = 4096;
        // SAFETY: the caller's promise; the result is only computed.
        std::hint::black_box(unsafe {
            self.summed(|bytes| {
                bytes.iter().step_by(PAGE).chain(bytes.last()).fold(0, |sum, byte| sum ^ byte)
            })
        });
    }
    /// Returns the result of `sum` over the bytes.
    ///
    /// The application may change them before the system call that copies them. Then an ICRC that covers them is wrong, the receiver drops the
    /// packet, and the requester sends it again.
    ///
    /// # Safety
    /// The region is still held, and `sum` computes a checksum and nothing else.
    #[inline]
    pub(crate) unsafe fn summed<T>(self, sum: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: `Region::local` or `Region::remote` found the bytes inside a registration, which by the caller's promise is still held, so
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
    /// Copies of bytes in the memory of a GPU. Boxed, because few batches have any and every batch drops this field.
    copies: Option<Box<Copies>>,
}

impl<'a> Pins<'a> {
    pub(crate) fn new(table: &'a RegionTable) -> Self {
        Pins { table, held: SmallVec::new(), copies: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Releases all regions. No packet may point into them.
    pub(crate) fn release(&mut self) {
        self.held.clear();
        self.copies = None;
    }

    /// The `len` bytes from `offset` on of the concatenated entries, if they lie in one piece; `None` if they must be copied. They belong to
    /// a message of `reader`.
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
        if known.is_none() && self.held.len() == MAX_PINS {
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
            // On-demand pages may be missing, and a null region has none. The caller copies, which can report a fault.
            Backing::Watched | Backing::OnDemand | Backing::Null => Ok(None),
        }
    }

    /// The `len` bytes for an access of the peer with the rights `need`, if the kernel can read or write them in place; `None` if they must
    /// be copied.
    pub(crate) fn remote(
        &mut self,
        peer: Peer,
        rkey: RKey,
        addr: u64,
        len: usize,
        need: Access,
    ) -> Result<Option<External>, MemoryFault> {
        let known = self.held.iter().find(|held| region(held).rkey == rkey);
        if known.is_none() && self.held.len() == MAX_PINS {
            return Ok(None);
        }
        let found =
            if known.is_none() { Some(self.table.pin_by_rkey(rkey, self.held.is_empty())?) } else { None };
        let Some(held) = known.or(found.as_ref()) else { return Ok(None) };
        let span = region(held).remote(peer, addr, len as u64, need)?;
        if span.backing != Backing::Mapped {
            return Ok(None);
        }
        self.held.extend(found);
        Ok(Some(External(span)))
    }
}
