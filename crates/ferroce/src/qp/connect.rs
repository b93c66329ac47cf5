//! Connecting queue pairs without the connection manager.

use super::{HasPeer, Qp};
use crate::device::Device;
use crate::endpoint::{BadEndpoint, Endpoint};
use crate::error::Error;
use ferroce_nic::RejectReason;
use ferroce_proto::verbs::{Access, AddressVector, AttrMask, Mtu, QpAttr, QpState, Transport};
use ferroce_proto::{Psn, Qkey, Qpn};
use std::io::{self, Read, Write};

/// Why a connection was not established.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error("connecting: {0}")]
    Socket(#[from] io::Error),
    /// The peer closed the stream before it was connected.
    #[error("connecting: the peer closed the stream before it was connected")]
    PeerGaveUp,
    /// The peer sent no valid endpoint.
    #[error("connecting: the peer sent no valid endpoint: {0}")]
    Endpoint(#[from] BadEndpoint),
    /// The peer rejected the connection request.
    #[error("connecting: the peer rejected the request, reason {reason}")]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// Private data of the peer, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    #[error("connecting: the peer does not answer")]
    Unreachable,
    /// The transports of the two queue pairs do not match.
    #[error("connecting: the peer's queue pair is {theirs:?}, ours is {ours:?}")]
    Transport {
        /// Ours.
        ours: Transport,
        /// The peer's.
        theirs: Transport,
    },
}

/// The message that each side sends when it can receive.
const READY: u8 = b'R';

/// Attributes that are set when the queue pair is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) gid_index: u8,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) psn: Psn,
    pub(crate) qkey: Qkey,
    pub(crate) access: Access,
    pub(crate) rd_atomic: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

impl Settings {
    pub(crate) fn random() -> Self {
        Settings {
            gid_index: 0,
            mtu: None,
            // A predictable sequence number would let third parties inject packets.
            psn: Psn::new(rand::random()),
            qkey: Qkey(0x1111_1111),
            access: Access::LOCAL_WRITE | Access::REMOTE,
            rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    pub(crate) fn endpoint(
        &self,
        transport: Transport,
        qpn: Qpn,
        device: &Device,
    ) -> Result<Endpoint, Error> {
        let (index, gids) = (usize::from(self.gid_index), device.gids());
        let no_such_gid = ferroce_nic::Error::NoSuchGid { index, len: gids.len() };
        let entry = gids.get(index).ok_or_else(|| Error::in_call("endpoint")(no_such_gid))?;
        let carried = device.path_mtu(self.gid_index);
        Ok(Endpoint {
            transport,
            gid: entry.gid,
            qpn,
            psn: self.psn,
            mtu: self.mtu.map_or(carried, |wish| wish.min(carried)),
            rd_atomic: self.rd_atomic,
            qkey: self.qkey,
        })
    }
}

impl<T: HasPeer> Qp<T> {
    /// Connects to the peer with this endpoint. The peer connects to our [`endpoint`](Qp::endpoint). The program exchanges the
    /// endpoints. Send the first message after the peer has connected too.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        let settings = &self.core().settings;
        to_peer(settings, &self.endpoint()?, peer, |attr, mask| self.modify(attr, mask))
    }

    /// Connects to the peer at the other end of `stream`, which calls this too: exchanges endpoints, and returns when
    /// both sides can receive. Use a socket with a read timeout if the peer may not answer. The stream can be used
    /// for other purposes afterwards.
    pub fn connect_over(&self, stream: &mut (impl Read + Write)) -> Result<Endpoint, Error> {
        over(stream, &self.endpoint()?, |peer| self.connect(peer))
    }
}

/// Moves a queue pair to RTR and RTS.
pub(crate) fn to_peer(
    settings: &Settings,
    ours: &Endpoint,
    peer: &Endpoint,
    modify: impl Fn(&QpAttr, AttrMask) -> Result<(), Error>,
) -> Result<(), Error> {
    if peer.transport != peer_of(ours.transport) {
        return Err(ConnectError::Transport { ours: ours.transport, theirs: peer.transport }.into());
    }
    let (rtr, rtr_mask) = ready_to_receive(settings, ours, peer);
    modify(&rtr, rtr_mask)?;
    let (rts, rts_mask) = ready_to_send(settings, ours, peer);
    modify(&rts, rts_mask)
}

/// The transport at the other end of a connection.
fn peer_of(transport: Transport) -> Transport {
    match transport {
        Transport::XrcIni => Transport::XrcTgt,
        Transport::XrcTgt => Transport::XrcIni,
        same => same,
    }
}

/// Exchanges endpoints over a stream, connects, and waits until the peer has connected.
pub(crate) fn over(
    stream: &mut (impl Read + Write),
    ours: &Endpoint,
    connect: impl Fn(&Endpoint) -> Result<(), Error>,
) -> Result<Endpoint, Error> {
    let theirs = exchange(stream, &ours.to_bytes())?;
    let peer = Endpoint::from_bytes(&theirs).map_err(ConnectError::from)?;
    connect(&peer)?;
    match exchange(stream, &[READY])? {
        [READY] => Ok(peer),
        _ => Err(ConnectError::Endpoint(BadEndpoint::NotAnEndpoint).into()),
    }
}

/// Sends our message and receives the peer's, which has the same length.
fn exchange<const N: usize>(
    stream: &mut (impl Read + Write),
    ours: &[u8; N],
) -> Result<[u8; N], ConnectError> {
    let gave_up = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            ConnectError::PeerGaveUp
        }
        _ => ConnectError::Socket(error),
    };
    let mut theirs = [0; N];
    stream.write_all(ours).and_then(|()| stream.flush()).map_err(gave_up)?;
    stream.read_exact(&mut theirs).map_err(gave_up)?;
    Ok(theirs)
}

fn ready_to_receive(settings: &Settings, ours: &Endpoint, peer: &Endpoint) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: ours.mtu.min(peer.mtu),
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        max_dest_rd_atomic: settings.rd_atomic,
        min_rnr_timer: settings.min_rnr_timer,
        av: AddressVector {
            dgid: peer.gid,
            sgid_index: settings.gid_index,
            hop_limit: settings.hop_limit,
            traffic_class: settings.traffic_class,
            port: 1,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    };
    let mut mask =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    if ours.transport != Transport::Uc {
        mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    }
    (attr, mask)
}

fn ready_to_send(settings: &Settings, ours: &Endpoint, peer: &Endpoint) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: ours.psn,
        timeout: settings.timeout,
        retry_cnt: settings.retry_cnt,
        rnr_retry: settings.rnr_retry,
        // Limited to the responder resources of the peer, which would refuse more.
        max_rd_atomic: settings.rd_atomic.min(peer.rd_atomic),
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
    if ours.transport != Transport::Uc {
        mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    }
    (attr, mask)
}
