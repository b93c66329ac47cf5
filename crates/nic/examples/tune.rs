//! Two NICs in two threads of one process, for tuning the engine: half round trip of a SEND and WRITE bandwidth.
use ferroce_nic::{Config, Cq, MemoryRegion, Nic, Pd, Qp, QpInit};
use ferroce_proto::verbs::*;
use ferroce_proto::*;
use std::sync::Arc;
use std::time::Instant;

struct End {
    _nic: Nic,
    _pd: Arc<Pd>,
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
    gid: Gid,
    index: u8,
}

fn end(addr: &str) -> End {
    let nic = Nic::open(Config::from_env().unwrap()).unwrap();
    let gids = nic.gids();
    let index = gids.iter().position(|g| g.address.to_string() == addr).unwrap() as u8;
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(4096, None, 0).unwrap();
    let memory = Arc::new(vec![0u8; 16 << 20]);
    let ptr = memory.as_ptr() as usize;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mr = unsafe { pd.register(ptr, memory.len(), ptr as u64, access, Some(memory.clone())) }.unwrap();
    let cap =
        QpCap { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    let qp = pd
        .create_qp(&QpInit {
            transport: Transport::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap,
            signal_all: false,
        })
        .unwrap();
    End { gid: gids[index as usize].gid, index, _nic: nic, _pd: pd, cq, qp, mr }
}

fn connect(a: &End, b: &End) {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let attr = QpAttr {
        state: QpState::Init,
        port: 1,
        access,
        path_mtu: Mtu::B4096,
        dest_qpn: b.qp.qpn(),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid: b.gid, sgid_index: a.index, hop_limit: 64, port: 1, ..Default::default() },
        ..Default::default()
    };
    use AttrMask as M;
    a.qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    let rtr = QpAttr { state: QpState::Rtr, ..attr };
    a.qp.modify(
        &rtr,
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
    )
    .unwrap();
    let rts = QpAttr { state: QpState::Rts, ..attr };
    a.qp.modify(&rts, M::STATE | M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC)
        .unwrap();
}

fn wait(cq: &Cq, want: WcOpcode) {
    let mut out = [Completion::default(); 16];
    loop {
        let n = cq.poll(&mut out).unwrap();
        for c in &out[..n] {
            assert_eq!(c.status, WcStatus::Success, "{c:?}");
            if c.opcode == want {
                return;
            }
        }
    }
}

