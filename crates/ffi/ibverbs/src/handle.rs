//! The allocation behind a program's pointer: the C structure first, our object behind it.

use crate::abi::*;
use crate::buf::ibv_buf;
use crate::errno::{Refused, invalid};
use crate::{guard, live, watched};
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An object that programs hold by a pointer to its C structure.
pub(crate) trait Object: Sized {
    /// The C structure.
    type Abi: Numbered;
}

/// A C structure that may have a handle. With a kernel driver the handle identifies the object, so a program that
/// overwrites it loses the object.
pub(crate) trait Numbered {
    /// The handle; 0 if the structure has none.
    fn handle(&self) -> u32 {
        0
    }
}

macro_rules! numbered {
    ($($abi:ty => $($field:ident).+;)*) => {
        $(impl Numbered for $abi {
            fn handle(&self) -> u32 {
                self.$($field).+
            }
        })*
    };
}

numbered! {
    ibv_ah => handle;
    ibv_cq_ex => base.handle;
    ibv_dm => handle;
    ibv_flow => handle;
    ibv_mr => handle;
    ibv_mw => handle;
    ibv_pd => handle;
    ibv_qp_ex => base.handle;
    ibv_srq => handle;
    ibv_wq => handle;
}

impl Numbered for ibv_buf {}
impl Numbered for ibv_comp_channel {}
impl Numbered for ibv_counters {}
impl Numbered for ibv_rwq_ind_table {}
impl Numbered for ibv_td {}
impl Numbered for ibv_xrcd {}
impl Numbered for verbs_context {}

/// An object that the program destroys with a verb.
pub(crate) trait Destroyed: Object {
    /// The verb.
    const VERB: &'static str;

    /// Refuses while something depends on the object. Does not wait.
    fn check_unused(&self) -> Result<(), Refused>;

    /// Removes the object from the tables through which other calls find it. May wait for the program to acknowledge its events.
    ///
    /// # Safety
    /// The object's own structure.
    unsafe fn release(&self, abi: *mut Self::Abi) -> Result<(), Refused>;
}

/// Declares the C structure of an object, the verb that destroys it, the reason for EBUSY while `uses` counts
/// dependents, and the function that runs before it is freed.
macro_rules! object {
    ($object:ty, $abi:ty) => {
        impl $crate::handle::Object for $object {
            type Abi = $abi;
        }
    };
    ($object:ty, $abi:ty, $verb:literal $(, $who:literal)? $(=> $settle:ident)?) => {
        $crate::handle::object!($object, $abi);
        impl $crate::handle::Destroyed for $object {
            const VERB: &'static str = $verb;

            fn check_unused(&self) -> Result<(), $crate::errno::Refused> {
                $(if self.uses.any() {
                    return Err($crate::errno::Refused::InUse($who, self.uses.count()));
                })?
                Ok(())
            }

            unsafe fn release(&self, _abi: *mut $abi) -> Result<(), $crate::errno::Refused> {
                // SAFETY: as the caller promises.
                $(unsafe { self.$settle(_abi)? };)?
                Ok(())
            }
        }
    };
}
pub(crate) use object;

/// The allocation behind a pointer. Programs access the structure at any time, hence the cell.
#[repr(C)]
pub(crate) struct Handle<T: Object> {
    abi: UnsafeCell<T::Abi>,
    object: T,
    lender: Option<Lender>,
    /// The structure's handle, as the program got it.
    handle: u32,
}

/// The allocator of a parent domain, which provides memory from the program.
#[derive(Clone, Copy)]
pub(crate) struct Lender {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) context: *mut c_void,
    pub(crate) alloc: PdAlloc,
    pub(crate) free: PdFree,
}

/// The resource type that an allocator receives. Each driver chooses its numbers; no driver uses 0.
const RESOURCE_OBJECT: u64 = 1;

