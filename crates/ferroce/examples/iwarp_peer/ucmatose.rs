//! ucmatose: several connections, and on each of them messages from the server, then from the client.

use super::{Fallible, Options, accept, success};
use ferroce::{Connection, Connector, Cq, Device, Listener, Rc, RcQp, Region, wr};

/// Its receives, and its sends.
const RECV: u64 = 1;
const SEND: u64 = 2;

pub(crate) fn run(device: &Device, words: &[String]) -> Fallible<()> {
    let (options, _) = Options::parse(words, "sbpcCSt")?;
    let port = options.number('p', 7471)?;
    let (connections, messages) = (options.number('c', 1)?, options.number('C', 10)?);
    let nodes: Result<Vec<Node>, _> =
        (0..connections).map(|_| Node::new(device, messages, options.number('S', 100)?)).collect();
    let nodes = nodes?;
    if options.has('s') {
        let to = options.address('s', port)?;
        let connected: Result<Vec<_>, _> =
            nodes.iter().map(|node| Connector::new(device, to).connect(&node.qp)).collect();
        let connected = connected?;
        nodes.iter().try_for_each(Node::receive)?;
        nodes.iter().try_for_each(Node::send)?;
        ended(&connected)?;
    } else {
        let listener = match options.has('b') {
            true => Listener::bind(device, options.address('b', port)?)?,
            false => Listener::bind(device, format!("0.0.0.0:{port}").parse()?)?,
        };
        let connected: Fallible<Vec<_>> =
            nodes.iter().map(|node| Ok(accept(&listener)?.accept(&node.qp, &[])?)).collect();
        let connected = connected?;
        nodes.iter().try_for_each(Node::send)?;
        nodes.iter().try_for_each(Node::receive)?;
        connected.iter().try_for_each(Connection::disconnect)?;
        ended(&connected)?;
    }
    println!("return status 0");
    Ok(())
}

fn ended(connections: &[Connection<Rc>]) -> Fallible<()> {
    for connection in connections {
        let _ = connection.wait_event_timeout(super::MAX_WAIT)?;
    }
    Ok(())
}

/// One connection.
struct Node {
    /// Completions of sends and of receives, so that neither waits for the other.
    cqs: [Cq; 2],
    qp: RcQp,
    memory: Region,
    messages: usize,
}

impl Node {
    fn new(device: &Device, messages: usize, size: usize) -> Fallible<Node> {
        let pd = device.alloc_pd()?;
        let cqs = [device.create_cq(messages as u32 + 1)?, device.create_cq(messages as u32 + 1)?];
        let depth = messages as u32 + 1;
        let qp = pd.rc(&cqs[0]).recv_cq(&cqs[1]).depth(depth, depth).create()?;
        let node = Node { cqs, qp, memory: pd.region(size).register()?, messages };
        let sges = [node.memory.sge(..)?];
        (0..messages).try_for_each(|_| node.qp.post_recv(&[wr::recv(RECV, &sges)]))?;
        Ok(node)
    }

    fn send(&self) -> Fallible<()> {
        let from = [self.memory.sge(..)?];
        (0..self.messages).try_for_each(|_| self.qp.post_send(&[wr::send(SEND, &from)]))?;
        (0..self.messages).try_for_each(|_| success(&self.cqs[0]).map(drop))
    }

    fn receive(&self) -> Fallible<()> {
        (0..self.messages).try_for_each(|_| success(&self.cqs[1]).map(drop))
    }
}