fn main() {
    let (a, b) = (end("127.0.0.1"), end("127.0.0.1"));
    connect(&a, &b);
    connect(&b, &a);
    let what = std::env::args().nth(1).unwrap_or_default();
    if what == "empty" {
        let mut out = [Completion::default(); 16];
        for round in 0..4 {
            let start = Instant::now();
            for _ in 0..500_000 {
                a.cq.poll(&mut out).unwrap();
            }
            println!("round {round}: empty poll {:.1} ns", start.elapsed().as_secs_f64() * 1e9 / 500_000.0);
        }
        println!("{}", a._nic.counters().link.rx_calls);
        let start = Instant::now();
        for n in 0..200u64 {
            a.qp.post_send(&[SendWr {
                wr_id: 2,
                op: SendOp::Write { addr: b.mr.iova(), rkey: b.mr.rkey() },
                flags: SendFlags::empty(),
                payload: Payload::Inline(&[1; 8]),
                ud: None,
            }])
            .unwrap();
            let _ = n;
        }
        println!("post_send without peer polling {:.1} ns", start.elapsed().as_secs_f64() * 1e9 / 200.0);
        return;
    }
    let iters = match what.as_str() {
        "bw" => 100,
        "few" => 3_000,
        _ => 200_000u64,
    };
    let recv = |e: &End| e.qp.post_recv(&[RecvWr { wr_id: 1, sges: &[e.mr.sge(0, 64)] }]).unwrap();
    let data = [7u8; 8];
    let send = |e: &End, n: u64| {
        let flags = if n % 64 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        e.qp.post_send(&[SendWr {
            wr_id: 2,
            op: SendOp::Send,
            flags,
            payload: Payload::Inline(&data),
            ud: None,
        }])
        .unwrap()
    };
    for _ in 0..16 {
        recv(&a);
        recv(&b);
    }
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0..iters {
                wait(&b.cq, WcOpcode::Recv);
                recv(&b);
                send(&b, n);
            }
        });
        let start = Instant::now();
        let (mut t_send, mut t_hit, mut t_miss, mut t_recv, mut misses) = (0u64, 0u64, 0u64, 0u64, 0u64);
        for n in 0..iters {
            let t0 = Instant::now();
            send(&a, n);
            let mut t1 = Instant::now();
            t_send += (t1 - t0).as_nanos() as u64;
            let mut out = [Completion::default(); 16];
            'w: loop {
                let n = a.cq.poll(&mut out).unwrap();
                let t2 = Instant::now();
                let d = (t2 - t1).as_nanos() as u64;
                t1 = t2;
                let hit = out[..n].iter().any(|c| c.opcode == WcOpcode::Recv);
                if hit {
                    t_hit += d;
                    break 'w;
                }
                t_miss += d;
                misses += 1;
            }
            recv(&a);
            t_recv += t1.elapsed().as_nanos() as u64;
        }
        println!(
            "post_send {} ns, poll hit {} ns, misses {:.1} of {} ns, post_recv {} ns",
            t_send / iters,
            t_hit / iters,
            misses as f64 / iters as f64,
            t_miss / misses.max(1),
            t_recv / iters
        );
        println!("send half round trip: {:.3} us", start.elapsed().as_secs_f64() * 1e6 / iters as f64 / 2.0);
    });
    if what == "lat" || what == "few" {
        println!("{:?}", a._nic.counters().link);
        println!("{:?}", a.qp.counters());
        let t: Vec<u64> =
            ferroce_nic::link::T.iter().map(|t| t.load(std::sync::atomic::Ordering::Relaxed)).collect();
        println!(
            "sendmmsg {} ns x {}, recv hit {} ns x {}, empty {} ns x {}",
            t[0] / t[1],
            t[1],
            t[2] / t[3],
            t[3],
            t[4] / t[5],
            t[5]
        );
        return;
    }
    for (name, op_read) in [("write", false), ("read", true)] {
        for size in [4096u32, 65536, 1 << 20] {
            let total = (4u64 << 30) / if op_read { 4 } else { 1 };
            let messages = (total / size as u64).min(200_000);
            let depth = 64.min((8 << 20) / size as u64).max(4);
            let start = Instant::now();
            let (mut posted, mut done) = (0u64, 0u64);
            let mut out = [Completion::default(); 16];
            let rkey = b.mr.rkey();
            while done < messages {
                while posted < messages && posted - done < depth {
                    let op = if op_read {
                        SendOp::Read { addr: b.mr.iova(), rkey }
                    } else {
                        SendOp::Write { addr: b.mr.iova(), rkey }
                    };
                    a.qp.post_send(&[SendWr {
                        wr_id: 3,
                        op,
                        flags: SendFlags::SIGNALED,
                        payload: Payload::Sges(&[a.mr.sge(0, size)]),
                        ud: None,
                    }])
                    .unwrap();
                    posted += 1;
                }
                let n = a.cq.poll(&mut out).unwrap();
                for c in &out[..n] {
                    assert_eq!(c.status, WcStatus::Success, "{c:?}");
                    done += (c.wr_id == 3) as u64;
                }
            }
            let gbs = messages as f64 * size as f64 / start.elapsed().as_secs_f64() / 1e9;
            let c = a.qp.counters();
            println!(
                "{name} {size} B: {gbs:.2} GB/s  retransmitted {} timeouts {} probes {} naks {}",
                c.retransmitted, c.timeouts, c.probes, c.naks_received
            );
        }
    }
    println!("{:#?}", a._nic.counters().link);
    println!("{:#?}", b._nic.counters().link);
    println!("{:?}", b._nic.counters().drops);
    println!("qp footprint {}", a.qp.memory_footprint());
}
