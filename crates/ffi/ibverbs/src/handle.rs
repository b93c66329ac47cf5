//! The allocation behind a program's pointer: the C structure first, our object behind it.

use crate::abi::{IBV_ALLOCATOR_USE_DEFAULT, PdAlloc, PdFree, ibv_pd};
use crate::errno::{Refused, busy, invalid};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An object that programs hold by a pointer to its C structure.
pub(crate) trait Object: Sized {
    /// The C structure.
    type Abi;
}

/// An object that others can depend on. While they do, the program cannot destroy it.
pub(crate) trait Used: Object {
    /// Its dependents.
    fn uses(&self) -> &Uses;
}

/// Declares the C structure of an object and, if others can depend on it, the field that counts them.
macro_rules! object {
    ($object:ty, $abi:ty $(, $uses:ident)?) => {
        impl $crate::handle::Object for $object {
            type Abi = $abi;
        }
        $(impl $crate::handle::Used for $object {
            fn uses(&self) -> &$crate::handle::Uses {
                &self.$uses
            }
        })?
    };
}
pub(crate) use object;

/// The allocation behind a pointer. Programs access the structure at any time, hence the cell.
#[repr(C)]
pub(crate) struct Handle<T: Object> {
    abi: UnsafeCell<T::Abi>,
    object: T,
    lender: Option<Lender>,
}

/// Memory from the program: the allocator of a parent domain.
#[derive(Clone, Copy)]
pub(crate) struct Lender {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) context: *mut c_void,
    pub(crate) alloc: PdAlloc,
    pub(crate) free: PdFree,
}

/// The resource type that an allocator receives. Ours to choose; no driver has number 0.
const RESOURCE_OBJECT: u64 = 1;

impl<T: Object> Handle<T> {
    /// Publishes a structure and its object to the program.
    pub(crate) fn publish(abi: T::Abi, object: T) -> *mut T::Abi {
        Box::into_raw(Box::new(Handle { abi: UnsafeCell::new(abi), object, lender: None })).cast()
    }

    /// The same, in memory from the program.
    pub(crate) fn publish_in(lender: Option<Lender>, abi: T::Abi, object: T) -> Result<*mut T::Abi, Refused> {
        let Some(given) = lender else { return Ok(Self::publish(abi, object)) };
        let (size, align) = (size_of::<Self>(), align_of::<Self>().max(align_of::<*mut c_void>()));
        // SAFETY: the program's function, called as its type says.
        let place = unsafe { (given.alloc)(given.pd, given.context, size, align, RESOURCE_OBJECT) };
        if place == IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(Self::publish(abi, object));
        }
        if place.is_null() || !place.addr().is_multiple_of(align) {
            return Err(Refused::Errno(libc::ENOMEM, "the parent domain's allocator gave no memory"));
        }
        let place = place.cast::<Self>();
        // SAFETY: memory of the size and alignment that was asked for, and ours until it is given back.
        unsafe { place.write(Handle { abi: UnsafeCell::new(abi), object, lender }) };
        Ok(place.cast())
    }

    /// The object behind a pointer; NULL is refused.
    ///
    /// # Safety
    /// The pointer is NULL or came from [`Handle::publish`] for the same object type, and was not taken back yet, nor
    /// will be while the result is used: what the verbs demand of a program.
    pub(crate) unsafe fn of<'a>(abi: *mut T::Abi) -> Result<&'a T, Refused> {
        // SAFETY: as the caller promises; the structure is the first member of the allocation.
        let handle = unsafe { abi.cast::<Handle<T>>().as_ref() };
        // Built only on failure: otherwise every call would have to drop a refusal.
        handle.map(|handle| &handle.object).ok_or_else(|| invalid("a NULL pointer"))
    }

    /// Takes structure and object back from the program.
    ///
    /// # Safety
    /// As for [`Handle::of`], and nobody uses the pointer any more.
    pub(crate) unsafe fn take(abi: *mut T::Abi) -> T {
        let place = abi.cast::<Handle<T>>();
        // SAFETY: as the caller promises.
        let Some(lender) = (unsafe { (*place).lender }) else {
            // SAFETY: as the caller promises; nobody lent it, so it is a box.
            return unsafe { Box::from_raw(place) }.object;
        };
        // SAFETY: as the caller promises; the memory is not read again, and goes back to where it came from.
        unsafe {
            let handle = place.read();
            (lender.free)(lender.pd, lender.context, place.cast(), RESOURCE_OBJECT);
            handle.object
        }
    }

    /// Takes it back and drops it.
    ///
    /// # Safety
    /// NULL, or as for [`Handle::take`].
    pub(crate) unsafe fn give_back(abi: *mut T::Abi) -> Result<(), Refused> {
        // SAFETY: as the caller promises.
        unsafe { Self::of(abi).map(|_| drop(Self::take(abi))) }
    }
}

impl<T: Used> Handle<T> {
    /// Takes it back, or returns EBUSY if something depends on it, with `who` as the reason.
    ///
    /// # Safety
    /// The pointer is NULL, or as for [`Handle::take`] if nothing depends on the object.
    pub(crate) unsafe fn take_unused(abi: *mut T::Abi, who: &'static str) -> Result<T, Refused> {
        // SAFETY: as the caller promises.
        unsafe { Self::take_settled(abi, who, |_| Ok(())) }
    }

    /// The same, but runs a closure first, once nothing depends on it.
    ///
    /// # Safety
    /// As for [`Handle::take_unused`].
    pub(crate) unsafe fn take_settled(
        abi: *mut T::Abi,
        who: &'static str,
        settle: impl FnOnce(&T) -> Result<(), Refused>,
    ) -> Result<T, Refused> {
        // SAFETY: as the caller promises.
        let object = unsafe { Self::of(abi)? };
        if object.uses().any() {
            return Err(busy(who));
        }
        settle(object)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { Self::take(abi) })
    }
}

/// Writes a word of a structure that the program holds. Several threads may call on one object, and each writes what
/// it found, so the write is atomic.
///
/// # Safety
/// The word of a structure of ours.
pub(crate) unsafe fn store_word(place: *mut u32, value: u32) {
    // SAFETY: as the caller promises; such words are aligned as C has it.
    unsafe { AtomicU32::from_ptr(place) }.store(value, Ordering::Relaxed);
}

/// Counts the dependents of an object, so that destroying it can return EBUSY.
#[derive(Default)]
pub(crate) struct Uses(Arc<()>);

/// One dependency; ends when dropped.
pub(crate) struct Use(#[allow(dead_code, reason = "held for its count")] Arc<()>);

impl Uses {
    /// Another dependency.
    pub(crate) fn hold(&self) -> Use {
        Use(self.0.clone())
    }

    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
