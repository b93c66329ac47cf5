//! How two queue pairs meet.

use super::builder::Settings;
use super::{Connected, Qp};
use crate::endpoint::{BadEndpoint, Endpoint};
use crate::error::Error;
use ferroce_nic::RejectReason;
use ferroce_proto::verbs::{AddressVector, AttrMask, QpAttr, QpState, Transport};
use std::io::{self, Read, Write};

/// Why a connection did not come about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket failed.
    #[error("connecting: {0}")]
    Socket(#[from] io::Error),
    /// The peer hung up before the connection was made: it could not make its side.
    #[error("connecting: the peer gave up")]
    PeerGaveUp,
    /// The peer sent something else than an endpoint.
    #[error("connecting: the peer sent no usable endpoint: {0}")]
    Endpoint(#[from] BadEndpoint),
    /// The other side refused the offer.
    #[error("connecting: refused, reason {reason}")]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What its program sent along; zeros behind what it gave.
        private_data: Vec<u8>,
    },
    /// The other side does not answer.
    #[error("connecting: no answer")]
    Unreachable,
    /// The peer's queue pair is of another kind.
    #[error("connecting: the peer's queue pair is {theirs:?}, ours is {ours:?}")]
    Transport {
        /// Ours.
        ours: Transport,
        /// The peer's.
        theirs: Transport,
    },
}

/// What each side says when it can receive.
const READY: u8 = b'R';

impl<T: Connected> Qp<T> {
    /// Connects to a peer whose endpoint came in whatever way, and which gets ours the same way. The first message
    /// may be sent when the peer is connected too, not earlier.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        if peer.transport != T::TRANSPORT {
            return Err(ConnectError::Transport { ours: T::TRANSPORT, theirs: peer.transport }.into());
        }
        let ours = self.endpoint()?;
        let settings = &self.core().settings;
        let (rtr, rtr_mask) = ready_to_receive(settings, &ours, peer);
        self.modify(&rtr, rtr_mask)?;
        let (rts, rts_mask) = ready_to_send(settings, &ours, peer);
        self.modify(&rts, rts_mask)
    }

    /// Connects to the peer at the other end of `stream`, which does the same: exchanges endpoints and returns when
    /// both sides can receive. Use a socket with a read timeout where the peer may not answer. The stream can be used
    /// for other things afterwards.
    pub fn connect_over(&self, stream: &mut (impl Read + Write)) -> Result<Endpoint, Error> {
        exchange(stream, &self.endpoint()?.to_bytes())
            .and_then(|theirs| Ok(Endpoint::from_bytes(&theirs)?))
            .map_err(Error::from)
            .and_then(|peer| {
                self.connect(&peer)?;
                match exchange(stream, &[READY])? {
                    [READY] => Ok(peer),
                    _ => Err(ConnectError::Endpoint(BadEndpoint::NotAnEndpoint).into()),
                }
            })
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
    if ours.transport == Transport::Rc {
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
        // No more than the peer keeps resources for: it would refuse them.
        max_rd_atomic: settings.rd_atomic.min(peer.rd_atomic),
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
    if ours.transport == Transport::Rc {
        mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    }
    (attr, mask)
}
