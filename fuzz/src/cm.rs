//! Connection management: messages as bytes, and the machine under any sequence of calls, messages and time.

use super::choices::Choices;
use ferroce_proto::cm::{
    Accept, Answer, Cm, CommId, Config, Connect, Event, IpHeader, MadAddressing, Path, PortSpace, Query,
    RejectReason, Scope, Secret, ServiceId,
};
use ferroce_proto::verbs::{Mtu, QpState};
use ferroce_proto::wire::MAD_LEN;
use ferroce_proto::wire::cm::CmMad;
use ferroce_proto::{Gid, Qpn, Time};

const STREAM: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7);
const DATAGRAMS: ServiceId = ServiceId::of_port(PortSpace::Udp, 7);
const MAX_CONNECTIONS: usize = 24;
const MAX_HALF_OPEN: usize = 16;
const MAX_PENDING: usize = 8;
/// Longer than every timer of the connection manager.
const FOREVER_NS: u64 = 3_600_000_000_000;

/// Any bytes are refused, or parsed and written back with the same meaning.
pub fn mad(bytes: &[u8]) {
    if let Ok(mad) = CmMad::parse(bytes) {
        let written = mad.to_bytes();
        assert_eq!(CmMad::parse(&written), Ok(mad));
        assert!(bytes.len() >= MAD_LEN);
        assert_eq!(written[..4], bytes[..4]);
        assert_eq!(written[8..18], bytes[8..18], "transaction and message");
    }
}

/// The connection manager and the knowledge of its peers.
struct World {
    cm: Cm,
    now: Time,
    /// Ids from events and calls.
    ids: Vec<CommId>,
    /// Messages that it sent. Peers answer with parts of them, or send them back.
    transmitted: Vec<[u8; MAD_LEN]>,
}

fn gid(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number % 3].into())
}

/// No sequence makes the connection manager panic, exceed its bounds, or leak state.
pub fn cm(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let kind = choices.byte();
    let config = Config {
        slot: 1,
        max_pending: MAX_PENDING,
        max_connections: MAX_CONNECTIONS,
        max_half_open: MAX_HALF_OPEN,
        max_half_open_per_peer: MAX_HALF_OPEN - 4,
        max_in_flight: 3,
        ..Config::default()
    };
    let mut state = u64::from(kind);
    let random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 13
    };
    let mut world = World {
        cm: Cm::new(config, Box::new(random)),
        now: Time(1),
        ids: Vec::new(),
        transmitted: Vec::new(),
    };
    if kind & 1 != 0 {
        world.cm.set_secret(Secret::new(&[7; 32]));
    }
    for service in [STREAM, DATAGRAMS] {
        world.cm.listen(service, Scope::Any, 6).expect("nobody listens yet");
    }
    while !choices.0.is_empty() {
        world.step(&mut choices);
        world.drain();
        world.check();
    }
    world.end();
}

