//! Every operation, over real packets, IPv4 and IPv6, and the data is what was sent.

mod support;

use ferroce::{
    AtomicOp, Payload, RemoteRegion, SendFlags, SendOp, SendWr, Sge, WcFlags, WcOpcode, WcStatus, wr,
};
use support::{LOOPBACKS, Pair, V4, next, pattern, watched};

/// Around the borders of packets and windows.
const SIZES: [usize; 12] = [0, 1, 3, 4, 255, 1024, 4095, 4096, 4097, 65_536, 1_000_003, 4 << 20];

fn sges(region: &ferroce::Region, len: usize) -> Vec<Sge> {
    vec![region.sge(..len as u64).unwrap()]
}

#[test]
fn rc_send_carries_any_size() {
    watched(|| {
        for address in LOOPBACKS {
            let Pair { a, b } = Pair::rc(address);
            let (from, to) = (a.open_region(4 << 20), b.open_region(4 << 20));
            for (n, len) in SIZES.into_iter().enumerate() {
                let data = pattern(n as u64, len);
                from.write(0, &data).unwrap();
                to.fill(0xee);
                b.qp.post_recv(&[wr::recv(n as u64, &sges(&to, 4 << 20))]).unwrap();
                a.qp.send_from(100 + n as u64, &sges(&from, len)).unwrap();
                let got = b.success();
                assert_eq!((got.wr_id, got.opcode, got.byte_len), (n as u64, WcOpcode::Recv, len as u32));
                let sent = a.success();
                assert_eq!((sent.wr_id, sent.opcode), (100 + n as u64, WcOpcode::Send));
                let memory = to.to_vec();
                assert!(memory[..len] == data, "{len} bytes over {address}");
                assert!(memory[len..].iter().all(|b| *b == 0xee), "something was written behind {len} bytes");
            }
        }
    });
}

#[test]
fn rc_write_and_read_carry_any_size() {
    watched(|| {
        for address in LOOPBACKS {
            let Pair { a, b } = Pair::rc(address);
            let (local, remote) = (a.open_region(4 << 20), b.open_region((4 << 20) + 64));
            for (n, len) in SIZES.into_iter().enumerate() {
                let data = pattern(n as u64, len);
                local.write(0, &data).unwrap();
                remote.fill(0xee);
                let target = remote.remote().slice(32..32 + len as u64).unwrap();
                a.qp.write(1, &sges(&local, len), target).unwrap();
                assert_eq!(a.success().opcode, WcOpcode::RdmaWrite);
                let memory = remote.to_vec();
                assert!(memory[32..32 + len] == data, "WRITE of {len} bytes over {address}");
                assert!(memory[..32].iter().chain(&memory[32 + len..]).all(|b| *b == 0xee));

                local.fill(0);
                a.qp.read(2, &sges(&local, len), target).unwrap();
                let read = a.success();
                assert_eq!((read.opcode, read.byte_len), (WcOpcode::RdmaRead, len as u32));
                assert!(local.to_vec()[..len] == data, "READ of {len} bytes over {address}");
            }
        }
    });
}

#[test]
fn many_reads_outstanding_return_in_order() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.rd_atomic(2));
        let (local, remote) = (a.open_region(64 * 4096), b.open_region(64 * 4096));
        let data = pattern(1, 64 * 4096);
        remote.write(0, &data).unwrap();
        for n in 0..64 {
            let range = n * 4096..(n + 1) * 4096;
            let part = remote.remote().slice(range.clone()).unwrap();
            a.qp.read(n, &[local.sge(range).unwrap()], part).unwrap();
        }
        for n in 0..64 {
            assert_eq!(a.success().wr_id, n);
        }
        assert!(local.to_vec() == data);
    });
}

