//! Multicast: one datagram, several receivers.
//!
//!     cargo run --release --example multicast

use ferroce::{Device, Endpoint, Error, Qkey};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 18, 51, 5));
const KEY: Qkey = Qkey(0x0bad_cafe);
const LISTENERS: usize = 3;

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let mut listeners = Vec::new();
    for _ in 0..LISTENERS {
        let qp = pd.ud(&cq).qkey(KEY).create()?;
        qp.join(GROUP)?;
        let received = qp.recv(pd.buffer(256)?)?;
        listeners.push((qp, received));
    }

    // A sender need not be a member. It needs the group's address and Q_Key. This one sends from loopback, so that the example
    // sends nothing to the network.
    let sender = pd.ud(&cq).create()?;
    let loopback = device.gid_index(Ipv4Addr::LOCALHOST.into())?;
    let group = pd.address_handle(&Endpoint::multicast(GROUP, KEY), loopback)?;
    let mut message = pd.buffer(256)?;
    message.set(b"hello, group")?;
    for (number, (_, received)) in listeners.iter_mut().enumerate() {
        loop {
            match received.settle_timeout(Duration::from_millis(100)) {
                Ok(done) => {
                    println!("listener {number} received: {}", String::from_utf8_lossy(&done.ok()?.buffer));
                    break;
                }
                // One datagram reaches all receivers. It is sent again if one of them missed it.
                Err(Error::TimedOut) => message = sender.send(message, &group)?.wait()?.buffer,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
