//! Datagram queue pairs.

mod support;

use ferroce::{AddressHandle, Endpoint, Error, Outcome, Qkey, QpState, Reason, UdQp, WcFlags, WcStatus, wr};
use std::net::IpAddr;
use std::time::Duration;
use support::{LOOPBACKS, MAX_WAIT, Side, V4, pattern, until, watched};

fn side(address: IpAddr) -> Side<ferroce::Ud> {
    Side::new(|pd, cq| pd.ud(cq).address(address), |qp| qp)
}

fn handle_to(from: &Side<ferroce::Ud>, to: &Endpoint) -> AddressHandle {
    from.pd.address_handle(to, from.device.gid_index(from.endpoint().address()).unwrap()).unwrap()
}

/// Sends until one arrives, because datagrams may be lost.
fn send_until_received(
    from: &UdQp,
    pd: &ferroce::Pd,
    data: &[u8],
    to: &AddressHandle,
    pending: &mut ferroce::Pending,
) -> ferroce::Done {
    let mut buffer = pd.buffer(data.len()).unwrap();
    buffer.set(data).unwrap();
    let start = std::time::Instant::now();
    loop {
        buffer = from.send(buffer, to).unwrap().wait().unwrap().buffer;
        match pending.settle_timeout(Duration::from_millis(200)) {
            Ok(done) => return done.ok().unwrap(),
            Err(Error::TimedOut) => assert!(start.elapsed() < MAX_WAIT, "watchdog: no datagram arrives"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn datagrams_arrive_with_their_source() {
    watched(|| {
        for address in LOOPBACKS {
            let (a, b) = (side(address), side(address));
            let to = handle_to(&a, &b.endpoint());
            for len in [0, 1, 100, 4096] {
                let data = pattern(len as u64, len);
                let mut received = b.qp.recv(b.pd.buffer(4096).unwrap()).unwrap();
                let done = send_until_received(&a.qp, &a.pd, &data, &to, &mut received);
                assert!(*done.buffer == data, "{len} bytes over {address}");
                assert_eq!(done.source(), Some(address));
                assert_eq!(done.completion.src_qpn, a.qp.qpn());
                assert_eq!(
                    (done.completion.byte_len as usize, done.completion.flags),
                    (len + 40, WcFlags::GRH)
                );
                // And back, to where it came from.
                let sender = Endpoint::datagram(address, done.completion.src_qpn, b.endpoint().qkey);
                let mut answer = a.qp.recv(a.pd.buffer(64).unwrap()).unwrap();
                let done = send_until_received(&b.qp, &b.pd, b"thanks", &handle_to(&b, &sender), &mut answer);
                assert_eq!(&*done.buffer, b"thanks");
            }
        }
    });
}

#[test]
fn a_datagram_longer_than_the_mtu_is_a_local_length_error() {
    watched(|| {
        let (a, b) = (side(V4), side(V4));
        let to = handle_to(&a, &b.endpoint());
        let from = a.open_region(8192);
        a.qp.send_from(1, &[from.sge(..4097).unwrap()], &to).unwrap();
        a.qp.send_from(2, &[], &to).unwrap();
        assert_eq!(a.status(WcStatus::LocLenErr).ok().unwrap_err().reason, Some(Reason::ExceedsMtu));
        assert_eq!(a.status(WcStatus::WrFlushErr).wr_id, 2);
        assert_eq!(a.qp.state(), QpState::Sqe, "only the send queue stopped");
    });
}

#[test]
fn a_wrong_key_and_a_missing_receive_are_dropped_and_counted() {
    watched(|| {
        let (a, b) = (side(V4), side(V4));
        let drops = |name: &str| b.device.counters().drops[name];
        let names: Vec<&str> = b.device.counters().drops.keys().copied().collect();
        let dropped_by = |send: &dyn Fn()| {
            let before: u64 = b.device.counters().drops.values().sum();
            send();
            until("the datagram is dropped", || {
                let _ = b.cq.try_next();
                b.device.counters().drops.values().sum::<u64>() > before
            });
        };
        let wrong = handle_to(&a, &Endpoint::datagram(b.endpoint().address(), b.qp.qpn(), Qkey(5)));
        b.qp.post_recv(&[wr::recv(1, &[b.open_region(64).sge(..).unwrap()])]).unwrap();
        dropped_by(&|| a.qp.send_inline(1, b"hello", &wrong).unwrap());
        assert!(names.iter().any(|n| n.contains("key") && drops(n) > 0), "{:?}", b.device.counters().drops);
        assert_eq!(b.cq.try_next().unwrap(), None);
    });
}

#[test]
fn a_receive_too_small_for_the_grh_stays_for_the_next() {
    watched(|| {
        let (a, b) = (side(V4), side(V4));
        let (to, region) = (handle_to(&a, &b.endpoint()), b.open_region(4096));
        // 40 bytes of header and 8 of data fit; 9 do not.
        b.qp.post_recv(&[wr::recv(1, &[region.sge(..48).unwrap()])]).unwrap();
        a.qp.send_inline(1, b"123456789", &to).unwrap();
        a.success();
        a.qp.send_inline(2, b"12345678", &to).unwrap();
        a.success();
        let got = b.success();
        assert_eq!((got.wr_id, got.byte_len), (1, 48));
        assert_eq!(&region.to_vec()[40..50], b"12345678\0\0");
    });
}

// IPv4 only: without root no route leads IPv6 multicast over loopback, and tests send nowhere else.
#[test]
fn multicast_reaches_every_member_and_no_other_queue_pair() {
    watched(|| {
        let (group, key) = ("239.77.1.5".parse::<IpAddr>().unwrap(), Qkey(0x77));
        let member = || Side::new(|pd, cq| pd.ud(cq).address(V4).qkey(key), |qp| qp);
        let (first, second, stranger) = (member(), member(), member());
        first.qp.join(group).unwrap();
        second.qp.join(group).unwrap();
        let third = first.pd.ud(&first.cq).qkey(key).create().unwrap();
        third.join(group).unwrap();
        let mut received = [
            first.qp.recv(first.pd.buffer(64).unwrap()).unwrap(),
            second.qp.recv(second.pd.buffer(64).unwrap()).unwrap(),
            third.recv(first.pd.buffer(64).unwrap()).unwrap(),
        ];
        let mut not_received = stranger.qp.recv(stranger.pd.buffer(64).unwrap()).unwrap();
        let to = handle_to(&stranger, &Endpoint::multicast(group, key));
        for pending in &mut received {
            let done = send_until_received(&stranger.qp, &stranger.pd, b"to all", &to, pending);
            assert_eq!(&*done.buffer, b"to all");
        }
        assert!(not_received.try_settle().unwrap().is_none());
        assert!(third.leave(group).is_ok() && third.leave(group).is_err(), "once joined, once left");
        assert!(first.qp.join(V4).is_err(), "no group");
    });
}
