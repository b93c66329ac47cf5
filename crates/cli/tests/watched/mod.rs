//! A NIC of the test process that the command watches.

// Each test program uses its own part of this.
#![allow(dead_code)]

use ferroce_nic::{Config, Cq, Nic, Pd, Qp, QpInit};
use std::sync::Arc;

/// A NIC of this process with a queue pair.
pub(crate) struct Watched {
    pub(crate) qp: Qp,
    _cq: Cq,
    _pd: Arc<Pd>,
    pub(crate) nic: Nic,
}

impl Watched {
    pub(crate) fn open(addr: &str) -> Watched {
        let addresses = Some(vec![addr.parse().expect("an address")]);
        let nic = Nic::open(Config::default().with(|c| c.addresses = addresses)).expect("the device opens");
        let pd = nic.alloc_pd().expect("a domain");
        let cq = nic.create_cq(16, None, 0).expect("a queue");
        let transport = ferroce_proto::verbs::Transport::Rc;
        let cap = Default::default();
        let init = QpInit { transport, send_cq: &cq, recv_cq: &cq, srq: None, cap, signal_all: false };
        let qp = pd.create_qp(&init).expect("a queue pair");
        Watched { qp, _cq: cq, _pd: pd, nic }
    }

    /// As the table shows it.
    pub(crate) fn qpn(&self) -> String {
        format!("{:#08x}", self.qp.qpn().value())
    }

    /// As the page names it.
    pub(crate) fn id(&self) -> String {
        format!("{}.{}.{}", std::process::id(), self.nic.slot(), self.qp.qpn().value())
    }
}
