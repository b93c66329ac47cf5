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
        let heard = qp.recv(pd.buffer(256)?)?;
        listeners.push((qp, heard));
    }

    // Sending needs no membership, only the group's address and key. It leaves from loopback, so that an example does
    // not speak to the whole network.
    let speaker = pd.ud(&cq).create()?;
    let loopback = device.gid_index(Ipv4Addr::LOCALHOST.into())?;
    let group = pd.address_handle(&Endpoint::multicast(GROUP, KEY), loopback)?;
    let mut message = pd.buffer(256)?;
    message.set(b"hear, hear")?;
    for (number, (_, heard)) in listeners.iter_mut().enumerate() {
        loop {
            match heard.settle_timeout(Duration::from_millis(100)) {
                Ok(done) => {
                    println!("listener {number} heard: {}", String::from_utf8_lossy(&done.ok()?.buffer));
                    break;
                }
                // Said once for all of them, and again if somebody missed it.
                Err(Error::TimedOut) => message = speaker.send(message, &group)?.wait()?.buffer,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
