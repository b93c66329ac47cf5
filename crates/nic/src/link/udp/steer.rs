//! Which of the sockets on one port gets a packet: a classic BPF program that reads the destination QPN.
//!
//! The high eight bits of a QPN are the slot of the process that owns it. Everything else (connection management to QP1,
//! strangers' numbers) goes to a socket that the kernel picks by hashing the flow.

/// First word of a probe, where a packet has its opcode: 0xff is reserved for manufacturers (IBA 9.2.1), so that
/// no packet begins like this.
pub(super) const PROBE_MAGIC: u32 = 0xff_f3_77_0c;
/// Byte of a probe that names the place it wants to reach.
pub(super) const PROBE_PLACE_AT: usize = 4;

/// Byte of a packet that holds the high bits of the destination QPN.
const SLOT_AT: u32 = 5;
/// A place that no socket has: the kernel then picks by hash.
const NO_PLACE: u32 = u32::MAX;

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_LOADED: u32 = libc::BPF_RET | BPF_A;
/// Not in the `libc` crate for every C library.
const BPF_A: u32 = 0x10;

/// The program for a group whose sockets belong to these slots, in the kernel's order.
pub(super) fn program(order: &[u8]) -> Vec<libc::sock_filter> {
    assemble(order, |_| true, NO_PLACE)
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
        step(LOAD_BYTE, PROBE_PLACE_AT as u32),
        step(RETURN_LOADED, 0),
        step(LOAD_BYTE, SLOT_AT),
    ];
    for (place, &slot) in order.iter().enumerate().filter(|&(_, &slot)| includes(slot)) {
        program.push(branch(u32::from(slot), 0, 1));
        program.push(step(RETURN, place as u32));
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
    fn packets_go_to_the_place_of_their_slot() {
        let program = program(&[9, 3, 254]);
        let to = |slot| [0x64, 0, 0xff, 0xff, 0, slot, 1, 2, 0, 0, 0, 0];
        assert_eq!(run(&program, &to(9)), 0);
        assert_eq!(run(&program, &to(3)), 1);
        assert_eq!(run(&program, &to(254)), 2);
        for stranger in [0, 1, 255] {
            assert_eq!(run(&program, &to(stranger)), NO_PLACE);
        }
        assert_eq!(run(&program, &[1, 2]), 0);
    }

    #[test]
    fn nothing_goes_to_who_leaves() {
        assert!(program_without(&[9], 9).is_none());
        let program = program_without(&[9, 3, 254], 9).unwrap();
        for (slot, place) in [(3, 1), (254, 2), (9, 1), (77, 1)] {
            assert_eq!(run(&program, &[0x64, 0, 0xff, 0xff, 0, slot, 1, 2, 0, 0, 0, 0]), place);
        }
    }

    #[test]
    fn probes_go_to_the_place_they_name() {
        let program = program(&[9]);
        let mut probe = [0; 40];
        probe[..4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
        probe[PROBE_PLACE_AT] = 17;
        assert_eq!(run(&program, &probe), 17);
    }

    #[test]
    fn a_full_house_fits_the_kernel() {
        let everyone: Vec<u8> = (1..=254).collect();
        assert!(program(&everyone).len() <= 4096);
    }
}
