//! Locks that are released when their guard is dropped.

use crate::error::Error;
use crate::job::Job;
use crate::meet::stop;
use std::marker::PhantomData;

/// A lock that this thread holds. Guards must be dropped in reverse order, as scopes do.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard<'a> {
    job: &'a Job,
    id: u32,
    /// A lock must be released by the thread that acquired it.
    _not_send: PhantomData<*const ()>,
}

impl Job {
    /// Acquires lock `id` until the guard is dropped.
    pub fn guard(&self, id: u32) -> Result<LockGuard<'_>, Error> {
        self.lock(id)?;
        Ok(LockGuard { job: self, id, _not_send: PhantomData })
    }
}

impl LockGuard<'_> {
    /// Releases the lock and returns any error. If dropping a guard fails, it ends the process.
    pub fn unlock(self) -> Result<(), Error> {
        let (job, id) = (self.job, self.id);
        std::mem::forget(self);
        job.unlock(id)
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.job.unlock(self.id) {
            // The other processes would wait for this lock indefinitely.
            stop(self.job.rank(), &error.to_string());
        }
    }
}