impl<T: Object + 'static> Handle<T> {
    /// Publishes a structure and its object to the program.
    pub(crate) fn publish(abi: T::Abi, object: T) -> *mut T::Abi {
        let handle = abi.handle();
        let whole = Box::new(Handle { abi: UnsafeCell::new(abi), object, lender: None, handle });
        let made = Box::into_raw(whole).cast();
        live::enter::<T>(made);
        made
    }

    /// The same, in memory that the program's allocator provides.
    pub(crate) fn publish_in(lender: Option<Lender>, abi: T::Abi, object: T) -> Result<*mut T::Abi, Refused> {
        let Some(given) = lender else { return Ok(Self::publish(abi, object)) };
        let (size, align) = (size_of::<Self>(), align_of::<Self>().max(align_of::<*mut c_void>()));
        // SAFETY: the program's function, called as its type says.
        let memory = unsafe { (given.alloc)(given.pd, given.context, size, align, RESOURCE_OBJECT) };
        if memory == IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(Self::publish(abi, object));
        }
        if memory.is_null() || !memory.addr().is_multiple_of(align) {
            return Err(Refused::Errno(libc::ENOMEM, "the parent domain's allocator gave no memory"));
        }
        let (memory, handle) = (memory.cast::<Self>(), abi.handle());
        // SAFETY: memory of the requested size and alignment, which belongs to the library until `free` is called.
        unsafe { memory.write(Handle { abi: UnsafeCell::new(abi), object, lender, handle }) };
        live::enter::<T>(memory.cast());
        Ok(memory.cast())
    }

    /// The object behind a pointer; NULL is refused.
    ///
    /// # Safety
    /// The pointer is NULL, or came from [`Handle::publish`] for the same object type. It was not taken back, and is not
    /// taken back while the result is used. The verbs demand this of a program.
    pub(crate) unsafe fn of<'a>(abi: *mut T::Abi) -> Result<&'a T, Refused> {
        // SAFETY: as the caller promises; the structure is the first member of the allocation.
        let handle = unsafe { abi.cast::<Handle<T>>().as_ref() };
        // Built only on failure: otherwise every call would have to drop a refusal.
        handle.map(|handle| &handle.object).ok_or_else(|| invalid("a NULL pointer"))
    }

    /// The object behind a pointer, if the program did not overwrite the structure's handle.
    ///
    /// # Safety
    /// As for [`Handle::of`].
    unsafe fn check_number<'a>(abi: *mut T::Abi) -> Result<&'a T, Refused> {
        // SAFETY: as the caller promises.
        let (made, now) = unsafe { ((*abi.cast::<Handle<T>>()).handle, (*abi).handle()) };
        if made != now {
            return Err(invalid("the structure's handle is not the one that the program got"));
        }
        // SAFETY: as the caller promises.
        unsafe { Self::of(abi) }
    }

    /// Takes structure and object back from the program. The caller has ended the life of the pointer ([`live::leave`]).
    ///
    /// # Safety
    /// As for [`Handle::of`]; the pointer is not used afterwards.
    pub(crate) unsafe fn take(abi: *mut T::Abi) -> T {
        let memory = abi.cast::<Handle<T>>();
        // SAFETY: as the caller promises.
        let Some(lender) = (unsafe { (*memory).lender }) else {
            // SAFETY: as the caller promises; without a lender, the allocation is a box.
            return unsafe { Box::from_raw(memory) }.object;
        };
        // SAFETY: as the caller promises; the memory is not read again, and returns to the allocator that provided it.
        unsafe {
            let handle = memory.read();
            (lender.free)(lender.pd, lender.context, memory.cast(), RESOURCE_OBJECT);
            handle.object
        }
    }

    /// The same, but the structure stays readable for a while. A program that still uses it gets an error instead of reading
    /// freed memory.
    ///
    /// # Safety
    /// As for [`Handle::take`].
    unsafe fn take_keeping(abi: *mut T::Abi, verb: &'static str) -> T {
        let memory = abi.cast::<Handle<T>>();
        // SAFETY: as the caller promises.
        let is_box = unsafe { (*memory).lender.is_none() };
        let by = watched::caller(verb, abi.addr());
        if let Some((oldest, layout)) = live::remember(by, is_box.then(Layout::new::<Handle<T>>)) {
            // SAFETY: the memory of a box that `live::remember` kept, with its layout; only this line frees it.
            unsafe { std::alloc::dealloc(oldest as *mut u8, layout) };
        }
        match is_box {
            // SAFETY: as the caller promises; only the structure is read again.
            true => unsafe { (&raw const (*memory).object).read() },
            // SAFETY: as the caller promises.
            false => unsafe { Self::take(abi) },
        }
    }
}

