//! Multicast between processes of one host: every member receives each message exactly once, over every path.

mod support;

use ferroce::{AddressHandle, Config, Endpoint, LinkChoice, Qkey, Region, Ud, WcOpcode, wr};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::{MAX_WAIT, Side, V4, watched};

const ROLE: &str = "GROUPS_MEMBER";
const KEY: Qkey = Qkey(0x77);
const RECEIVES: u64 = 256;
const LEN: u64 = 64;
/// Added to the numbers that a member's second queue pair receives.
const SECOND: u32 = 1_000_000;

/// A process with a datagram queue pair, which executes commands.
struct Member {
    process: Child,
    lines: BufReader<ChildStdout>,
    received: Vec<u32>,
    has_rings: bool,
}

impl Member {
    fn new() -> Member {
        Self::start(&mut Command::new(std::env::current_exe().unwrap()))
    }

    fn without_rings() -> Member {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut member = Self::start(command.env("FERROCE_LINK", "udp"));
        member.has_rings = false;
        member
    }

    fn in_group(group: &str) -> Member {
        Member::new().joined(group)
    }

    fn joined(mut self, group: &str) -> Member {
        self.tell(&format!("join {group}"));
        self
    }

    fn start(command: &mut Command) -> Member {
        let mut process = command
            .args(["member_process", "--exact", "--nocapture"])
            .env(ROLE, "yes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let has_rings = Config::from_env().unwrap().link != LinkChoice::Udp;
        let mut member = Member { process, lines, received: Vec::new(), has_rings };
        member.await_word("ready");
        member
    }

    /// Its next word, after all receptions before it; `None` for a reception.
    fn next(&mut self) -> Option<(String, u64)> {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "the process is gone");
        // The test harness prints around us, also on the same line.
        let (_, said) = line.split_once('@')?;
        let (word, number) = said.trim().split_once(' ').unwrap();
        let number = number.parse().unwrap();
        if word == "received" {
            self.received.push(number as u32);
            return None;
        }
        Some((word.to_owned(), number))
    }

