//! Ping-pong: two processes (or two threads) send a message back and forth.
//!
//!     cargo run --release --example pingpong                 both sides in one process
//!     cargo run --release --example pingpong server          on one machine
//!     cargo run --release --example pingpong 192.0.2.1       on another

use ferroce::{Device, Error};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const ROUNDS: u32 = 10_000;

/// One side. Both run the same code; `begins` selects the one that sends first.
fn play(mut socket: TcpStream, begins: bool) -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    // Packets are sent from the address of the socket. The socket only exchanges the endpoints.
    let address = socket.local_addr().expect("a connected socket has an address").ip();
    let qp = pd.rc(&cq).address(address).create()?;
    // A receive must be posted before the peer sends, so it is posted before the connection.
    let mut next = qp.recv(pd.buffer(64)?)?;
    qp.connect_over(&mut socket)?;

    let start = Instant::now();
    let mut spare = pd.buffer(64)?;
    if begins {
        spare.set(b"ping")?;
        spare = qp.send(spare)?.wait()?.buffer;
    }
    for round in 1..=ROUNDS {
        let ball = next.wait()?.buffer;
        assert_eq!(&*ball, b"ping");
        if begins && round == ROUNDS {
            let half_us = start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * ROUNDS);
            println!("{half_us:.2} us for half a round trip");
            break;
        }
        // The NIC owns a posted buffer, so two buffers alternate.
        next = qp.recv(spare)?;
        spare = qp.send(ball)?.wait()?.buffer;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("server") => play(TcpListener::bind(("::", 18515))?.accept()?.0, false)?,
        Some(host) => play(TcpStream::connect((host, 18515))?, true)?,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let socket = TcpStream::connect(listener.local_addr()?)?;
            let server = std::thread::spawn(move || play(listener.accept().expect("a client").0, false));
            play(socket, true)?;
            server.join().expect("the server panicked")?;
        }
    }
    Ok(())
}
