//! Reliable connection, nothing goes wrong: every operation, every size class, every MTU.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::verbs::{Mtu, QpCap, SendFlags, Sge, WcFlags, WcStatus};
use ferroce_proto::wire::Operation;
use ferroce_sim::{Pair, PairSetup, Rule, Wr};
use std::cell::Cell;
use std::rc::Rc;
use support::{ALL, FAR, run, size_classes};

#[test]
fn every_operation_of_every_size_at_every_mtu() {
    for mtu in Mtu::ALL {
        for script in ALL {
            for len in size_classes(mtu) {
                println!("{} of {len} bytes at MTU {}", script.name, mtu.bytes());
                run(script, &PairSetup { mtu, ..PairSetup::rc() }, len, |_| {});
            }
        }
    }
}

#[test]
fn every_operation_over_ipv6() {
    for script in ALL {
        run(script, &PairSetup { ipv6: true, ..PairSetup::rc() }, 3000, |_| {});
    }
}

#[test]
fn sequence_numbers_wrap() {
    for first in [0xff_fffb, 0xff_fffe, 0xff_ffff, 0x7f_fffe] {
        for script in ALL {
            for len in size_classes(Mtu::B256) {
                let psn = Psn::new(first);
                let setup = PairSetup { mtu: Mtu::B256, psn_a: psn, psn_b: psn, ..PairSetup::rc() };
                let pair = run(script, &setup, len, |_| {});
                // Once more on the same connection, whose PSNs have wrapped.
                (script.start)(&pair, len);
                if script.name.contains("AND") || script.name == "MIX" {
                    continue; // their checks count atomics from the beginning
                }
                pair.run();
                (script.check)(&pair, len);
            }
        }
    }
}

#[test]
fn a_link_that_takes_one_packet_at_a_time_changes_nothing() {
    for depth in [1, 2, 5] {
        for script in ALL {
            run(script, &PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }, 4001, |pair| {
                pair.a.node.set_link_depth(depth);
                pair.b.node.set_link_depth(depth);
            });
        }
    }
}

#[test]
fn windows_of_every_size_change_nothing() {
    for window in [1, 256, 257, 512, 1024, 4096, 1 << 20, u32::MAX] {
        for script in ALL {
            run(script, &PairSetup { mtu: Mtu::B256, window, ..PairSetup::rc() }, 4001, |_| {});
        }
    }
}

#[test]
fn segmentation_uses_first_middle_last_and_only() {
    use Operation::{
        SendFirst, SendLast, SendMiddle, SendOnly, WriteFirst, WriteLast, WriteMiddle, WriteOnly,
    };
    let mtu = Mtu::B512;
    let cases: [(u32, &[Operation], &[Operation]); 5] = [
        (0, &[SendOnly], &[WriteOnly]),
        (512, &[SendOnly], &[WriteOnly]),
        (513, &[SendFirst, SendLast], &[WriteFirst, WriteLast]),
        (1024, &[SendFirst, SendLast], &[WriteFirst, WriteLast]),
        (1025, &[SendFirst, SendMiddle, SendLast], &[WriteFirst, WriteMiddle, WriteLast]),
    ];
    for (len, send, write) in cases {
        for (script, expected) in [(&support::SEND, send), (&support::WRITE, write)] {
            let pair = run(script, &PairSetup { mtu, ..PairSetup::rc() }, len, |_| {});
            let journal = pair.world.journal();
            let requests: Vec<_> =
                journal.packets().map(|(p, _)| p.opcode.operation).filter(|o| o.is_request()).collect();
            assert_eq!(requests, expected, "{} of {len} bytes", script.name);
        }
    }
}

#[test]
fn thirty_two_entries_gather_and_scatter_as_one_string() {
    let pair = Pair::rc(Mtu::B256);
    // Entries of different lengths, some empty, none in the order of their addresses.
    let entry = |mr: &ferroce_sim::Mr, i: u64| mr.sge((31 - i) * 1000, (i * 37 % 100) as u32);
    let out: Vec<Sge> = (0..32).map(|i| entry(&pair.a.mr, i)).collect();
    let len: u32 = out.iter().map(|s| s.len).sum();
    let bytes = |mr: &ferroce_sim::Mr, sges: &[Sge]| -> Vec<u8> {
        sges.iter().flat_map(|s| mr.read((s.addr - mr.start) as usize, s.len as usize)).collect()
    };
    let into: Vec<Sge> = (0..32).map(|i| pair.b.sge(i * 500, ((31 - i) * 37 % 100) as u32)).collect();
    pair.b.qp.post_recv(9, &into).unwrap();
    pair.a.qp.post(Wr::send(1).sges(out.iter().copied()));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sges(out.iter().copied()));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.b.recv_cq.only().byte_len, len);
    let sent = bytes(&pair.a.mr, &out);
    assert!(bytes(&pair.b.mr, &into)[..len as usize] == sent);
    assert!(pair.b.mr.read(FAR as usize, len as usize) == sent);

    pair.a.qp.post(Wr::read(3, &pair.b.mr, FAR + 7).sges(out.iter().copied()));
    pair.run();
    assert_eq!(pair.a.send_cq.only().byte_len, len);
    assert!(bytes(&pair.a.mr, &out) == pair.b.mr.read(FAR as usize + 7, len as usize));
}

