//! The interface of a transport of the shared memory. `job` has the parts that all transports share: ranks, nesting, allocation,
//! statistics.

use crate::error::Error;
use crate::heap::Homes;
use crate::job::Tuning;
use std::sync::atomic::AtomicU64;

/// The destination or the source of a message: process and tag.
pub(crate) type Envelope = (u32, i32);

pub(crate) trait Backend: Send + Sync {
    /// First byte of the heap.
    fn heap(&self) -> *mut u8;

    /// New pages, from byte `at` of the heap on.
    fn place(&self, at: usize, homes: &Homes) -> Result<(), Error>;
    /// Zeroes a range. All processes call it, and none uses the range meanwhile.
    fn discard(&self, at: usize, len: usize) -> Result<(), Error>;

    fn lock(&self, id: u32) -> Result<(), Error>;
    fn unlock(&self, id: u32) -> Result<(), Error>;
    /// Adds the time of the wait to `waits`.
    fn barrier(&self, waits: &AtomicU64) -> Result<(), Error>;
    /// Waits for all processes, without making writes visible. Adds the time of the wait to `waits`.
    fn wait_all(&self, waits: &AtomicU64) -> Result<(), Error>;
    fn change_flag(&self, id: u32, set: bool) -> Result<(), Error>;
    fn wait_flag(&self, id: u32) -> Result<(), Error>;

    fn send(&self, to: u32, tag: i32, bytes: &[u8]) -> Result<(), Error>;
    /// Blocks until a matching message has arrived, and takes it.
    fn recv(&self, from: Option<u32>, tag: Option<i32>) -> Result<(Envelope, Vec<u8>), Error>;

    /// Copies from the heap, as a read by the program would.
    fn get(&self, into: &mut [u8], at: usize) -> Result<(), Error>;
    /// Copies to the heap, as a write by the program would.
    fn put(&self, at: usize, from: &[u8]) -> Result<(), Error>;

    fn configure(&self, _tuning: Tuning, _on: bool) {}
    /// How page faults of the program are caught.
    fn faults(&self) -> &str {
        "none"
    }
    /// Pages of co-located processes that were ever used in place, by home.
    fn shared_pages(&self) -> Vec<(u32, u64)> {
        Vec::new()
    }
    /// The last call. All processes have passed a barrier.
    fn leave(&self) -> Result<(), Error>;
}
