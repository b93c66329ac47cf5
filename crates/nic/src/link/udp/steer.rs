//! The steering program: a classic BPF program that selects the socket of a packet by the destination QPN.
//!
//! The high eight bits of a QPN are the slot of the process that owns it. All processes own QP1, so for its packets the
//! program reads further: a message of connection management contains the communication id of its receiver, whose high eight bits
//! are the slot too. A REQ contains a service id instead; a sender on this host, which finds the listener in the registry, writes the slot into
//! reserved bytes of the MAD ([`SLOT_HINT_AT`]). Everything else (requests from other hosts, unknown numbers) goes to a
//! socket that the kernel picks by hashing the flow.

use crate::link::SLOT_HINT_AT;

/// First word of a probe, in the position of the opcode of a packet. Opcode 0xff is reserved for manufacturers (IBA 9.2.1), so
/// no packet begins with it.
pub(super) const PROBE_MAGIC: u32 = 0xff_f3_77_0c;
/// Byte of a probe that contains the index of the target socket.
pub(super) const PROBE_INDEX_AT: usize = 4;

/// Byte of a packet that holds the high bits of the destination QPN.
const SLOT_AT: u32 = 5;
/// Word of a packet that ends with the destination QPN, and that number in it.
const QPN_WORD_AT: u32 = 4;
const QPN_MASK: u32 = 0x00ff_ffff;
const GSI: u32 = 1;
/// Where a packet to QP1 has its MAD: behind BTH and DETH.
const MAD_AT: u32 = 20;
/// Which message it is.
const ATTRIBUTE_AT: u32 = MAD_AT + 16;
const REQ: u32 = 0x10;
const REJ: u32 = 0x12;
const DREQ: u32 = 0x15;
const DREP: u32 = 0x16;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;
/// First byte of the receiver's communication id, in a SIDR_REP and in all other answers.
const SIDR_REQUEST_ID_AT: u32 = MAD_AT + 24;
const REMOTE_COMM_ID_AT: u32 = MAD_AT + 28;
/// An index that no socket has: the kernel then picks by hash.
const NO_INDEX: u32 = u32::MAX;

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_LOADED: u32 = libc::BPF_RET | BPF_A;
/// Not in the `libc` crate for every C library.
const BPF_A: u32 = 0x10;

/// The slot in a packet to QP1, as the program below finds it; zero if there is none.
pub(crate) fn management_slot(packet: &[u8]) -> u8 {
    let byte = |at: u32| packet.get(at as usize).copied().unwrap_or(0);
    match management_attribute(packet) {
        REQ | SIDR_REQ => byte(MAD_AT + SLOT_HINT_AT as u32),
        SIDR_REP => byte(SIDR_REQUEST_ID_AT),
        _ => byte(REMOTE_COMM_ID_AT),
    }
}

/// Whether a packet to QP1 may be the last message of its sender, which may exit before it can retry it.
pub(crate) fn is_final_message(packet: &[u8]) -> bool {
    matches!(management_attribute(packet), REJ | DREQ | DREP | SIDR_REP)
}

fn management_attribute(packet: &[u8]) -> u32 {
    let half = packet.get(ATTRIBUTE_AT as usize..).and_then(|rest| rest.first_chunk());
    half.map_or(0, |half| u16::from_be_bytes(*half).into())
}

/// The program for a group whose sockets belong to these slots, in the kernel's order.
pub(super) fn program(order: &[u8]) -> Vec<libc::sock_filter> {
    assemble(order, |_| true, NO_INDEX)
}

/// The same, but nothing goes to the socket of `leaving`, so that it can be emptied and closed without a loss. `None` if
/// there is no other.
pub(super) fn program_without(order: &[u8], leaving: u8) -> Option<Vec<libc::sock_filter>> {
    let another = order.iter().position(|&slot| slot != leaving)?;
    Some(assemble(order, |slot| slot != leaving, another as u32))
}

fn assemble(order: &[u8], includes: impl Fn(u8) -> bool, otherwise: u32) -> Vec<libc::sock_filter> {
    let mut program = vec![
        step(LOAD_WORD, 0),
        branch(PROBE_MAGIC, 0, 2),
        step(LOAD_BYTE, PROBE_INDEX_AT as u32),
        step(RETURN_LOADED, 0),
        step(LOAD_WORD, QPN_WORD_AT),
        step(AND, QPN_MASK),
        branch(GSI, 2, 0),
        step(LOAD_BYTE, SLOT_AT),
        step(JUMP, 9),
        step(LOAD_HALF, ATTRIBUTE_AT),
        branch(REQ, 4, 0),
        branch(SIDR_REQ, 3, 0),
        branch(SIDR_REP, 4, 0),
        step(LOAD_BYTE, REMOTE_COMM_ID_AT),
        step(JUMP, 3),
        step(LOAD_BYTE, MAD_AT + SLOT_HINT_AT as u32),
        step(JUMP, 1),
        step(LOAD_BYTE, SIDR_REQUEST_ID_AT),
    ];
    for (index, &slot) in order.iter().enumerate().filter(|&(_, &slot)| includes(slot)) {
        program.push(branch(u32::from(slot), 0, 1));
        program.push(step(RETURN, index as u32));
    }
    program.push(step(RETURN, otherwise));
    program
}