#[test]
fn immediate_data_arrives_with_send_and_write() {
    watched(|| {
        for address in LOOPBACKS {
            let Pair { a, b } = Pair::rc(address);
            let (from, to) = (a.open_region(9000), b.open_region(9000));
            from.write(0, &pattern(5, 9000)).unwrap();
            b.qp.post_recv(&[wr::recv(1, &sges(&to, 9000)), wr::recv(2, &[])]).unwrap();
            a.qp.post_send(&[wr::send_imm(1, &sges(&from, 9000), 0xdead_beef)]).unwrap();
            a.qp.write_imm(2, &sges(&from, 9000), to.remote(), 0x0102_0304).unwrap();
            let first = b.success();
            assert_eq!(
                (first.opcode, first.imm, first.flags),
                (WcOpcode::Recv, 0xdead_beef, WcFlags::WITH_IMM)
            );
            let second = b.success();
            assert_eq!((second.opcode, second.imm), (WcOpcode::RecvRdmaWithImm, 0x0102_0304));
            assert_eq!((second.wr_id, second.byte_len), (2, 9000));
            assert!(to.to_vec() == from.to_vec());
        }
    });
}

#[test]
fn atomics_return_the_old_value_and_change_the_new() {
    watched(|| {
        for address in LOOPBACKS {
            let Pair { a, b } = Pair::rc(address);
            let (old, word) = (a.open_region(16), b.open_region(16));
            word.store_u64(8, 40).unwrap();
            let at = word.remote().slice(8..).unwrap();
            let into = old.sge(8..).unwrap();
            a.qp.fetch_add(1, into, at, 2).unwrap();
            assert_eq!(a.success().opcode, WcOpcode::FetchAdd);
            assert_eq!((old.load_u64(8).unwrap(), word.load_u64(8).unwrap()), (40, 42));
            a.qp.compare_swap(2, into, at, 41, 7).unwrap();
            assert_eq!(a.success().opcode, WcOpcode::CompSwap);
            assert_eq!((old.load_u64(8).unwrap(), word.load_u64(8).unwrap()), (42, 42), "41 is not 42");
            a.qp.compare_swap(3, into, at, 42, u64::MAX).unwrap();
            a.success();
            a.qp.fetch_add(4, into, at, 2).unwrap();
            a.success();
            assert_eq!((old.load_u64(8).unwrap(), word.load_u64(8).unwrap()), (u64::MAX, 1), "it wraps");
            assert_eq!(word.load_u64(0).unwrap(), 0, "the adjacent word is unchanged");
        }
    });
}

#[test]
fn thirty_two_entries_scatter_and_gather() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.sges(32, 32));
        let (from, to) = (a.open_region(1 << 20), b.open_region(1 << 20));
        let data = pattern(9, 1 << 20);
        from.write(0, &data).unwrap();
        // Uneven pieces with gaps between them, at different offsets on both sides; the last entries are empty.
        let pieces = |region: &ferroce::Region, stride: u64, unit: u64| -> Vec<Sge> {
            let piece =
                |i: u64| region.sge(i * stride..i * stride + if i > 29 { 0 } else { unit + i }).unwrap();
            (0..32).map(piece).collect()
        };
        let (gather, scatter) = (pieces(&from, 20_000, 1001), pieces(&to, 30_000, 2000));
        let sent: Vec<u8> = (0..30usize).flat_map(|i| data[i * 20_000..][..1001 + i].to_vec()).collect();
        b.qp.post_recv(&[wr::recv(1, &scatter)]).unwrap();
        a.qp.send_from(1, &gather).unwrap();
        let got = b.success();
        assert_eq!(got.byte_len as usize, sent.len());
        a.success();
        let memory = to.to_vec();
        let received: Vec<u8> =
            (0..30usize).flat_map(|i| memory[i * 30_000..][..2000 + i].to_vec()).collect();
        assert!(received[..sent.len()] == sent);

        // READ scatters, WRITE gathers.
        to.fill(0);
        a.qp.write(2, &gather, to.remote()).unwrap();
        a.success();
        assert!(to.to_vec()[..sent.len()] == sent);
        from.fill(0);
        a.qp.read(3, &gather, to.remote().slice(..sent.len() as u64).unwrap()).unwrap();
        a.success();
        let memory = from.to_vec();
        let back: Vec<u8> = (0..30usize).flat_map(|i| memory[i * 20_000..][..1001 + i].to_vec()).collect();
        assert!(back == sent);
    });
}

