//! Ping-pong: two processes (or two threads) send a message back and forth.
//!
//!     cargo run --release --example pingpong                 both sides in one process
//!     cargo run --release --example pingpong server          on one machine
//!     cargo run --release --example pingpong 192.0.2.1       on another

use ferroce::{Device, Error};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const ROUNDS: u32 = 10_000;

/// One side. Both run the same program, except for who begins.
fn play(mut socket: TcpStream, begins: bool) -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    // Packets leave from the address that the socket uses. The socket itself only makes the introduction.
    let address = socket.local_addr().expect("a connected socket has an address").ip();
    let qp = pd.rc(&cq).address(address).create()?;
    // A receive must be there before the peer sends, so it is posted before the peers meet.
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
        // While the NIC has a buffer we do not; so two of them take turns.
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
