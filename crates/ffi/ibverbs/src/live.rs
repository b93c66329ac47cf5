//! Which pointers lead to objects that live, so that a destroyed or foreign one is refused without reading what it points to.
//!
//! Only verbs that end an object ask: the others are too frequent, or must find the object of whoever else uses it. An address may be given
//! to another object of the same kind later; then the old pointer is that object's.

use crate::errno::{Refused, invalid};
use crate::handle::Object;
use ferroce_nic::lock::Mutex;
use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::Once;

/// The kind of object at each address.
static LIVE: Mutex<BTreeMap<usize, TypeId>> = Mutex::new(BTreeMap::new());

/// A child that is forked while another thread holds the lock would wait for ever.
fn survive_forks() {
    extern "C" fn before() {
        std::mem::forget(LIVE.lock());
    }
    extern "C" fn after() {
        // SAFETY: `before` took it, in this thread or its parent's, and has forgotten it.
        unsafe { LIVE.force_unlock() };
    }
    static HOOK: Once = Once::new();
    // SAFETY: handlers that only take and release a lock.
    HOOK.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(after));
    });
}

/// Notes an object that the program gets.
pub(crate) fn enter<T: Object + 'static>(abi: *mut T::Abi) {
    survive_forks();
    LIVE.lock().insert(abi.addr(), TypeId::of::<T>());
}

/// Takes the note back, before the object ends; refuses a pointer that leads to none of this kind.
pub(crate) fn leave<T: Object + 'static>(abi: *mut T::Abi) -> Result<(), Refused> {
    let mut live = LIVE.lock();
    match live.get(&abi.addr()) {
        Some(kind) if *kind == TypeId::of::<T>() => drop(live.remove(&abi.addr())),
        _ if abi.is_null() => return Err(invalid("a NULL pointer")),
        _ => return Err(invalid("no such object: it was destroyed already, or never created")),
    }
    Ok(())
}