#[test]
fn inline_data_is_copied_at_posting() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.inline(1024));
        let to = b.open_region(2048);
        b.qp.post_recv(&[wr::recv(1, &sges(&to, 1024))]).unwrap();
        let mut data = pattern(3, 1024);
        let sent = data.clone();
        a.qp.send_inline(1, &data).unwrap();
        data.fill(0);
        assert_eq!(b.success().byte_len, 1024);
        a.qp.write_inline(2, &sent[..5], to.remote().slice(1024..).unwrap()).unwrap();
        a.success();
        a.success();
        let memory = to.to_vec();
        assert!(memory[..1024] == sent && memory[1024..1029] == sent[..5]);
    });
}

#[test]
fn a_list_rings_once_and_only_signalled_requests_complete() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.signal_all(false).depth(128, 16));
        let (from, to) = (a.open_region(4096), b.open_region(4096));
        from.write(0, &pattern(2, 4096)).unwrap();
        let pieces: Vec<[Sge; 1]> = (0..100).map(|i| [from.sge(i * 40..(i + 1) * 40).unwrap()]).collect();
        let list: Vec<SendWr<'_>> = (0..100)
            .map(|i| {
                let target = to.remote().slice(i * 40..).unwrap();
                let flags = if i % 25 == 24 { SendFlags::SIGNALED } else { SendFlags::empty() };
                SendWr { flags, ..wr::write(i, &pieces[i as usize], target) }
            })
            .collect();
        a.qp.post_send(&list).unwrap();
        for wr_id in [24, 49, 74, 99] {
            assert_eq!(a.success().wr_id, wr_id);
        }
        assert_eq!(a.cq.try_next().unwrap(), None);
        assert!(to.to_vec()[..4000] == from.to_vec()[..4000]);
    });
}

#[test]
fn send_with_invalidate_closes_the_key() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (a.open_region(64), b.open_region(64));
        let target = to.remote();
        a.qp.write(1, &sges(&from, 8), target).unwrap();
        a.success();
        b.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
        a.qp.post_send(&[wr::send_inv(2, &[], target.rkey)]).unwrap();
        let notified = b.success();
        assert_eq!((notified.flags, notified.invalidated), (WcFlags::WITH_INV, target.rkey));
        a.success();
        a.qp.write(3, &sges(&from, 8), target).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}

#[test]
fn local_invalidate_closes_the_key() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (a.open_region(64), b.open_region(64));
        b.qp.post_send(&[wr::local_inv(1, to.rkey())]).unwrap();
        assert_eq!(b.success().opcode, WcOpcode::LocalInv);
        a.qp.write(1, &sges(&from, 8), to.remote()).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}

#[test]
fn zero_based_regions_count_from_zero() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let from = a.open_region(64);
        let to = b.pd.region(8192).remote_write().zero_based().register().unwrap();
        assert_eq!(to.remote().addr, 0);
        from.write(0, b"zero").unwrap();
        let at = RemoteRegion { addr: 5000, ..to.remote() };
        a.qp.write(1, &sges(&from, 4), at).unwrap();
        a.success();
        assert_eq!(&to.to_vec()[5000..5004], b"zero");
    });
}

#[test]
fn a_fence_waits_for_reads() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (local, remote) = (a.open_region(1 << 20), b.open_region(2 << 20));
        let data = pattern(8, 1 << 20);
        remote.write(0, &data).unwrap();
        // Without the fence the WRITE would send what `local` held before the READ filled it.
        let all = sges(&local, 1 << 20);
        let fenced = SendWr {
            flags: SendFlags::FENCE,
            ..wr::write(2, &all, remote.remote().slice(1 << 20..).unwrap())
        };
        a.qp.post_send(&[wr::read(1, &all, remote.remote()), fenced]).unwrap();
        a.success();
        a.success();
        assert!(remote.to_vec()[1 << 20..] == data);
    });
}

