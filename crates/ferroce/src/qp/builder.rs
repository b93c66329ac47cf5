//! Making queue pairs.

use super::connect::Settings;
use super::{Cleanup, Core, Qp, Receives, Reliable, SendHalf, Service};
use crate::cq::Cq;
use crate::device::Device;
use crate::error::Error;
use crate::pd::Pd;
use crate::srq::Srq;
use ferroce_nic::QpInit;
use ferroce_proto::verbs::{Access, AttrMask, Mtu, QpAttr, QpCap, QpState, Transport};
use ferroce_proto::{Psn, Qkey};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

/// Settings of a queue pair. Made by [`Pd::rc`], [`Pd::uc`], [`Pd::ud`] and [`Pd::xrc`]. Every setting has a working default.
#[must_use = "`create` creates the queue pair"]
pub struct QpBuilder<T> {
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    cap: QpCap,
    signal_all: bool,
    address: Option<IpAddr>,
    settings: Settings,
    transport: PhantomData<T>,
}

impl<T: Service> QpBuilder<T> {
    pub(crate) fn new(pd: &Pd, cq: &Cq) -> Self {
        QpBuilder {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            signal_all: true,
            address: None,
            settings: Settings::random(),
            transport: PhantomData,
        }
    }

    /// Most outstanding sends and most outstanding receives; 128 each.
    pub fn depth(mut self, sends: u32, recvs: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (sends, recvs);
        self
    }
    /// Most scatter/gather entries of a send and of a receive; 4 each.
    pub fn sges(mut self, send: u32, recv: u32) -> Self {
        (self.cap.max_send_sge, self.cap.max_recv_sge) = (send, recv);
        self
    }
    /// Most bytes of an inline send; 64.
    pub fn inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }
    /// Whether every send produces a completion (the default), or only those with [`SIGNALED`](crate::SendFlags::SIGNALED).
    pub fn signal_all(mut self, yes: bool) -> Self {
        self.signal_all = yes;
        self
    }
    /// Local address, which must be in the GID table. Typically that of the socket that connected the peers.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }
    /// Entry of the GID table; 0.
    pub fn gid_index(mut self, index: u8) -> Self {
        (self.settings.gid_index, self.address) = (index, None);
        self
    }
    /// Largest path MTU; the default is that of the interface of the address.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.settings.mtu = Some(mtu);
        self
    }
    /// First sequence number; random.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.settings.psn = psn;
        self
    }
    /// Traffic class (TOS) of its packets; 0.
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.settings.traffic_class = class;
        self
    }
    /// Hop limit (TTL) of its packets; 64.
    pub fn hop_limit(mut self, limit: u8) -> Self {
        self.settings.hop_limit = limit;
        self
    }

    /// Creates the queue pair: a connected one in INIT, where receives can be posted already, a datagram one in RTS.
    pub fn create(mut self) -> Result<Qp<T>, Error> {
        if let Some(address) = self.address {
            self.settings.gid_index = self.pd.device.gid_index(address)?;
        }
        self.check_devices()?;
        let init = QpInit {
            transport: T::TRANSPORT,
            send_cq: self.send_cq.nic(),
            recv_cq: self.recv_cq.nic(),
            srq: self.srq.as_ref().map(Srq::nic),
            cap: self.cap,
            signal_all: self.signal_all,
        };
        let nic = self.pd.nic.create_qp(&init).map_err(Error::in_call("create_qp"))?;
        let cleanup =
            Cleanup { qpn: nic.qpn(), send_cq: self.send_cq.clone(), recv_cq: self.recv_cq.clone() };
        let core = Core {
            nic,
            cleanup,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            _srq: self.srq,
            settings: self.settings,
        };
        let qp = Qp { send: SendHalf { core: Arc::new(core), transport: PhantomData } };
        qp.start()?;
        Ok(qp)
    }

    fn check_devices(&self) -> Result<(), Error> {
        let own = |device: &Device| device.is(&self.pd.device);
        let foreign = [
            ("send_cq", own(self.send_cq.device())),
            ("recv_cq", own(self.recv_cq.device())),
            ("srq", self.srq.as_ref().is_none_or(|srq| own(&srq.pd().device))),
        ];
        match foreign.into_iter().find(|(_, own)| !own) {
            None => Ok(()),
            Some((attribute, _)) => {
                let why = "belongs to another device";
                Err(Error::in_call("create_qp")(ferroce_nic::Error::Invalid { attribute, why }))
            }
        }
    }
}

impl<T: Receives> QpBuilder<T> {
    /// Completion queue of receives; the default is that of sends.
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = cq.clone();
        self
    }
    /// Takes receives from a shared receive queue.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }
}

impl<T: super::Connected> QpBuilder<T> {
    /// Operations that the peer may execute, as far as regions allow them too; all by default.
    pub fn access(mut self, access: Access) -> Self {
        self.settings.access = access;
        self
    }
}

impl<T: Reliable> QpBuilder<T> {
    /// Outstanding READs and atomics in each direction; 16.
    pub fn rd_atomic(mut self, count: u8) -> Self {
        self.settings.rd_atomic = count;
        self
    }
    /// Time without an acknowledgement before a retry: 4.096 us * 2^n, 0 for infinite; 14 (67 ms).
    pub fn timeout(mut self, exponent: u8) -> Self {
        self.settings.timeout = exponent;
        self
    }
    /// Retries without an acknowledgement; 7.
    pub fn retries(mut self, count: u8) -> Self {
        self.settings.retry_cnt = count;
        self
    }
    /// Retries after RNR NAKs, 7 for infinite; 7.
    pub fn rnr_retries(mut self, count: u8) -> Self {
        self.settings.rnr_retry = count;
        self
    }
}

impl QpBuilder<super::Rc> {
    /// Time that the peer waits after an RNR NAK, as a code of the RNR timer table; 1 (10 us).
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.settings.min_rnr_timer = code;
        self
    }
}

impl QpBuilder<super::Ud> {
    /// Q_Key that datagrams must carry; 0x11111111.
    pub fn qkey(mut self, qkey: Qkey) -> Self {
        self.settings.qkey = qkey;
        self
    }
}

impl<T: Service> Qp<T> {
    /// Moves to the last state that needs no peer.
    fn start(&self) -> Result<(), Error> {
        let Settings { qkey, access, psn, .. } = self.core().settings;
        let to = |state| QpAttr { state, port: 1, qkey, access, sq_psn: psn, ..QpAttr::default() };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
        if T::TRANSPORT != Transport::Ud {
            return self.modify(&to(QpState::Init), init | AttrMask::ACCESS_FLAGS);
        }
        self.modify(&to(QpState::Init), init | AttrMask::QKEY)?;
        self.modify(&to(QpState::Rtr), AttrMask::STATE)?;
        self.modify(&to(QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN)
    }
}
