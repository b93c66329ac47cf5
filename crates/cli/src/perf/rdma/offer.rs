//! What each side sends about its queue pairs and its memory.

use super::super::handshake;
use super::streams::Address;
use crate::failure::Failure;
use ferroce::{Endpoint, RKey, RemoteRegion};
use serde::{Deserialize, Serialize};

/// Queue pairs and memory of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    /// One per queue pair, as text.
    endpoints: Vec<String>,
    /// Over iWARP the server has a listener instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    listener: Option<Address>,
    addr: u64,
    len: u64,
    rkey: u32,
}

impl Offer {
    /// Our side.
    pub(super) fn new(endpoints: impl Iterator<Item = Endpoint>, region: RemoteRegion) -> Offer {
        let endpoints = endpoints.map(|endpoint| endpoint.to_string()).collect();
        Offer { endpoints, listener: None, addr: region.addr, len: region.len, rkey: region.rkey.0 }
    }

    /// Our side over iWARP, with the listener of a server.
    pub(super) fn over_streams(listener: Option<Address>, region: RemoteRegion) -> Offer {
        Offer { listener, ..Offer::new(std::iter::empty(), region) }
    }

    /// The server's listener.
    pub(super) fn listener(&self) -> Result<Address, Failure> {
        self.listener.ok_or_else(|| Failure::new("the server offered no listener for an iWARP test"))
    }

    /// The other side's queue pairs; checked, since the peer is not trusted.
    pub(super) fn endpoints(&self, expected: usize) -> Result<Vec<Endpoint>, Failure> {
        if self.endpoints.len() != expected {
            return Err(Failure::new(format!(
                "the other side offered {} queue pairs instead of {expected}",
                self.endpoints.len()
            )));
        }
        let parse = |text: &String| {
            text.parse().map_err(|error| {
                Failure::new(format!("the other side offered no usable queue pair: {error}"))
            })
        };
        self.endpoints.iter().map(parse).collect()
    }

    /// The other side's memory.
    pub(super) fn region(&self) -> RemoteRegion {
        RemoteRegion { addr: self.addr, len: self.len, rkey: RKey(self.rkey) }
    }
}

/// The RDMA offer inside; an error for sockets.
pub(super) fn of_peer(offer: &handshake::Offer) -> Result<&Offer, Failure> {
    match offer {
        handshake::Offer::Rdma(offer) => Ok(offer),
        handshake::Offer::Socket { .. } => {
            Err(Failure::new("the other side offered a socket for an RDMA test"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: &str = "rc/127.0.0.1/0x01a2b3/psn=77/mtu=4096/rd=16/qkey=0x0";

    #[test]
    fn offers_round_trip_and_invalid_ones_are_refused() {
        let endpoint: Endpoint = ENDPOINT.parse().expect("an endpoint");
        let region = RemoteRegion { addr: u64::MAX - 9, len: 8, rkey: RKey(7) };
        let offer = Offer::new([endpoint].into_iter(), region);
        let text = serde_json::to_string(&offer).expect("JSON");
        let back: Offer = serde_json::from_str(&text).expect("our own JSON");
        assert_eq!((back.endpoints(1), back.region()), (Ok(vec![endpoint]), region));
        assert!(back.endpoints(2).is_err());
        let invalid: Offer =
            serde_json::from_str(&text.replace("127.0.0.1", "224.0.0.1")).expect("well-formed");
        assert!(invalid.endpoints(1).is_err());
    }
}
