//! What a program's pointer leads to: the C structure first, our object behind it.

use crate::errno::{Refused, invalid};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// An object that programs hold by a pointer to its C structure.
pub(crate) trait Object: Sized {
    /// The C structure.
    type Abi;
}

/// The allocation behind a pointer. Programs read and write the structure whenever they like, hence the cell.
#[repr(C)]
pub(crate) struct Handle<T: Object> {
    abi: UnsafeCell<T::Abi>,
    object: T,
}

impl<T: Object> Handle<T> {
    /// Hands a structure and its object to the program.
    pub(crate) fn publish(abi: T::Abi, object: T) -> *mut T::Abi {
        Box::into_raw(Box::new(Handle { abi: UnsafeCell::new(abi), object })).cast()
    }

    /// The object behind a pointer; NULL is refused.
    ///
    /// # Safety
    /// The pointer is NULL or came from [`Handle::publish`] for the same object type, and was not taken back yet, nor
    /// will be while the result is used: what the verbs demand of a program.
    pub(crate) unsafe fn of<'a>(abi: *mut T::Abi) -> Result<&'a T, Refused> {
        // SAFETY: as the caller promises; the structure is the first member of the allocation.
        let handle = unsafe { abi.cast::<Handle<T>>().as_ref() };
        handle.map(|handle| &handle.object).ok_or(invalid("a NULL pointer"))
    }

    /// Takes structure and object back from the program.
    ///
    /// # Safety
    /// As for [`Handle::of`], and nobody uses the pointer any more.
    pub(crate) unsafe fn take(abi: *mut T::Abi) -> T {
        // SAFETY: as the caller promises.
        let handle = unsafe { Box::from_raw(abi.cast::<Handle<T>>()) };
        handle.object
    }
}

/// Counts who depends on an object, so that destroying it can answer EBUSY.
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
