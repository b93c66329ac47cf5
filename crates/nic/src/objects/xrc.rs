//! Creation of XRC domains and of their receiving ends.

use super::pd::Pd;
use super::qp::{Parts, Qp};
use crate::engine::QpQueues;
use crate::error::Error;
use crate::nic::Nic;
use crate::queues::CqCore;
use crate::xrc::{XrcDomain, XrcKey};
use ferroce_proto::verbs::{QpCap, Transport};
use ferroce_proto::{PdId, Qpn};
use std::sync::{Arc, Weak};

impl Nic {
    /// Creates a private XRC domain, which cannot be opened by a key.
    pub fn alloc_xrc_domain(&self) -> Result<Arc<XrcDomain>, Error> {
        self.inner().only_on_roce("XRC domains")?;
        Ok(self.new_xrc_domain())
    }

    /// The XRC domain of this key, if it is open.
    pub fn find_xrc_domain(&self, key: XrcKey) -> Option<Arc<XrcDomain>> {
        self.inner().xrc_domains.by_key.lock().get(&key)?.upgrade()
    }

    /// The XRC domain of this key, created if it is not open; and whether it was created.
    pub fn open_xrc_domain(&self, key: XrcKey) -> Result<(Arc<XrcDomain>, bool), Error> {
        self.inner().only_on_roce("XRC domains")?;
        let mut by_key = self.inner().xrc_domains.by_key.lock();
        if let Some(domain) = by_key.get(&key).and_then(Weak::upgrade) {
            return Ok((domain, false));
        }
        by_key.retain(|_, domain| domain.strong_count() > 0);
        let domain = self.new_xrc_domain();
        by_key.insert(key, Arc::downgrade(&domain));
        Ok((domain, true))
    }

    fn new_xrc_domain(&self) -> Arc<XrcDomain> {
        let (armed, events) = (self.engine().device.armed.clone(), self.event_queue().clone());
        let no_cq = CqCore::new(self.inner().next_id(), 0, 1, None, armed, events, self.inner().watch);
        XrcDomain::new(self.inner().next_id(), self.inner().clone(), no_cq)
    }
}

impl XrcDomain {
    /// Creates the receiving end of an extended reliable connection, in RESET; its events go to `device`. It has no protection domain and no
    /// completion queue: each request contains the number of a shared receive queue of this domain, which has both.
    pub fn create_target(self: &Arc<Self>, device: &Nic) -> Result<Qp, Error> {
        let nic = device.inner();
        nic.alive()?;
        self.check_device(device)?;
        let (no_cq, pd) = (self.no_cq(), domain_of_its_own(device));
        let parts = Parts {
            transport: Transport::XrcTgt,
            queues: QpQueues { send_cq: no_cq.clone(), recv_cq: no_cq, srq: None },
            cap: QpCap::default(),
            signal_all: false,
            srq_pd: None,
        };
        pd.insert_qp(parts, Some(self.clone()))
    }

    fn check_device(&self, device: &Nic) -> Result<(), Error> {
        match self.belongs_to(device.inner()) {
            true => Ok(()),
            false => Err(Error::Invalid { attribute: "xrcd", why: "belongs to another device" }),
        }
    }

    /// Another handle of a receiving end of this domain. The queue pair lives until its last handle is dropped, and
    /// each handle gets its own events, through `device`.
    pub fn open_qp(self: &Arc<Self>, device: &Nic, qpn: Qpn) -> Result<Qp, Error> {
        let nic = device.inner();
        nic.alive()?;
        self.check_device(device)?;
        let unknown = Error::Invalid { attribute: "qpn", why: "no receiving end of this XRC domain has it" };
        let core = nic.engine.qps.get(qpn).filter(|core| core.xrc_domain == Some(self.id()));
        let Some(core) = core else { return Err(unknown) };
        let handle = nic.next_id();
        if !core.open_handle(handle, device.event_queue().clone()) {
            return Err(unknown);
        }
        let pd = domain_of_its_own(device);
        let engine = nic.engine.clone();
        Ok(Qp::new(core, engine, pd, Transport::XrcTgt, handle, Some(self.clone())))
    }
}

/// An internal protection domain for a receiving end, which belongs to none.
fn domain_of_its_own(device: &Nic) -> Arc<Pd> {
    let nic = device.inner();
    Arc::new(Pd {
        id: PdId(nic.next_id()),
        nic: nic.clone(),
        events: device.event_queue().clone(),
        permit: None,
    })
}
