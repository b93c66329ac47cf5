//! rping: the client offers a buffer, the server READs it and WRITEs it back to a second one.

use super::{Fallible, Options, accept, success};
use ferroce::{Connection, Connector, Cq, Device, Listener, Pd, RKey, Rc, RcQp, Region, RemoteRegion, wr};

/// An offer: address, key and size of a buffer, big-endian.
const OFFER: usize = 16;
const RECV: u64 = 1;
const SEND: u64 = 2;
const MOVE: u64 = 3;

pub(crate) fn run(device: &Device, words: &[String]) -> Fallible<()> {
    let (options, _) = Options::parse(words, "aCSp")?;
    let address = options.address('a', options.number('p', 7174)?)?;
    let (size, count) = (options.number('S', 64)?, options.number('C', 1)?);
    if options.has('s') { serve(device, address, size) } else { call(device, address, size, count) }
}

/// The state of one end.
struct End {
    cq: Cq,
    qp: RcQp,
    /// The received message, then the message to send.
    messages: Region,
    /// The offered buffer, and at the client the second buffer.
    buffers: [Region; 2],
}

impl End {
    fn new(device: &Device, size: usize) -> Fallible<End> {
        let (pd, cq): (Pd, Cq) = (device.alloc_pd()?, device.create_cq(32)?);
        let qp = pd.rc(&cq).depth(16, 2).create()?;
        let open = || pd.region(size).remote_read().remote_write().register();
        let end = End { messages: pd.region(2 * OFFER).register()?, buffers: [open()?, open()?], cq, qp };
        end.expect_message()?;
        Ok(end)
    }

    fn expect_message(&self) -> Fallible<()> {
        let sges = [self.messages.sge(..OFFER as u64)?];
        Ok(self.qp.post_recv(&[wr::recv(RECV, &sges)])?)
    }

    /// Sends a message that offers a buffer. The client ignores the offers of the server.
    fn offer(&self, buffer: &Region) -> Fallible<()> {
        let RemoteRegion { addr, len, rkey } = buffer.remote();
        self.messages.write(OFFER, &addr.to_be_bytes())?;
        self.messages.write(OFFER + 8, &rkey.0.to_be_bytes())?;
        self.messages.write(OFFER + 12, &(len as u32).to_be_bytes())?;
        Ok(self.qp.send_from(SEND, &[self.messages.sge(OFFER as u64..)?])?)
    }

    /// The next message. Skips completions of our sends.
    fn message(&self) -> Fallible<RemoteRegion> {
        while success(&self.cq)?.wr_id != RECV {}
        let mut bytes = [0; OFFER];
        self.messages.read(0, &mut bytes)?;
        let number = |part: &[u8]| part.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let (addr, rkey) = (number(&bytes[..8]), RKey(number(&bytes[8..12]) as u32));
        let offered = RemoteRegion { addr, rkey, len: number(&bytes[12..]) };
        self.expect_message()?;
        Ok(offered)
    }

    fn moved(&self) -> Fallible<()> {
        while success(&self.cq)?.wr_id != MOVE {}
        Ok(())
    }
}

fn call(device: &Device, to: std::net::SocketAddr, size: usize, count: usize) -> Fallible<()> {
    let end = End::new(device, size)?;
    let connection = Connector::new(device, to).connect(&end.qp)?;
    let [source, sink] = &end.buffers;
    for round in 0..count {
        let data = pattern(round, size);
        source.write(0, &data)?;
        sink.fill(0);
        end.offer(source)?;
        end.message()?;
        end.offer(sink)?;
        end.message()?;
        if sink.to_vec() != data {
            return Err(format!("round {round}: the server wrote other bytes than it read").into());
        }
        println!("ping data: {}", String::from_utf8_lossy(&data[..size.min(70)]));
    }
    connection.disconnect()?;
    let _ = connection.wait_event_timeout(super::MAX_WAIT)?;
    Ok(())
}

/// `rdma-ping-N: `, then letters, then a zero, as rping does.
fn pattern(round: usize, size: usize) -> Vec<u8> {
    let mut data = format!("rdma-ping-{round}: ").into_bytes();
    let letters = (0..).map(|at: usize| b'A' + ((at + round) % 58) as u8);
    data.extend(letters.take(size));
    data.truncate(size - 1);
    data.push(0);
    data
}

fn serve(device: &Device, at: std::net::SocketAddr, size: usize) -> Fallible<()> {
    let listener = Listener::bind(device, at)?;
    let end = End::new(device, size)?;
    let connection: Connection<Rc> = accept(&listener)?.accept(&end.qp, &[])?;
    let buffer = &end.buffers[0];
    let mut rounds = 0;
    // A client that is finished disconnects, which flushes the receive.
    while let Ok(offered) = end.message() {
        let sges = [buffer.sge(..offered.len)?];
        end.qp.read(MOVE, &sges, offered)?;
        end.moved()?;
        end.offer(buffer)?;
        let sink = end.message()?;
        end.qp.write(MOVE, &sges, sink)?;
        end.moved()?;
        end.offer(buffer)?;
        rounds += 1;
    }
    println!("{rounds} rounds, then {:?}", connection.wait_event_timeout(super::MAX_WAIT)?);
    if rounds == 0 { Err("the client offered nothing".into()) } else { Ok(()) }
}