fn step(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn branch(k: u32, if_equal: u8, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code: JUMP_EQUAL as u16, jt: if_equal, jf: otherwise, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::wire::cm::{
        Apr, CmMad, CmMessage, CommId, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
    };
    use ferroce_proto::wire::{Bth, Deth, GSI_QKEY, Headers, Opcode, Operation, Service};
    use ferroce_proto::{Psn, Qpn};

    /// The few instructions above, as the kernel runs them: a load outside the packet ends with 0.
    fn run(program: &[libc::sock_filter], packet: &[u8]) -> u32 {
        let (mut at, mut loaded) = (0, 0_u32);
        loop {
            let i = program[at];
            at += 1;
            match u32::from(i.code) {
                LOAD_WORD => match packet.get(i.k as usize..i.k as usize + 4) {
                    Some(b) => loaded = u32::from_be_bytes(b.try_into().unwrap()),
                    None => return 0,
                },
                LOAD_HALF => match packet.get(i.k as usize..i.k as usize + 2) {
                    Some(b) => loaded = u16::from_be_bytes(b.try_into().unwrap()).into(),
                    None => return 0,
                },
                AND => loaded &= i.k,
                JUMP => at += i.k as usize,
                LOAD_BYTE => match packet.get(i.k as usize) {
                    Some(&b) => loaded = b.into(),
                    None => return 0,
                },
                JUMP_EQUAL => at += usize::from(if loaded == i.k { i.jt } else { i.jf }),
                RETURN => return i.k,
                RETURN_LOADED => return loaded,
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn packets_go_to_the_index_of_their_slot() {
        let program = program(&[9, 3, 254]);
        let to = |slot| [0x64, 0, 0xff, 0xff, 0, slot, 1, 2, 0, 0, 0, 0];
        assert_eq!(run(&program, &to(9)), 0);
        assert_eq!(run(&program, &to(3)), 1);
        assert_eq!(run(&program, &to(254)), 2);
        for stranger in [0, 1, 255] {
            assert_eq!(run(&program, &to(stranger)), NO_INDEX);
        }
        assert_eq!(run(&program, &[1, 2]), 0);
    }

    /// A packet to QP1 as the NIC makes it.
    fn management(message: CmMessage, hint: u8) -> Vec<u8> {
        let bth = Bth::new(Opcode::new(Service::Ud, Operation::SendOnly), Qpn::GSI, Psn::new(0));
        let mut headers = Headers::new(bth);
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
        let mut packet = vec![0; headers.encoded_len()];
        headers.write(&mut packet);
        let mad = CmMad { tid: 7 << 56, attr_mod: u32::MAX, message };
        packet.extend(mad.to_bytes());
        packet[MAD_AT as usize + SLOT_HINT_AT] = hint;
        assert_eq!(CmMad::parse(&packet[MAD_AT as usize..]), Ok(mad), "the hint is not part of the message");
        packet
    }

    #[test]
    fn management_goes_to_who_gave_out_the_id() {
        let program = program(&[9, 3, 254]);
        let (local_comm_id, remote_comm_id) = (CommId(0x09ff_ffff), CommId(0x03ff_ffff));
        let answers = [
            CmMessage::Mra(Mra { local_comm_id, remote_comm_id, ..Mra::default() }),
            CmMessage::Rej(Rej { local_comm_id, remote_comm_id, ..Rej::default() }),
            CmMessage::Rep(Rep { local_comm_id, remote_comm_id, ..Rep::default() }),
            CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
            CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, ..Dreq::default() }),
            CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
            CmMessage::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() }),
            CmMessage::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() }),
            CmMessage::SidrRep(SidrRep { request_id: remote_comm_id, ..SidrRep::default() }),
        ];
        for message in answers {
            assert_eq!(run(&program, &management(message, 254)), 1, "{}", message.name());
            assert_eq!(management_slot(&management(message, 254)), 3, "{}", message.name());
        }
        let requests = [
            CmMessage::Req(Req { local_comm_id, ..Req::default() }),
            CmMessage::SidrReq(SidrReq { request_id: local_comm_id, ..SidrReq::default() }),
        ];
        for message in requests {
            assert_eq!(run(&program, &management(message, 0)), NO_INDEX, "{}", message.name());
            assert_eq!(run(&program, &management(message, 254)), 2, "{}", message.name());
            assert_eq!([0, 254].map(|hint| management_slot(&management(message, hint))), [0, 254]);
        }
        let unanswered = CmMessage::Rej(Rej { local_comm_id, ..Rej::default() });
        assert_eq!(run(&program, &management(unanswered, 0)), NO_INDEX);
        assert_eq!(run(&program, &management(unanswered, 0)[..40]), 0);
        assert_eq!(management_slot(&management(unanswered, 0)[..40]), 0);
    }

    #[test]
    fn nothing_goes_to_who_leaves() {
        assert!(program_without(&[9], 9).is_none());
        let program = program_without(&[9, 3, 254], 9).unwrap();
        for (slot, index) in [(3, 1), (254, 2), (9, 1), (77, 1)] {
            assert_eq!(run(&program, &[0x64, 0, 0xff, 0xff, 0, slot, 1, 2, 0, 0, 0, 0]), index);
        }
    }

    #[test]
    fn probes_go_to_the_index_they_name() {
        let program = program(&[9]);
        let mut probe = [0; 40];
        probe[..4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
        probe[PROBE_INDEX_AT] = 17;
        assert_eq!(run(&program, &probe), 17);
    }

    #[test]
    fn a_full_house_fits_the_kernel() {
        let everyone: Vec<u8> = (1..=254).collect();
        assert!(program(&everyone).len() <= 4096);
    }
}
