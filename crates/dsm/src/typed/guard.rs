//! Locks that are given back when their guard goes.

use crate::error::Error;
use crate::job::Job;
use crate::meet::stop;
use std::marker::PhantomData;

/// A lock that this thread holds. Guards go in the reverse order of their making, as scopes do.
#[must_use = "the lock is given back when the guard goes"]
pub struct LockGuard<'a> {
    job: &'a Job,
    id: u32,
    /// The thread that took a lock gives it back.
    _not_send: PhantomData<*const ()>,
}

impl Job {
    /// Takes lock `id` until the guard goes.
    pub fn guard(&self, id: u32) -> Result<LockGuard<'_>, Error> {
        self.lock(id)?;
        Ok(LockGuard { job: self, id, _not_send: PhantomData })
    }
}

impl LockGuard<'_> {
    /// Gives the lock back, and says if that failed; a guard that just goes ends the process then.
    pub fn unlock(self) -> Result<(), Error> {
        let (job, id) = (self.job, self.id);
        std::mem::forget(self);
        job.unlock(id)
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.job.unlock(self.id) {
            // The others would wait for this lock for ever.
            stop(self.job.rank(), &error.to_string());
        }
    }
}