/// The verb that destroys an object.
pub(crate) unsafe extern "C" fn destroy<T: Destroyed + 'static>(abi: *mut T::Abi) -> c_int {
    guard::number(T::VERB, || {
        live::begin_destroy::<T>(abi)?;
        // SAFETY: an object of ours that lives; the program destroys it.
        let checked = unsafe { Handle::<T>::check_number(abi) }
            .and_then(|object| object.check_unused().map(|()| object))
            .inspect_err(|_| live::enter::<T>(abi));
        let object = checked?;
        live::leave(abi.addr());
        if watched::is_on() {
            watched::destroying(T::VERB, abi.addr());
            // A verb that `destroying` waited for may have made a dependent.
            object.check_unused().inspect_err(|_| live::enter::<T>(abi))?;
        }
        // SAFETY: as above; its own structure.
        unsafe { object.release(abi) }.inspect_err(|_| live::enter::<T>(abi))?;
        // SAFETY: as above.
        drop(unsafe {
            if watched::is_on() { Handle::<T>::take_keeping(abi, T::VERB) } else { Handle::<T>::take(abi) }
        });
        Ok(())
    })
}

/// Writes a word of a structure that the program holds. Several threads may do so at the same time, so the write is
/// atomic.
///
/// # Safety
/// The word of a structure of ours.
pub(crate) unsafe fn store_word(word: *mut u32, value: u32) {
    // SAFETY: as the caller promises; C aligns such words.
    unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Relaxed);
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
        self.count() > 0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread::JoinHandle;

    /// An object that is always in use. During `check_unused`, another thread begins a verb on it.
    struct Busy(Mutex<Option<JoinHandle<Result<(), String>>>>);

    object!(Busy, ibv_pd);

    impl Destroyed for Busy {
        const VERB: &'static str = "ibv_dealloc_pd";

        fn check_unused(&self) -> Result<(), Refused> {
            let address = std::ptr::from_ref(self).addr() - std::mem::offset_of!(Handle<Busy>, object);
            let caller = live::Caller { address, verb: "ibv_post_send", thread: 3 };
            let other = std::thread::spawn(move || live::begin::<Busy>(caller));
            // Gives the other thread time to fail.
            std::thread::sleep(std::time::Duration::from_millis(20));
            *self.0.lock().expect("no panic") = Some(other);
            Err(Refused::InUse("a test", 1))
        }

        unsafe fn release(&self, _: *mut ibv_pd) -> Result<(), Refused> {
            unreachable!("it is in use")
        }
    }

    #[test]
    fn an_object_that_is_in_use_still_lives_for_other_threads() {
        let abi = ibv_pd { context: std::ptr::null_mut(), handle: 0 };
        let made = Handle::publish(abi, Busy(Mutex::default()));
        // SAFETY: the object of this test, which stays.
        let (refused, object) =
            unsafe { (destroy::<Busy>(made), Handle::<Busy>::of(made).expect("it stays")) };
        assert_eq!(refused, libc::EBUSY);
        let other = object.0.lock().expect("no panic").take().expect("it was asked");
        assert_eq!(other.join().expect("no panic"), Ok(()));
    }
}