impl World {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 12 {
            0..=3 => self.message(choices),
            4 => self.pass_time(choices.byte()),
            5 => self.connect(choices),
            6 => {
                let query = Query { service: DATAGRAMS, path: path(choices.byte()), ..Query::default() };
                let id = self.cm.query(&query, self.now);
                self.ids.extend(id);
            }
            7 => {
                let (id, len) = (self.id(choices.byte()), choices.byte() as usize);
                let private_data = &[1; 255][..len];
                let _ = self.cm.accept(id, &Accept { private_data, ..Accept::default() }, self.now);
                let _ = self.cm.answer(id, &Answer { private_data, ..Answer::default() });
            }
            8 => {
                let id = self.id(choices.byte());
                let _ = self.cm.establish(id, &[]);
                let _ = self.cm.qp_attributes(id, QpState::Rtr);
            }
            9 => {
                let (id, reason) = (self.id(choices.byte()), RejectReason(choices.byte().into()));
                let _ = self.cm.reject(id, reason, &[1], &[2], self.now);
            }
            10 => {
                let id = self.id(choices.byte());
                let _ = self.cm.disconnect(id, &[3], self.now);
                let _ = self.cm.notify_established(id);
            }
            _ => {
                let id = self.id(choices.byte());
                self.cm.release(id, self.now);
            }
        }
    }

    fn connect(&mut self, choices: &mut Choices<'_>) {
        let (peer, qpn) = (choices.byte(), choices.byte());
        let ip = Some(IpHeader { sport: 9, src: gid(1).to_ip(), dst: gid(peer).to_ip() });
        let path = path(peer);
        let offer = Connect { service: STREAM, path, ip, qpn: Qpn::new(qpn.into()), ..Connect::default() };
        let id = self.cm.connect(&offer, self.now);
        self.ids.extend(id);
    }

    /// A known id, or an invalid one if none is known.
    fn id(&self, choice: u8) -> CommId {
        self.ids.get(usize::from(choice)).or(self.ids.last()).copied().unwrap_or(CommId(choice.into()))
    }

    /// Handles a message: a transmitted one or zeros, with any kind, known ids, and bytes of the input written over it.
    fn message(&mut self, choices: &mut Choices<'_>) {
        let [start, attribute, sender, receiver, peer, at, len] = [(); 7].map(|()| choices.byte());
        let mut mad = match start {
            0..128 => self.transmitted.get(usize::from(start)).or(self.transmitted.last()).copied(),
            _ => None,
        }
        .unwrap_or([0; MAD_LEN]);
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        if attribute < 0x20 {
            mad[16..18].copy_from_slice(&[0, 0x10 + attribute % 12]);
        }
        if sender < 200 {
            mad[24..28].copy_from_slice(&u32::from(sender).to_be_bytes());
        }
        if receiver < 200 {
            mad[28..32].copy_from_slice(&self.id(receiver).0.to_be_bytes());
        }
        if matches!(mad[17], 0x10 | 0x17) && start >= 128 {
            let service = if mad[17] == 0x10 { STREAM } else { DATAGRAMS };
            mad[32..40].copy_from_slice(&service.0.to_be_bytes());
        }
        let changes = choices.take(len.into());
        let target = &mut mad[usize::from(at)..];
        let fits = changes.len().min(target.len());
        target[..fits].copy_from_slice(&changes[..fits]);
        let inbound = MadAddressing { sgid: gid(peer), dgid: gid(1), sgid_index: 0, mtu: Mtu::B1024 };
        let _ = self.cm.handle_mad(&inbound, &mad, self.now);
    }

    /// From a microsecond to hours.
    fn pass_time(&mut self, choice: u8) {
        self.now = self.now + (1_000_u64 << (choice % 32));
        self.cm.handle_timeout(self.now);
    }

    fn drain(&mut self) {
        while let Some(transmit) = self.cm.poll_transmit() {
            CmMad::parse(&transmit.mad[..]).expect("it sends messages only");
            if self.transmitted.len() < 128 {
                self.transmitted.push(*transmit.mad);
            }
        }
        while let Some(event) = self.cm.poll_event() {
            if let Event::Request(request) = event {
                self.ids.push(request.id);
            }
        }
        if self.ids.len() > 200 {
            self.ids.drain(..100);
        }
    }

    fn check(&self) {
        assert!(self.cm.connections() <= MAX_CONNECTIONS);
        assert!(self.cm.half_open() <= MAX_HALF_OPEN);
        assert!(self.cm.pending() <= MAX_PENDING);
        assert!(self.cm.deadline().is_none() || self.cm.connections() > 0);
    }

    /// Releases all ids. After all timers have expired, no state may be left.
    fn end(mut self) {
        for id in self.cm.held() {
            self.cm.release(id, self.now);
        }
        for _ in 0..64 {
            self.drain();
            self.now = self.now + FOREVER_NS;
            self.cm.handle_timeout(self.now);
        }
        assert_eq!((self.cm.connections(), self.cm.half_open(), self.cm.pending()), (0, 0, 0));
        assert_eq!(self.cm.deadline(), None);
    }
}

fn path(peer: u8) -> Path {
    Path { sgid: gid(1), dgid: gid(peer), mtu: Mtu::B1024, ack_timeout: peer % 32, ..Path::default() }
}