#[test]
fn uc_sends_and_writes() {
    watched(|| {
        for address in LOOPBACKS {
            let Pair { a, b } = Pair::uc(address);
            let (from, to) = (a.open_region(65_536), b.open_region(65_536));
            for (n, len) in [0, 1, 5, 4096, 4097, 65_536].into_iter().enumerate() {
                let data = pattern(n as u64, len);
                from.write(0, &data).unwrap();
                b.qp.post_recv(&[wr::recv(1, &sges(&to, 65_536)), wr::recv(2, &[])]).unwrap();
                a.qp.send_from(1, &sges(&from, len)).unwrap();
                a.success();
                assert_eq!(b.success().byte_len, len as u32);
                assert!(to.to_vec()[..len] == data, "SEND of {len} bytes over {address}");
                to.fill(0);
                a.qp.write_imm(2, &sges(&from, len), to.remote(), n as u32).unwrap();
                a.success();
                let got = b.success();
                assert_eq!((got.opcode, got.imm), (WcOpcode::RecvRdmaWithImm, n as u32));
                assert!(to.to_vec()[..len] == data, "WRITE of {len} bytes over {address}");
            }
        }
    });
}

#[test]
fn operations_that_a_transport_lacks_are_refused() {
    watched(|| {
        let Pair { a, b } = Pair::uc(V4);
        let target = b.open_region(64).remote();
        let region = a.open_region(64);
        let sge = sges(&region, 8);
        let atomic =
            SendOp::Atomic { addr: target.addr, rkey: target.rkey, op: AtomicOp::FetchAdd { add: 1 } };
        let on_uc = [
            wr::read(1, &sge, target),
            wr::send_inv(2, &sge, target.rkey),
            SendWr { op: atomic, ..wr::send(3, &sge) },
        ];
        for wr in on_uc {
            let error = a.qp.post_send(&[wr]).unwrap_err();
            let expected = ferroce::PostError::NotOnThisTransport(ferroce::Transport::Uc);
            assert_eq!(support::post_error(&error), Some(expected), "{error}");
        }
        let inline = SendWr { payload: Payload::Inline(b"12345678"), ..wr::read(1, &sge, target) };
        let Pair { a, .. } = Pair::rc(V4);
        let error = a.qp.post_send(&[inline]).unwrap_err();
        assert_eq!(support::post_error(&error), Some(ferroce::PostError::InlineNotAllowed));
    });
}

#[test]
fn owned_operations_bring_their_buffers_back() {
    watched(|| {
        for address in LOOPBACKS {
            let Pair { a, b } = Pair::rc(address);
            let board = b.open_region(10_000);
            let data = pattern(4, 10_000);
            let mut buffer = a.pd.buffer(10_000).unwrap();
            buffer.set(&data).unwrap();
            let mut buffer = a.qp.write_from(buffer, board.remote()).unwrap().wait().unwrap().buffer;
            assert!(board.to_vec() == data);
            buffer.fill(0);
            let buffer = a.qp.read_into(buffer, board.remote()).unwrap().wait().unwrap().buffer;
            assert!(*buffer == data);
            let received = b.qp.recv(b.pd.buffer(20_000).unwrap()).unwrap();
            let sent = a.qp.send_with_imm(buffer, 77).unwrap();
            let got = received.wait().unwrap();
            assert!(*got.buffer == data, "the length is that of the message");
            assert_eq!((got.imm(), got.buffer.capacity()), (Some(77), 20_000));
            assert!(*sent.wait().unwrap().buffer == data);
        }
    });
}

#[test]
fn solicited_messages_wake_only_their_waiters() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        b.qp.post_recv(&[wr::recv(1, &[]), wr::recv(2, &[])]).unwrap();
        b.cq.arm(true).unwrap();
        a.qp.send_from(1, &[]).unwrap();
        a.success();
        assert_eq!(b.cq.clear_events(), 0, "not armed for this one");
        a.qp.post_send(&[SendWr { flags: SendFlags::SOLICITED, ..wr::send(2, &[]) }]).unwrap();
        a.success();
        assert_eq!(b.cq.clear_events(), 1);
        assert_eq!((next(&b.cq).wr_id, next(&b.cq).wr_id), (1, 2));
    });
}
