//! A connection by address and port, with private data, through the connection manager.
//!
//! Without arguments both sides run here. `connect listen [ADDRESS:PORT]` and `connect to ADDRESS:PORT` are the two sides
//! on two machines.

use ferroce::{Connector, Device, Error, Listener};
use std::net::SocketAddr;

fn serve(listener: &Listener, device: &Device) -> Result<(), Error> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let request = listener.accept()?;
    println!("{} says: {}", request.peer_addr(), text(request.private_data()));
    let qp = pd.rc(&cq).create()?;
    let received = qp.recv(pd.buffer(64)?)?;
    let connection = request.accept(&qp, b"come in")?;
    println!("received: {}", text(&received.wait()?.buffer));
    println!("{connection:?}: {:?}", connection.wait_event()?);
    Ok(())
}

fn call(to: SocketAddr, device: &Device) -> Result<(), Error> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.rc(&cq).create()?;
    let connection = Connector::new(device, to).private_data(b"anybody there?").connect(&qp)?;
    println!("{to} says: {}", text(connection.private_data()));
    let mut message = pd.buffer(64)?;
    message.set(b"hello over RDMA")?;
    qp.send(message)?.wait()?;
    connection.disconnect()?;
    connection.wait_event()?;
    Ok(())
}

/// Private data is padded with zeros.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["to", address] => call(address.parse()?, &device)?,
        ["listen", ref rest @ ..] => {
            let address = rest.first().unwrap_or(&"0.0.0.0:7471");
            let listener = Listener::bind(&device, address.parse()?)?;
            println!("listening on {}", listener.local_addr());
            serve(&listener, &device)?;
        }
        _ => {
            let listener = Listener::bind(&device, "127.0.0.1:0".parse()?)?;
            let to = listener.local_addr();
            std::thread::scope(|scope| {
                let server = scope.spawn(|| serve(&listener, &device));
                call(to, &device)?;
                server.join().expect("the server does not panic")
            })?;
        }
    }
    Ok(())
}
