//! The addresses of all live objects. A pointer to a destroyed or foreign object is refused without reading its memory.
//!
//! Only verbs that destroy an object, and the verbs of `watched`, check it: the others are too frequent. A later object of the same
//! kind may get the same address; then the old pointer is valid for the new object.

use crate::errno::{Refused, invalid};
use crate::handle::Object;
use ferroce_nic::lock::Mutex;
use std::alloc::Layout;
use std::any::TypeId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Once;
use std::time::Duration;

/// How often a thread checks whether another one's verb on the same object has ended.
pub(crate) const RETRY_EVERY: Duration = Duration::from_micros(100);
/// The maximum number of destroyed objects whose memory is kept.
const MAX_DESTROYED: usize = 1024;

static LIVE: Mutex<Live> =
    Mutex::new(Live { objects: BTreeMap::new(), destroyed: VecDeque::new(), inside: Vec::new() });

struct Live {
    /// The object at each address.
    objects: BTreeMap<usize, Entry>,
    /// The last destroyed objects, if the program is watched.
    destroyed: VecDeque<Destroyed>,
    /// The threads inside verbs on objects, if the program is watched.
    inside: Vec<Caller>,
}

/// An object that lives.
struct Entry {
    kind: TypeId,
    /// A thread is inside the verb that destroys it. The verb may still be refused.
    is_destroying: bool,
}

/// An object that a thread has destroyed.
struct Destroyed {
    address: usize,
    /// Its memory, which is kept: the program may still read its structure, and no other object gets its address.
    memory: Option<Layout>,
    verb: &'static str,
    thread: i32,
}

/// A thread inside a verb on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) address: usize,
    pub(crate) verb: &'static str,
    pub(crate) thread: i32,
}

/// Records which thread destroyed an object, and keeps its memory if that is a box. If too many are kept, returns the
/// oldest one for the caller to free.
pub(crate) fn remember(by: Caller, memory: Option<Layout>) -> Option<(usize, Layout)> {
    let Caller { address, verb, thread } = by;
    let mut live = LIVE.lock();
    live.destroyed.push_back(Destroyed { address, memory, verb, thread });
    let oldest = (live.destroyed.len() > MAX_DESTROYED).then(|| live.destroyed.pop_front()).flatten()?;
    oldest.memory.map(|layout| (oldest.address, layout))
}

/// Begins a verb on an object of this kind. Returns the reason if the address has no such object. Waits while another thread is inside the
/// verb that destroys the object: if that fails with EBUSY, the object lives on.
pub(crate) fn begin<T: Object + 'static>(caller: Caller) -> Result<(), String> {
    let mut live = LIVE.lock();
    let address = caller.address;
    while let Some(Entry { kind, is_destroying }) = live.objects.get(&address)
        && *kind == TypeId::of::<T>()
    {
        if !is_destroying {
            live.inside.push(caller);
            return Ok(());
        }
        drop(live);
        std::thread::sleep(RETRY_EVERY);
        live = LIVE.lock();
    }
    let user = caller.thread;
    Err(match live.destroyed.iter().rfind(|object| object.address == address) {
        Some(Destroyed { verb, thread, .. }) => format!(
            "thread {user} uses the object at {address:#x}, which thread {thread} has destroyed with {verb}. On hardware this reads freed memory; destroy an object \
             only after every thread has stopped using it"
        ),
        None => format!(
            "thread {user} uses {address:#x}, where no such object is: it was never created, or is being destroyed"
        ),
    })
}

/// Ends the verb.
pub(crate) fn end(caller: Caller) {
    let inside = &mut LIVE.lock().inside;
    if let Some(at) = inside.iter().position(|other| *other == caller) {
        inside.swap_remove(at);
    }
}

/// Returns a thread that is inside a verb on this object.
pub(crate) fn inside(address: usize) -> Option<Caller> {
    LIVE.lock().inside.iter().find(|caller| caller.address == address).copied()
}

/// Registers handlers that hold the lock during a fork. Otherwise a child could inherit a lock that a thread of the parent holds.
fn survive_forks() {
    extern "C" fn before() {
        std::mem::forget(LIVE.lock());
    }
    extern "C" fn after() {
        // SAFETY: `before` locked it in this thread, or in the thread that this one is a copy of, and forgot the guard.
        unsafe { LIVE.force_unlock() };
    }
    extern "C" fn in_child() {
        after();
        // The threads inside verbs exist only in the parent.
        let mut live = LIVE.lock();
        live.inside.clear();
        live.objects.values_mut().for_each(|object| object.is_destroying = false);
    }
    static HOOK: Once = Once::new();
    // SAFETY: handlers that only take and release a lock; clearing frees no memory.
    HOOK.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(in_child));
    });
}

/// Records an object that the program receives, or keeps because destroying it failed.
pub(crate) fn enter<T: Object + 'static>(abi: *mut T::Abi) {
    survive_forks();
    LIVE.lock().objects.insert(abi.addr(), Entry { kind: TypeId::of::<T>(), is_destroying: false });
}

/// Begins to destroy an object; until [`enter`] or [`leave`], no other thread can. Refuses a pointer that leads to no object of this
/// kind.
pub(crate) fn begin_destroy<T: Object + 'static>(abi: *mut T::Abi) -> Result<(), Refused> {
    match LIVE.lock().objects.get_mut(&abi.addr()) {
        Some(entry) if entry.kind == TypeId::of::<T>() && !entry.is_destroying => {
            entry.is_destroying = true;
            Ok(())
        }
        _ if abi.is_null() => Err(invalid("a NULL pointer")),
        _ => Err(invalid("no such object: it was destroyed already, or never created")),
    }
}

/// Removes the object that a thread destroys.
pub(crate) fn leave(address: usize) {
    LIVE.lock().objects.remove(&address);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pd::PdObject;

    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let abi = std::ptr::without_provenance_mut(0x4560);
        enter::<PdObject>(abi);
        begin_destroy::<PdObject>(abi).expect("it lives");
        let caller = Caller { address: 0x4560, verb: "ibv_dealloc_pd", thread: 1 };
        // SAFETY: the child takes a lock that survives forks, and ends; SIGALRM ends it if it waits too long.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(30);
                libc::_exit(begin::<PdObject>(caller).is_err().into());
            }
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it waited, or found nothing");
        leave(0x4560);
    }
}
