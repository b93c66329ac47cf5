//! Device memory: copies of the program, operations of peers, limits.

mod support;

use ferroce::{Access, Error, Refusal, WcStatus};
use support::{Pair, V4, watched};

#[test]
fn peers_and_local_work_requests_reach_device_memory() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let memory = b.device.alloc_device_memory(256, 64).unwrap();
        memory.write(64, &5u64.to_ne_bytes()).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region = memory.register(&b.pd, 64..192, access).unwrap();
        assert_eq!((region.len(), region.remote().addr), (128, 0), "zero based");
        let local = a.open_region(64);
        a.qp.fetch_add(1, local.sge(..8).unwrap(), region.remote(), 2).unwrap();
        a.success();
        assert_eq!(local.load_u64(0).unwrap(), 5);
        local.write(8, b"one-sided write!").unwrap();
        a.qp.write(2, &[local.sge(8..24).unwrap()], region.remote().slice(16..).unwrap()).unwrap();
        a.success();
        let mut bytes = [0; 32];
        memory.read(64, &mut bytes).unwrap();
        assert_eq!((&bytes[..8], &bytes[16..]), (&7u64.to_ne_bytes()[..], &b"one-sided write!"[..]));
        // As the source of a message.
        let received = a.qp.recv(a.pd.buffer(16).unwrap()).unwrap();
        b.qp.send_from(3, &[region.sge(16..32).unwrap()]).unwrap();
        assert_eq!(&*received.wait().unwrap().buffer, b"one-sided write!");
        b.success();
        // The region keeps the memory alive; without the region the peer is refused.
        let remote = region.remote();
        drop(memory);
        a.qp.read(4, &[local.sge(..8).unwrap()], remote).unwrap();
        a.success();
        drop(region);
        a.qp.read(5, &[local.sge(..8).unwrap()], remote).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}

#[test]
fn refusals_name_the_argument() {
    watched(|| {
        let device = support::device();
        let pd = device.alloc_pd().unwrap();
        let attribute = |error: Error| match error.refusal() {
            Some(Refusal::Invalid { attribute, .. }) => *attribute,
            Some(Refusal::Limit { what, .. } | Refusal::Exhausted { what, .. }) => *what,
            _ => panic!("{error}"),
        };
        let alloc = |len, align| device.alloc_device_memory(len, align);
        assert_eq!(attribute(alloc(0, 8).unwrap_err()), "length");
        assert_eq!(attribute(alloc(5 << 20, 8).unwrap_err()), "length");
        assert_eq!(attribute(alloc(64, 24).unwrap_err()), "align");
        assert_eq!(attribute(alloc(64, 8192).unwrap_err()), "log_align_req");
        let memory = alloc(3 << 20, 8).unwrap();
        assert_eq!(attribute(alloc(2 << 20, 8).unwrap_err()), "bytes of device memory");
        assert_eq!(attribute(memory.write(2, &[0; 4]).unwrap_err()), "dm_offset", "not a multiple of 4");
        assert_eq!(attribute(memory.read(3 << 20, &mut [0; 4]).unwrap_err()), "dm_offset");
        let access = Access::LOCAL_WRITE;
        assert!(matches!(memory.register(&pd, ..(3 << 20) + 1, access), Err(Error::Range { .. })));
        assert_eq!(attribute(memory.register(&pd, .., Access::REMOTE_WRITE).unwrap_err()), "access");
        let other = support::device().alloc_pd().unwrap();
        assert_eq!(attribute(memory.register(&other, .., access).unwrap_err()), "pd");
        drop(memory);
        alloc(4 << 20, 8).unwrap();
    });
}
