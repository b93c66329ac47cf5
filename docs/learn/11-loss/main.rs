// 100 messages of several packets each, and one message that finds its receive late.

use ferroce::{Device, Error, Mtu};
use std::time::Duration;

const MESSAGES: u8 = 100;
const LENGTH: usize = 4000;

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let client = pd.rc(&client_cq).mtu(Mtu::B1024).create()?;
    let server = pd.rc(&server_cq).min_rnr_timer(12).mtu(Mtu::B1024).create()?;
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;

    let (mut bytes, mut room) = (pd.buffer(LENGTH)?, pd.buffer(4096)?);
    let mut in_order = true;
    for n in 0..MESSAGES {
        let received = server.recv(room)?;
        bytes.set(&[n; LENGTH])?;
        bytes = client.send(bytes)?.wait()?.buffer;
        room = received.wait()?.buffer;
        in_order &= *room == [n; LENGTH];
    }
    println!("{MESSAGES} messages arrived, {}", if in_order { "complete and in order" } else { "damaged" });

    // The server is late by 20 ms. The client's NIC repeats the message meanwhile.
    let late = client.send(bytes)?;
    std::thread::sleep(Duration::from_millis(20));
    let received = server.recv(room)?;
    late.wait()?;
    println!("client: SEND with a late receive: success");
    received.wait()?;
    Ok(())
}
