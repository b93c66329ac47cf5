//! Support of the tests: a watchdog, pairs of connected queue pairs, and waits that report what they waited for.
#![allow(dead_code, unreachable_pub)] // every test file is a crate that uses some of it

pub mod process;

use ferroce::{
    AsyncEvent, Completion, Config, Cq, Device, Endpoint, Error, EventKind, Pd, Qp, QpBuilder, Rc, RcQp,
    Region, Service, Uc, WcStatus,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit of a test on any machine.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Both IP versions, over loopback.
pub const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
pub const V4: IpAddr = LOOPBACKS[0];

/// Runs a test body and panics if it has not ended in time.
pub fn watched(body: impl FnOnce() + Send + 'static) {
    let (tell, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = tell.send(());
    });
    // Each kill takes a tenth of a second, more on a busy machine.
    let limit = 2 * MAX_WAIT + Duration::from_millis(500) * number("FERROCE_TEST_KILLS").unwrap_or(0) as u32;
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
        panic!("watchdog: the test hangs, it has not ended after {limit:?}");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A device on loopback only: tests do not depend on the machine's other addresses.
pub fn device() -> Device {
    device_at(&LOOPBACKS)
}

/// The same with other addresses. Processes of one user that share an address also share work: they forward misrouted packets, and
/// change the steering after each death of a process.
pub fn device_at(addresses: &[IpAddr]) -> Device {
    let config = Config::from_env().expect("environment").with(|c| c.addresses = Some(addresses.to_vec()));
    Device::open_with(config).expect("the device opens")
}

/// One side of a test.
pub struct Side<T: Service> {
    pub device: Device,
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp<T>,
}

/// Two sides, each with a device of its own.
pub struct Pair<T: Service> {
    pub a: Side<T>,
    pub b: Side<T>,
}

impl<T: Service> Side<T> {
    pub fn new(
        make: impl FnOnce(&Pd, &Cq) -> QpBuilder<T>,
        settle: impl FnOnce(QpBuilder<T>) -> QpBuilder<T>,
    ) -> Self {
        Side::on(device(), make, settle)
    }

    /// The same on an open device.
    pub fn on(
        device: Device,
        make: impl FnOnce(&Pd, &Cq) -> QpBuilder<T>,
        settle: impl FnOnce(QpBuilder<T>) -> QpBuilder<T>,
    ) -> Self {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let qp = settle(make(&pd, &cq)).create().unwrap();
        Side { device, pd, cq, qp }
    }

    /// A region with every right.
    pub fn open_region(&self, len: usize) -> Region {
        self.pd.region(len).remote_read().remote_write().remote_atomic().register().unwrap()
    }

    pub fn endpoint(&self) -> Endpoint {
        self.qp.endpoint().unwrap()
    }

    /// The next completion, which must be a success.
    #[track_caller]
    pub fn success(&self) -> Completion {
        success(&self.cq)
    }

    /// The next completion, which must have this status.
    #[track_caller]
    pub fn status(&self, status: WcStatus) -> Completion {
        let completion = next(&self.cq);
        assert_eq!(completion.status, status, "{completion:?}");
        completion
    }
}

impl Pair<Rc> {
    pub fn rc(address: IpAddr) -> Self {
        Self::rc_with(address, |qp| qp)
    }

    pub fn rc_with(address: IpAddr, settle: impl Fn(QpBuilder<Rc>) -> QpBuilder<Rc>) -> Self {
        let side = || Side::new(|pd, cq| pd.rc(cq).address(address), &settle);
        let pair = Pair { a: side(), b: side() };
        join(&pair.a.qp, &pair.b.qp);
        pair
    }
}

impl Pair<Uc> {
    pub fn uc(address: IpAddr) -> Self {
        let side = || Side::new(|pd, cq| pd.uc(cq).address(address), |qp| qp.sges(32, 32));
        let pair = Pair { a: side(), b: side() };
        pair.a.qp.connect(&pair.b.endpoint()).unwrap();
        pair.b.qp.connect(&pair.a.endpoint()).unwrap();
        pair
    }
}

/// Connects two queue pairs with each other.
pub fn join(a: &RcQp, b: &RcQp) {
    a.connect(&b.endpoint().unwrap()).unwrap();
    b.connect(&a.endpoint().unwrap()).unwrap();
}

#[track_caller]
pub fn next(cq: &Cq) -> Completion {
    match cq.wait_timeout(MAX_WAIT) {
        Ok(completion) => completion,
        Err(error) => panic!("no completion: {error}"),
    }
}

#[track_caller]
pub fn success(cq: &Cq) -> Completion {
    let completion = next(cq);
    assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
    completion
}

/// The next event of this kind; other events are skipped.
#[track_caller]
pub fn event(device: &Device, kind: EventKind) -> AsyncEvent {
    loop {
        match device.wait_event_timeout(MAX_WAIT) {
            Ok(event) if event.kind == kind => return event,
            Ok(_) => {}
            Err(error) => panic!("no {kind:?} event: {error}"),
        }
    }
}

/// Polls a condition until it is true. It must become true without action of the caller.
#[track_caller]
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < MAX_WAIT, "watchdog: waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// Bytes that depend on the offset and the seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The post error inside.
pub fn post_error(error: &Error) -> Option<ferroce::PostError> {
    match error.refusal() {
        Some(ferroce::Refusal::Post(inner)) => Some(*inner),
        _ => None,
    }
}

/// Moments to kill somebody at, up to 30 ms: `FERROCE_TEST_KILLS` of them, or as many as `usual`. They differ from run to run;
/// `FERROCE_TEST_SEED` brings those of a run that failed back.
pub fn moments(usual: u64) -> impl Iterator<Item = Duration> {
    let seed = number("FERROCE_TEST_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    println!("FERROCE_TEST_SEED={seed}");
    let mut state = seed;
    (0..number("FERROCE_TEST_KILLS").unwrap_or(usual)).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros((state >> 33) % 30_000)
    })
}

/// The value of an environment variable, if it is set.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|n| n.parse().expect("a number"))
}
