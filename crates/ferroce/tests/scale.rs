//! Ten thousand connections between two processes, each small, each carrying traffic.

mod support;

use ferroce::{RcQp, wr};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use support::process::{Peer, parent};
use support::{V4, device, success, watched};

const CONNECTIONS: usize = 10_000;
/// Number of connections that send at the same time. Ten thousand concurrent packets exceed the kernel's socket buffers on a busy
/// machine, and this test is about the number of connections, not about bursts.
const TOGETHER: usize = 500;

/// Connects all, sends one message on each, and receives one on each.
fn talk(mut socket: TcpStream) {
    let device = device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4 * CONNECTIONS as u32).unwrap());
    let qps: Vec<RcQp> = (0..CONNECTIONS)
        .map(|_| {
            let qp = pd.rc(&cq).address(V4).depth(16, 16).sges(1, 1).create().unwrap();
            qp.post_recv(&[wr::recv(1, &[])]).unwrap();
            qp.connect_over(&mut socket).unwrap();
            qp
        })
        .collect();
    let largest = qps.iter().map(RcQp::memory_footprint).max().unwrap();
    assert!(largest <= 8192, "an idle queue pair with 16-deep queues takes {largest} bytes");
    let (mut sent, mut received) = (HashSet::new(), HashSet::new());
    for group in qps.chunks(TOGETHER) {
        for qp in group {
            qp.send_inline(2, &[]).unwrap();
        }
        for _ in 0..2 * group.len() {
            let done = success(&cq);
            assert!(if done.wr_id == 2 { &mut sent } else { &mut received }.insert(done.qpn), "once each");
        }
    }
    assert_eq!((sent.len(), received.len()), (CONNECTIONS, CONNECTIONS));
    // Stay until the peer has its acknowledgements.
    socket.write_all(b".").unwrap();
    socket.read_exact(&mut [0]).unwrap();
}

#[test]
fn ten_thousand_connections_carry_traffic() {
    if let Some(socket) = parent() {
        return talk(socket);
    }
    watched(|| {
        let peer = Peer::start("ten_thousand_connections_carry_traffic", V4);
        talk(peer.socket.try_clone().unwrap());
        peer.finish();
    });
}
