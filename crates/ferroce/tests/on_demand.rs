//! On-demand paging: regions whose pages come with the first access, prefetch, and the whole address space.

mod support;

use ferroce::{Access, Error, Prefetch, Refusal, WcStatus};
use support::{Pair, V4, watched};

/// Bytes of this process that are in physical memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn pages_come_with_the_first_access_or_a_prefetch() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let before = resident_bytes();
        let large = b.pd.region(256 << 20).remote_read().remote_write().on_demand().register().unwrap();
        assert!(resident_bytes() - before < 64 << 20, "registration brings no page in");
        let local = a.open_region(4096);
        local.fill(7);
        let far = large.remote().slice((200 << 20)..(200 << 20) + 4096).unwrap();
        a.qp.write(1, &[local.sge(..).unwrap()], far).unwrap();
        a.success();
        assert_eq!(large.load_u8((200 << 20) + 4095).unwrap(), 7);
        large.prefetch(.., Prefetch::Read).unwrap();
        large.prefetch(..64 << 20, Prefetch::Write).unwrap();
        assert!(resident_bytes() - before >= 64 << 20, "the prefetch brings pages in");
        b.pd.prefetch(&[large.sge(..8).unwrap()], Prefetch::NoFault).unwrap();
    });
}

#[test]
fn prefetch_refuses_other_regions_and_missing_rights() {
    watched(|| {
        let device = support::device();
        let pd = device.alloc_pd().unwrap();
        let reason = |error: Error| match error.refusal() {
            Some(Refusal::Memory(fault)) => *fault,
            _ => panic!("{error}"),
        };
        use ferroce::MemoryFault::{Denied, NotOnDemand, WrongPd};
        let pinned = pd.region(4096).register().unwrap();
        assert!(matches!(reason(pinned.prefetch(.., Prefetch::Read).unwrap_err()), NotOnDemand { .. }));
        let read_only = pd.region(4096).access(Access::ON_DEMAND).register().unwrap();
        read_only.prefetch(.., Prefetch::Read).unwrap();
        assert!(matches!(reason(read_only.prefetch(.., Prefetch::Write).unwrap_err()), Denied { .. }));
        assert!(matches!(read_only.prefetch(..4097, Prefetch::Read), Err(Error::Range { .. })));
        let other = device.alloc_pd().unwrap();
        let foreign = other.prefetch(&[read_only.sge(..).unwrap()], Prefetch::Read);
        assert!(matches!(reason(foreign.unwrap_err()), WrongPd { .. }));
    });
}

#[test]
fn the_whole_address_space_is_one_region() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        // SAFETY: the work requests below name `target` only, through its pointer, and an address without a page.
        let all = unsafe { b.pd.register_address_space(Access::LOCAL_WRITE | Access::REMOTE) }.unwrap();
        let target = Box::into_raw(Box::new([0u8; 64]));
        let message = pattern();
        let received = b.qp.post_recv(&[ferroce::wr::recv(1, &[all.sge(target.cast(), 64)])]);
        received.unwrap();
        a.qp.send_inline(1, &message).unwrap();
        a.success();
        b.success();
        let back = a.open_region(64);
        a.qp.read(2, &[back.sge(..).unwrap()], all.remote(target.cast(), 64)).unwrap();
        a.success();
        assert_eq!(back.to_vec(), message);
        // SAFETY: made by `Box::into_raw` above; no work request uses it any more.
        assert_eq!(*unsafe { Box::from_raw(target) }, message);
        a.qp.read(3, &[back.sge(..).unwrap()], all.remote(std::ptr::without_provenance(8), 64)).unwrap();
        assert_ne!(support::next(&a.cq).status, WcStatus::Success, "no page there");
    });
}

fn pattern() -> [u8; 64] {
    std::array::from_fn(|i| i as u8)
}
