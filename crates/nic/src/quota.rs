//! How many objects of a kind a device has. The attributes of the device state the limit, so it must hold.

use crate::error::Error;
use crate::limits::{DeviceLimits, MAX_OBJECTS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The objects of one kind.
pub(crate) struct Quota {
    what: &'static str,
    limit: u32,
    used: Arc<AtomicU32>,
}

/// One of them. Dropping this frees it.
pub(crate) struct Permit(Arc<AtomicU32>);

impl Quota {
    fn new(what: &'static str, limit: u32) -> Quota {
        Quota { what, limit, used: Arc::default() }
    }

    /// Takes one.
    pub(crate) fn take(&self) -> Result<Permit, Error> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.used.clone());
        if used < self.limit {
            Ok(permit)
        } else {
            Err(Error::Exhausted { what: self.what, limit: self.limit.into() })
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All kinds.
pub(crate) struct Quotas {
    pub(crate) pds: Quota,
    pub(crate) cqs: Quota,
    pub(crate) srqs: Quota,
    pub(crate) address_handles: Quota,
    pub(crate) work_queues: Quota,
    pub(crate) multicast: Quota,
}

impl Quotas {
    /// The counts of live objects that a program should destroy.
    pub(crate) fn counts(&self) -> Vec<(&'static str, Arc<AtomicU32>)> {
        let kinds = [&self.pds, &self.cqs, &self.srqs, &self.address_handles, &self.work_queues];
        kinds.map(|quota| (quota.what, quota.used.clone())).into()
    }
}

impl Quotas {
    /// Of a device with these limits.
    pub(crate) fn new(limits: &DeviceLimits) -> Self {
        Quotas {
            pds: Quota::new("protection domains", limits.max_pd),
            cqs: Quota::new("completion queues", limits.max_cq),
            srqs: Quota::new("shared receive queues", limits.max_srq),
            address_handles: Quota::new("address handles", limits.max_ah),
            work_queues: Quota::new("work queues", MAX_OBJECTS),
            multicast: Quota::new("attachments to multicast groups", MAX_OBJECTS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Nic};
    use ferroce_proto::verbs::AddressVector;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let quota = Quota::new("things", 2);
        let [_first, second] = [quota.take().unwrap(), quota.take().unwrap()];
        for _ in 0..2 {
            let refused = quota.take().map(drop).unwrap_err();
            assert_eq!(refused.to_string(), "all 2 things of the device are in use");
        }
        drop(second);
        assert!(quota.take().is_ok());
    }
    /// So many objects would take gigabytes, so all but one are only counted.
    #[test]
    fn every_kind_has_its_limit() {
        let addresses = Some(vec!["127.91.48.2".parse().unwrap()]);
        let nic = Nic::open(Config { addresses, ..Config::default() }).unwrap();
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(1, None, 0).unwrap());
        let vector = AddressVector { dgid: nic.gids()[0].gid, ..AddressVector::default() };
        let quotas = &nic.inner().quotas;
        let limits = |quota: &Quota, create: &dyn Fn() -> Result<(), Error>| {
            let counted = MAX_OBJECTS - 1 - quota.used.load(Ordering::Relaxed);
            quota.used.fetch_add(counted, Ordering::Relaxed);
            create().unwrap();
            let last = quota.take().unwrap();
            let refused = create().unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("all {MAX_OBJECTS} {} of the device are in use", quota.what)
            );
            drop(last);
            quota.used.fetch_sub(counted, Ordering::Relaxed);
        };
        limits(&quotas.pds, &|| nic.alloc_pd().map(drop));
        limits(&quotas.cqs, &|| nic.create_cq(1, None, 0).map(drop));
        limits(&quotas.srqs, &|| pd.create_srq(1, 1).map(drop));
        limits(&quotas.address_handles, &|| pd.create_address_handle(&vector).map(drop));
        limits(&quotas.work_queues, &|| pd.create_wq(1, 1, &cq).map(drop));
    }
}
