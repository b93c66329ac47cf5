// A connection by address and port, through the connection manager. The server is a thread.

use ferroce::{Connector, Device, Error, Listener};
use std::net::SocketAddr;

/// Private data is padded with zeros.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn serve(device: &Device, listener: &Listener) -> Result<(), Error> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let request = listener.accept()?;
    println!("server: a request with \"{}\"", text(request.private_data()));
    let qp = pd.rc(&cq).create()?;
    let received = qp.recv(pd.buffer(64)?)?;
    let connection = request.accept(&qp, b"welcome")?;
    println!("server: received {}", text(&received.wait()?.buffer));
    connection.wait_event()?;
    println!("server: disconnected");
    Ok(())
}

fn call(device: &Device, to: SocketAddr) -> Result<(), Error> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.rc(&cq).create()?;
    let connection = Connector::new(device, to).private_data(b"hello").connect(&qp)?;
    println!("client: connected, the server says \"{}\"", text(connection.private_data()));
    let mut message = pd.buffer(64)?;
    message.set(b"ping")?;
    qp.send(message)?.wait()?;
    connection.disconnect()
}

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let gids = device.gids();
    let address = gids.iter().map(|gid| gid.address).find(|address| address.is_ipv4());
    let listener = Listener::bind(&device, (address.expect("an IPv4 address"), 0).into())?;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&device, &listener));
        call(&device, listener.local_addr())?;
        server.join().expect("the server does not panic")
    })
}