#[test]
fn inline_data_is_taken_at_posting_time() {
    let pair = Pair::rc(Mtu::B256);
    let bytes: Vec<u8> = (0..512u32).map(|i| i as u8).collect();
    pair.b.post_recv(9, FAR, 512);
    pair.a.qp.post(Wr::send(1).inline(&bytes));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).inline(&bytes[..3]));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(pair.b.mr.read(FAR as usize, 512), bytes);
    assert_eq!(pair.b.mr.read(0, 3), [0, 1, 2]);
}

#[test]
fn unsignalled_work_makes_no_completion_and_frees_its_queue_entry() {
    let setup = PairSetup::rc();
    let cap = QpCap { max_send_wr: 4, ..setup.cap };
    let pair = PairSetup { cap, ..setup }.connect();
    for round in 0..10 {
        for i in 0..3 {
            pair.a.qp.post(Wr::write(i, &pair.b.mr, FAR).sge(pair.a.sge(0, 100)).unsignaled());
        }
        pair.a.qp.post(Wr::write(round, &pair.b.mr, FAR).sge(pair.a.sge(0, 100)));
        assert!(pair.a.qp.post_send(&Wr::send(9)).is_err(), "the queue holds four");
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(round, WcStatus::Success)]);
    }
}

#[test]
fn signal_all_signals_all() {
    let pair = PairSetup { signal_all: true, ..PairSetup::rc() }.connect();
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 10)).unsignaled());
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn solicited_is_carried_by_the_last_packet_only() {
    let pair = Pair::rc(Mtu::B256);
    for (id, wr) in
        [(1, Wr::send(1)), (2, Wr::send(2).with(SendFlags::SOLICITED)), (3, Wr::send_imm(3, 0).solicited())]
    {
        pair.b.post_recv(id, FAR, 1000);
        pair.a.qp.post(wr.sge(pair.a.sge(0, 1000)));
    }
    pair.b.post_recv(4, FAR, 0);
    pair.a.qp.post(Wr::write_imm(4, &pair.b.mr, FAR, 0).sge(pair.a.sge(0, 1000)).solicited());
    pair.run();
    let got: Vec<_> = pair.b.recv_cq.drain().iter().map(|c| (c.wr_id, c.solicited)).collect();
    assert_eq!(got, [(1, false), (2, true), (3, true), (4, true)]);
    assert_eq!(pair.b.recv_cq.solicited(), 3);
}

#[test]
fn both_directions_concurrently() {
    let pair = Pair::rc(Mtu::B512);
    for (one, other) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        other.post_recv(9, FAR, 5000);
        one.qp.post(Wr::send(1).sge(one.sge(0, 5000)));
        one.qp.post(Wr::read(2, &other.mr, 0).sge(one.sge(FAR + 8192, 5000)));
        one.qp.post(Wr::write(3, &other.mr, FAR + 16384).sge(one.sge(0, 5000)));
    }
    pair.run();
    for (one, other) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        let ids: Vec<_> = one.send_cq.statuses();
        assert_eq!(ids, [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)]);
        assert_eq!(one.recv_cq.only().flags, WcFlags::empty());
        let data = one.mr.read(0, 5000);
        assert!(other.mr.read(FAR as usize, 5000) == data);
        assert!(other.mr.read(FAR as usize + 8192, 5000) == data);
        assert!(other.mr.read(FAR as usize + 16384, 5000) == data);
    }
}

#[test]
fn a_message_larger_than_the_window_arrives() {
    let memory = 3 << 20;
    let pair = PairSetup { memory, mtu: Mtu::B4096, ..PairSetup::rc() }.connect();
    let len = memory as u32;
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, len)));
    pair.run();
    assert!(pair.a.mr.read(0, memory) == pair.b.mr.read(0, memory));
    pair.b.mr.fill(99);
    pair.a.qp.post(Wr::read(2, &pair.b.mr, 0).sge(pair.a.sge(0, len)));
    pair.run();
    assert!(pair.a.mr.read(0, memory) == pair.b.mr.read(0, memory));
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn acknowledgements_count_messages() {
    let pair = Pair::rc(Mtu::B256);
    let last = Rc::new(Cell::new(0));
    let seen_last = last.clone();
    pair.world.rule(Rule::on(move |seen| {
        if let Some(aeth) = seen.packet.headers.aeth {
            seen_last.set(aeth.msn);
        }
        false
    }));
    for id in 0..20u64 {
        pair.b.post_recv(id, FAR, 1000);
        let wr = match id % 5 {
            0 => Wr::send(id).sge(pair.a.sge(0, 1000)),
            1 => Wr::write(id, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)),
            2 => Wr::read(id, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)),
            3 => Wr::fetch_add(id, &pair.b.mr, 0, 1).sge(pair.a.sge(0, 8)),
            _ => Wr::write_imm(id, &pair.b.mr, FAR, 1).sge(pair.a.sge(0, 0)),
        };
        pair.a.qp.post(wr);
        pair.run();
        assert_eq!(last.get(), id as u32 + 1, "message {id}");
    }
}