    fn await_word(&mut self, wanted: &str) -> u64 {
        loop {
            match self.next() {
                Some((word, number)) if word == wanted => return number,
                Some((word, _)) => panic!("{word} instead of {wanted}"),
                None => {}
            }
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    fn tell(&mut self, order: &str) -> u64 {
        self.order(order);
        self.await_word("done")
    }

    /// Sends numbered messages to a group.
    fn send(&mut self, group: &str, first: u32, count: u32) {
        self.tell(&format!("send {group} {first} {count}"));
    }

    /// Waits until it has received this many messages.
    fn await_all(&mut self, received: usize) {
        let start = Instant::now();
        while self.received.len() < received {
            assert!(start.elapsed() < MAX_WAIT, "watchdog: received {:?}", self.received);
            self.tell("nothing");
        }
    }

    /// The received numbers, sorted.
    fn take_received(&mut self) -> Vec<u32> {
        let mut received = std::mem::take(&mut self.received);
        received.sort_unstable();
        received
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Stops all its threads. The signal alone takes effect with a delay.
    fn stop(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.process.id());
        let has_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        while !std::fs::read_dir(&tasks).unwrap().flatten().all(has_stopped) {}
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Parts of a [`Member`].
struct Listener {
    side: Side<Ud>,
    second: Option<ferroce::UdQp>,
    region: Region,
    groups: HashMap<IpAddr, AddressHandle>,
}

impl Listener {
    fn new() -> Listener {
        let side = Side::new(|pd, cq| pd.ud(cq).address(V4).qkey(KEY), |qp| qp.depth(512, RECEIVES as u32));
        let region = side.pd.region((2 * RECEIVES * LEN) as usize).register().unwrap();
        let listener = Listener { side, second: None, region, groups: HashMap::new() };
        (0..RECEIVES).for_each(|number| listener.receive(number));
        listener
    }

    fn receive(&self, number: u64) {
        let sge = self.region.sge(number * LEN..(number + 1) * LEN).unwrap();
        let qp = if number < RECEIVES { &self.side.qp } else { self.second.as_ref().unwrap() };
        qp.post_recv(&[wr::recv(number, &[sge])]).unwrap();
    }

    /// Reports the received messages.
    fn listen(&self) {
        while let Some(completion) = self.side.cq.try_next().unwrap() {
            if completion.opcode != WcOpcode::Recv {
                continue;
            }
            let number = completion.wr_id;
            let mut bytes = [0; 4];
            self.region.read((number * LEN) as usize + 40, &mut bytes).unwrap();
            let second = if number < RECEIVES { 0 } else { SECOND };
            println!("@received {}", u32::from_be_bytes(bytes) + second);
            self.receive(number);
        }
    }

    fn obey(&mut self, order: &str) -> u64 {
        let mut words = order.split(' ');
        let verb = words.next().unwrap();
        let group: Option<IpAddr> = words.next().map(|word| word.parse().unwrap());
        let numbers: Vec<u32> = words.map(|word| word.parse().unwrap()).collect();
        match verb {
            "join" => self.side.qp.join(group.unwrap()).unwrap(),
            "leave" => self.side.qp.leave(group.unwrap()).unwrap(),
            "second" => {
                let qp = self.side.pd.ud(&self.side.cq).address(V4).qkey(KEY).depth(512, RECEIVES as u32);
                let qp = self.second.insert(qp.create().unwrap());
                qp.join(group.unwrap()).unwrap();
                (RECEIVES..2 * RECEIVES).for_each(|number| self.receive(number));
            }
            "send" => self.send(group.unwrap(), numbers[0], numbers[1]),
            "nothing" => {}
            "echoes" => return self.side.device.counters().link.local_echoes,
            other => panic!("no order {other}"),
        }
        0
    }

    fn send(&mut self, group: IpAddr, first: u32, count: u32) {
        let Side { device, pd, qp, .. } = &self.side;
        let to = self.groups.entry(group).or_insert_with(|| {
            pd.address_handle(&Endpoint::multicast(group, KEY), device.gid_index(V4).unwrap()).unwrap()
        });
        for number in first..first + count {
            qp.send_inline(number.into(), &number.to_be_bytes(), to).unwrap();
        }
    }
}

/// Not a test, but the body of a [`Member`].
#[test]
fn member_process() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let mut listener = Listener::new();
    println!("@ready 0");
    let (tell, orders) = mpsc::channel();
    std::thread::spawn(move || std::io::stdin().lines().for_each(|line| tell.send(line.unwrap()).unwrap()));
    loop {
        listener.listen();
        match orders.recv_timeout(Duration::from_millis(1)) {
            Ok(order) => {
                let answer = listener.obey(&order);
                listener.listen();
                println!("@done {answer}");
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn all(numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.collect()
}

/// Waits until the members have read all copies that the kernel has for them: the last one comes to all by UDP.
fn fence(group: &str, members: &mut [&mut Member]) {
    const LAST: u32 = 999_999;
    Member::without_rings().send(group, LAST, 1);
    for member in members {
        let start = Instant::now();
        while !member.received.contains(&LAST) {
            assert!(start.elapsed() < MAX_WAIT, "watchdog: the last is not received");
            member.tell("nothing");
        }
        member.tell("nothing");
        // All queue pairs of a process receive it.
        member.received.retain(|number| number % SECOND != LAST);
    }
}

#[test]
fn members_in_three_processes_hear_everything_once() {
    watched(|| {
        let group = "239.77.2.1";
        let mut members =
            [Member::in_group(group), Member::in_group(group), Member::without_rings().joined(group)];
        let mut stranger = Member::new();
        let mut quiet = Member::in_group("239.77.2.2");
        // From one that is no member, from each of the members, and from one without rings.
        stranger.send(group, 0, 40);
        for (index, member) in members.iter_mut().enumerate() {
            member.send(group, 40 * (index as u32 + 1), 40);
        }
        members.iter_mut().for_each(|member| member.await_all(160));
        fence(group, &mut members.each_mut());
        for (index, member) in members.iter_mut().enumerate() {
            assert_eq!(member.take_received(), all(0..160), "member {index}");
            assert!(member.has_rings || member.tell("echoes") == 0);
        }
        // The kernel filters copies that the rings deliver.
        stranger.send(group, 160, 40);
        members.iter_mut().for_each(|member| member.await_all(40));
        fence(group, &mut members.each_mut());
        for member in &mut members {
            assert_eq!(member.take_received(), all(160..200));
        }
        // Mostly it does come through rings.
        let (start, mut number) = (Instant::now(), 200);
        while members[0].has_rings && members[0].tell("echoes") == 0 {
            assert!(start.elapsed() < MAX_WAIT, "watchdog: rings are never used");
            stranger.send(group, number, 1);
            number += 1;
        }
        quiet.tell("nothing");
        assert!(quiet.take_received().is_empty() && stranger.take_received().is_empty());
    });
}

#[test]
fn two_queue_pairs_of_a_process_hear_once_each() {
    watched(|| {
        let group = "239.77.3.1";
        let (mut member, mut other) = (Member::in_group(group), Member::new());
        member.tell(&format!("second {group}"));
        other.send(group, 0, 50);
        member.send(group, 50, 50);
        member.await_all(200);
        fence(group, &mut [&mut member]);
        assert_eq!(member.take_received(), [all(0..100), all(SECOND..SECOND + 100)].concat());
    });
}

#[test]
fn who_leaves_hears_nothing_and_who_comes_back_does() {
    watched(|| {
        let group = "239.77.4.1";
        let (mut leaver, mut stayer, mut sender) =
            (Member::in_group(group), Member::in_group(group), Member::new());
        for round in 0..10_u32 {
            let first = round * 20;
            leaver.tell(&format!("leave {group}"));
            sender.send(group, first, 10);
            leaver.tell(&format!("join {group}"));
            sender.send(group, first + 10, 10);
            leaver.await_all(10);
            fence(group, &mut [&mut leaver, &mut stayer]);
            assert_eq!(leaver.take_received(), all(first + 10..first + 20));
        }
        assert_eq!(stayer.take_received(), all(0..200));
        assert!(leaver.take_received().is_empty());
    });
}

#[test]
fn a_killed_member_is_nobodys_loss() {
    watched(|| {
        let group = "239.77.5.1";
        let (victim, mut member, mut sender) =
            (Member::in_group(group), Member::in_group(group), Member::new());
        sender.send(group, 0, 30);
        victim.kill();
        sender.send(group, 30, 30);
        // A new process, perhaps in the same slot.
        let mut late = Member::in_group(group);
        sender.send(group, 60, 30);
        member.await_all(90);
        late.await_all(30);
        fence(group, &mut [&mut member, &mut late]);
        assert_eq!((member.take_received(), late.take_received()), (all(0..90), all(60..90)));
    });
}

#[test]
fn what_a_killed_sender_sent_is_received_once() {
    watched(|| {
        let group = "239.77.6.1";
        let mut members = [Member::in_group(group), Member::without_rings().joined(group)];
        for round in 0..10_u32 {
            let mut sender = Member::new();
            sender.send(group, round * 20, 20);
            sender.kill();
        }
        let mut last = Member::new();
        last.send(group, 200, 20);
        members.iter_mut().for_each(|member| member.await_all(220));
        fence(group, &mut members.each_mut());
        for member in &mut members {
            assert_eq!(member.take_received(), all(0..220));
        }
    });
}

/// The member finds everything together: the rings of processes that are gone, and the kernel's copies.
#[test]
fn a_member_that_was_stopped_hears_the_dead_once() {
    watched(|| {
        let group = "239.77.7.1";
        let mut member = Member::in_group(group);
        for (round, is_known) in [false, true, true].into_iter().enumerate() {
            let first = round as u32 * 100;
            let mut sender = Member::new();
            if is_known {
                sender.send(group, first, 20);
                member.await_all(20);
            }
            member.stop();
            sender.send(group, first + 20, 20);
            sender.kill();
            // Removes what the dead left, and may get its slot. Then the member looks after those whose rings are quiet.
            let mut next = Member::new();
            std::thread::sleep(Duration::from_millis(1100));
            member.signal("-CONT");
            next.send(group, first + 40, 20);
            let received = if is_known { first..first + 60 } else { first + 20..first + 60 };
            member.await_all(received.len());
            fence(group, &mut [&mut member]);
            assert_eq!(member.take_received(), all(received));
        }
    });
}

/// Killed anywhere in the middle of sending: whatever is received is received once.
#[test]
fn a_sender_may_be_killed_anywhere() {
    watched(|| {
        let group = "239.77.8.1";
        let mut members = [Member::in_group(group), Member::without_rings().joined(group)];
        for round in 0..20_u32 {
            let mut sender = Member::new();
            sender.order(&format!("send {group} {} 200", round * 10_000));
            std::thread::sleep(Duration::from_micros(u64::from(round) * 150));
            sender.kill();
        }
        fence(group, &mut members.each_mut());
        for member in &mut members {
            let received = member.take_received();
            assert!(received.windows(2).all(|pair| pair[0] < pair[1]), "{received:?}");
        }
    });
}
