//! Creating queue pairs.

use super::connect::Settings;
use super::{Cleanup, Core, Qp, Receives, Reliable, SendHalf, Service};
use crate::cq::Cq;
use crate::device::Device;
use crate::error::Error;
use crate::macros::setters;
use crate::pd::Pd;
use crate::srq::Srq;
use ferroce_nic::QpInit;
use ferroce_proto::cc::Choice as Congestion;
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
    congestion: Option<Congestion>,
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
            congestion: None,
            settings: Settings::random(),
            transport: PhantomData,
        }
    }

    setters! {
        /// Most outstanding sends and most outstanding receives; 128 each.
        depth(sends: u32, recvs: u32) |b| (b.cap.max_send_wr, b.cap.max_recv_wr) = (sends, recvs);
        /// Most scatter/gather entries of a send and of a receive; 4 each.
        sges(send: u32, recv: u32) |b| (b.cap.max_send_sge, b.cap.max_recv_sge) = (send, recv);
        /// Most bytes of an inline send; 64.
        inline(bytes: u32) |b| b.cap.max_inline_data = bytes;
        /// Whether every send produces a completion (the default), or only those with [`SIGNALED`](crate::SendFlags::SIGNALED).
        signal_all(yes: bool) |b| b.signal_all = yes;
        /// Local address, which must be in the GID table. Typically that of the socket that connected the peers.
        address(address: IpAddr) |b| b.address = Some(address);
        /// Entry of the GID table; 0.
        gid_index(index: u8) |b| (b.settings.gid_index, b.address) = (index, None);
        /// Largest path MTU; the default is that of the interface of the address.
        mtu(mtu: Mtu) |b| b.settings.mtu = Some(mtu);
        /// First sequence number; random.
        psn(psn: Psn) |b| b.settings.psn = psn;
        /// Traffic class (TOS) of its packets; 0.
        traffic_class(class: u8) |b| b.settings.traffic_class = class;
        /// Hop limit (TTL) of its packets; 64.
        hop_limit(limit: u8) |b| b.settings.hop_limit = limit;
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
        if let Some(congestion) = &self.congestion {
            nic.set_congestion(congestion).map_err(Error::in_call("create_qp"))?;
        }
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
            Some((attribute, _)) => Err(Error::invalid("create_qp", attribute, "belongs to another device")),
        }
    }
}

impl<T: Receives> QpBuilder<T> {
    setters! {
        /// Completion queue of receives; the default is that of sends.
        recv_cq(cq: &Cq) |b| b.recv_cq = cq.clone();
        /// Takes receives from a shared receive queue.
        srq(srq: &Srq) |b| b.srq = Some(srq.clone());
    }
}

impl<T: super::Connected> QpBuilder<T> {
    setters! {
        /// Congestion control: `"dcqcn-paper,line_rate=10Gb/s".parse()?`; the default is that of the device. If it uses ECN,
        /// [`Config::ecn`](crate::Config) must be set.
        congestion(choice: Congestion) |b| b.congestion = Some(choice);
        /// Operations that the peer may execute, as far as regions allow them too; all by default.
        access(access: Access) |b| b.settings.access = access;
    }
}

impl<T: Reliable> QpBuilder<T> {
    setters! {
        /// Outstanding READs and atomics in each direction; 16.
        rd_atomic(count: u8) |b| b.settings.rd_atomic = count;
        /// Time without an acknowledgement before a retry: 4.096 us * 2^n, 0 for infinite; 14 (67 ms).
        timeout(exponent: u8) |b| b.settings.timeout = exponent;
        /// Retries without an acknowledgement; 7.
        retries(count: u8) |b| b.settings.retry_cnt = count;
        /// Retries after RNR NAKs, 7 for infinite; 7.
        rnr_retries(count: u8) |b| b.settings.rnr_retry = count;
    }
}

impl QpBuilder<super::Rc> {
    setters! {
        /// Time that the peer waits after an RNR NAK, as a code of the RNR timer table; 1 (10 us).
        min_rnr_timer(code: u8) |b| b.settings.min_rnr_timer = code;
    }
}

impl QpBuilder<super::Ud> {
    setters! {
        /// Q_Key that datagrams must carry; 0x11111111.
        qkey(qkey: Qkey) |b| b.settings.qkey = qkey;
    }
}

impl<T: Service> Qp<T> {
    /// Moves to the last state that requires no peer: INIT, or RTS for datagrams.
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
