//! The switch: thresholds, pauses, priorities, marks, choice of ports.

use super::*;

const GIGABIT: u64 = 1_000_000_000;

fn config(ports: usize) -> SwitchConfig {
    SwitchConfig {
        ports: vec![PortConfig { rate: 100 * GIGABIT, delay_ns: 1000 }; ports],
        buffer: 1_000_000,
        pfc: None,
        egress_alpha: 1.0,
        red: None,
        balance: Balance::Ecmp,
    }
}

fn pfc() -> Pfc {
    Pfc {
        alpha: 0.5,
        alpha_rate: 100 * GIGABIT,
        reserve: 2000,
        resume_offset: 3000,
        headroom: Some(30_000),
        max_packet: 1000,
        lossless: 1 << 3,
    }
}

#[test]
fn a_queue_without_pfc_stops_at_its_dynamic_threshold() {
    let mut switch = Switch::new(config(2), 1, 0);
    let mut accepted = 0;
    while switch.handle_packet(0, 1, 3, accepted, 1000) == Admission::Queued {
        accepted += 1;
    }
    // q = alpha · (B − q) with alpha 1: half of the buffer.
    assert_eq!(accepted, 500);
    assert_eq!(
        switch.handle_packet(0, 0, 3, 0, 1000),
        Admission::Queued,
        "another queue has its own threshold"
    );
    assert_eq!(switch.handle_packet(0, 1, 0, 0, 1000), Admission::Queued, "ACKs may use the whole buffer");
}

#[test]
fn pfc_pauses_at_the_threshold_and_resumes_below_it() {
    let mut switch = Switch::new(SwitchConfig { pfc: Some(pfc()), ..config(2) }, 1, 0);
    // Shared: 1 MB − 2 · 32 kB = 936 kB; s = 0.5 · (936 kB − s): 312 kB, and the reserve.
    let mut accepted = 0;
    while switch.poll_pause().is_none() {
        assert_eq!(switch.handle_packet(0, 1, 3, accepted, 1000), Admission::Queued);
        accepted += 1;
    }
    assert_eq!(accepted, 314);
    let mut late = 0;
    while switch.handle_packet(0, 1, 3, 0, 1000) == Admission::Queued {
        late += 1;
        assert_eq!(switch.poll_pause(), None, "one pause is enough");
    }
    assert_eq!(late, 30, "the headroom");
    assert_eq!(switch.handle_packet(0, 1, 3, 0, 1000), Admission::Dropped(DropReason::Headroom));
    let mut left = 0;
    let resume = loop {
        switch.poll_transmit(1).expect("a packet");
        left += 1;
        if let Some(pause) = switch.poll_pause() {
            break pause;
        }
    };
    assert_eq!(resume, Pause { port: 0, priority: 3, stop: false });
    // 30 packets of headroom; then s + 3 kB ≤ 0.5 · (936 kB − s): s = 310 kB.
    assert_eq!(left, 30 + 2);
    while switch.poll_transmit(1).is_some() {}
    assert_eq!(switch.buffered_bytes(), 0);
}

#[test]
fn a_paused_priority_waits_and_acks_pass() {
    let mut switch = Switch::new(config(2), 1, 0);
    for (priority, id) in [(3, 30), (4, 40), (3, 31), (0, 1), (4, 41)] {
        assert_eq!(switch.handle_packet(0, 1, priority, id, 100), Admission::Queued);
    }
    switch.handle_pause(1, 3, true);
    switch.handle_pause(1, 0, true);
    let mut order = Vec::new();
    while let Some(departure) = switch.poll_transmit(1) {
        order.push(departure.id);
    }
    assert_eq!(order, [1, 40, 41]);
    assert!(!switch.can_transmit(1));
    switch.handle_pause(1, 3, false);
    assert_eq!(switch.poll_transmit(1).map(|departure| departure.id), Some(30));
}

#[test]
fn priorities_alternate() {
    let mut switch = Switch::new(config(2), 1, 0);
    for id in 0..6 {
        assert_eq!(switch.handle_packet(0, 1, [3, 5][id as usize / 3], id, 100), Admission::Queued);
    }
    let order: Vec<u32> =
        std::iter::from_fn(|| switch.poll_transmit(1)).map(|departure| departure.id).collect();
    assert_eq!(order, [0, 3, 1, 4, 2, 5]);
}

#[test]
fn acks_between_data_do_not_change_the_round_robin_order() {
    let mut switch = Switch::new(config(2), 1, 0);
    for id in 0..6 {
        assert_eq!(switch.handle_packet(0, 1, [3, 5][id as usize / 3], id, 100), Admission::Queued);
    }
    let mut order = Vec::new();
    for ack in 100..106 {
        assert_eq!(switch.handle_packet(0, 1, 0, ack, 100), Admission::Queued);
        assert_eq!(switch.poll_transmit(1).map(|departure| departure.id), Some(ack), "ACKs first");
        order.extend(switch.poll_transmit(1).map(|departure| departure.id));
    }
    assert_eq!(order, [0, 3, 1, 4, 2, 5]);
}

#[test]
fn red_marks_with_the_probability_of_the_queue_left_behind() {
    let red = Red { kmin: 10_000.0, kmax: 50_000.0, pmax: 0.2, rate: 100 * GIGABIT };
    let mut switch = Switch::new(SwitchConfig { red: Some(red), ..config(2) }, 1, 0);
    let mut marks = |queue: u32| {
        let mut marked = 0;
        for _ in 0..20_000 {
            for id in 0..=queue {
                assert_eq!(switch.handle_packet(0, 1, 3, id, 1000), Admission::Queued);
            }
            marked += u32::from(switch.poll_transmit(1).expect("a packet").mark);
            while switch.poll_transmit(1).is_some() {}
        }
        f64::from(marked) / 20_000.0
    };
    assert_eq!(marks(10), 0.0);
    assert!((marks(30) - 0.1).abs() < 0.01);
    assert_eq!(marks(51), 1.0);
}

#[test]
fn ecmp_is_uniform_by_chi_square_and_stays_on_one_path() {
    let mut switch = Switch::new(config(16), 7, 3);
    let ports: Vec<u16> = (0..16).collect();
    let mut counts = [0f64; 16];
    for flow in 0..100_000u32 {
        let port = switch.choose_port(&ports, flow);
        assert_eq!(switch.choose_port(&ports, flow), port);
        counts[usize::from(port)] += 1.0;
    }
    let expected = 100_000.0 / 16.0;
    let chi_square: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    assert!(chi_square < 37.7, "p = 0.001 for 15 degrees of freedom: {chi_square}");
}

#[test]
fn spray_is_round_robin_and_least_queue_avoids_the_longest() {
    let mut switch = Switch::new(SwitchConfig { balance: Balance::Spray, ..config(4) }, 1, 0);
    let mut counts = [0; 4];
    for _ in 0..100 {
        counts[usize::from(switch.choose_port(&[0, 1, 2, 3], 9))] += 1;
    }
    assert_eq!(counts, [25; 4]);
    let mut switch = Switch::new(SwitchConfig { balance: Balance::LeastQueue, ..config(4) }, 1, 0);
    assert_eq!(switch.handle_packet(3, 0, 3, 0, 1000), Admission::Queued);
    assert_eq!(switch.handle_packet(3, 2, 3, 0, 1000), Admission::Queued);
    assert_eq!(switch.choose_port(&[0, 1, 2], 9), 1);
}
