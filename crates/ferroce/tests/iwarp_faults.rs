//! iWARP with faults by seed: reads and writes that move little or nothing, damaged bytes and resets. And what a capture shows of streams.

mod support;

use ferroce::{
    Config, Connection, Connector, Device, EventKind, FaultConfig, LinkCounters, Listener, QpState, Rc,
    WcStatus, Wire, wr,
};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use support::{LOOPBACKS, Side, V4, event, pattern, until, watched};

fn config(faults: &str, crc: bool) -> Config {
    let faults: FaultConfig = faults.parse().expect("the faults are understood");
    Config::default().with(|config| {
        config.addresses = Some(LOOPBACKS.to_vec());
        (config.wire, config.mpa_crc, config.faults) = (Wire::Iwarp, crc, Some(faults));
    })
}

fn side(config: Config) -> Side<Rc> {
    Side::on(Device::open_with(config).unwrap(), |pd, cq| pd.rc(cq), |qp| qp)
}

/// Connects `a` to `b`; `None` if a fault prevented that.
fn connect(a: &Side<Rc>, b: &Side<Rc>, address: IpAddr) -> Option<(Connection<Rc>, Connection<Rc>)> {
    let listener = Listener::bind(&b.device, SocketAddr::new(address, 0)).unwrap();
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Connector::new(&a.device, to).connect(&a.qp));
        let mut server = None;
        while server.is_none() && !client.is_finished() {
            if let Ok(Some(request)) = listener.try_accept() {
                server = request.accept(&b.qp, b"").ok();
                break;
            }
            std::thread::yield_now();
        }
        client.join().unwrap().ok().zip(server)
    })
}

fn link(side: &Side<Rc>) -> LinkCounters {
    side.device.counters().link
}

/// SEND, WRITE and READ of some lengths, every byte checked.
fn exchange(a: &Side<Rc>, b: &Side<Rc>, seed: u64) {
    let (source, target) = (a.open_region(1 << 18), b.open_region(1 << 18));
    for len in [0, 1, 1000, 70_000, 1 << 18] {
        let data = pattern(seed + len as u64, len);
        source.write(0, &data).unwrap();
        let place = [source.sge(..len as u64).unwrap()];
        b.qp.post_recv(&[wr::recv(1, &[target.sge(..).unwrap()])]).unwrap();
        a.qp.send_from(2, &place).unwrap();
        assert_eq!((a.success().wr_id, b.success().byte_len), (2, len as u32));
        assert!(target.to_vec()[..len] == data, "SEND of {len} bytes");
        target.fill(0);
        let remote = target.remote().slice(..len as u64).unwrap();
        a.qp.write(3, &place, remote).unwrap();
        a.success();
        source.fill(0);
        a.qp.read(4, &place, remote).unwrap();
        a.success();
        assert!(target.to_vec()[..len] == data && source.to_vec()[..len] == data, "WRITE of {len} bytes");
    }
}

#[test]
fn short_and_stalled_reads_and_writes_change_nothing() {
    watched(|| {
        for seed in 1..=4 {
            println!("seed {seed}");
            let config = || config(&format!("short=40%,stall=20%,seed={seed}"), seed % 2 == 0);
            let (a, b) = (side(config()), side(config()));
            let connections = connect(&a, &b, LOOPBACKS[seed as usize / 2 % 2]).expect("connected");
            exchange(&a, &b, seed);
            let (ours, theirs) = (link(&a), link(&b));
            assert!(ours.injected_shorts > 5 && theirs.injected_shorts > 5, "{ours:?} {theirs:?}");
            assert!(ours.injected_stalls > 2 && theirs.injected_stalls > 2, "{ours:?} {theirs:?}");
            drop(connections);
        }
    });
}

/// WRITEs until the connection of `a` ends.
fn write_until_the_end(a: &Side<Rc>, b: &Side<Rc>) {
    let (source, target) = (a.open_region(3000), b.open_region(3000));
    let place = [source.sge(..).unwrap()];
    until("the fault ends the connection", || {
        let _ = a.qp.write(1, &place, target.remote());
        while a.cq.try_next().unwrap().is_some() {}
        a.qp.state() != QpState::Rts
    });
}

#[test]
fn damage_and_resets_end_the_connection_and_nothing_else() {
    watched(|| {
        let mut connected = 0;
        for (faults, crc) in [("corrupt=5%", true), ("reset=5%", false)] {
            for seed in 1..=4 {
                println!("{faults} seed {seed}");
                let a = side(config("", crc));
                let b = side(config(&format!("{faults},seed={seed}"), crc));
                b.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
                let Some(_connections) = connect(&a, &b, V4) else { continue };
                connected += 1;
                write_until_the_end(&a, &b);
                b.status(WcStatus::WrFlushErr);
                assert_eq!(event(&b.device, EventKind::QpFatal).kind, EventKind::QpFatal);
                let counters = link(&b);
                let hits = (counters.injected_corruptions, counters.injected_resets);
                assert!(
                    if crc { hits.0 > 0 && hits.1 == 0 } else { hits.0 == 0 && hits.1 > 0 },
                    "{counters:?}"
                );
            }
        }
        assert!(connected >= 4, "{connected} of 8 connections were established");
    });
}

#[test]
fn faults_of_the_other_wire_are_refused() {
    let refused = |config: Config| Device::open_with(config).unwrap_err().to_string();
    let text = refused(config("loss=1%", false));
    assert!(text.contains("short, stall, reset and corrupt"), "{text}");
    let text = refused(config("stall=1%", false).with(|config| config.wire = Wire::Roce));
    assert!(text.contains("FERROCE_WIRE=iwarp"), "{text}");
}

/// What tshark prints of a capture.
fn tshark(path: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    // It takes every SEND for a message of its own, and a short one for a malformed one.
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(path);
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tshark_dissects_captured_streams() {
    if Command::new("tshark").arg("--version").output().is_err() {
        let why = "tshark is not installed";
        assert!(std::env::var_os("FERROCE_REQUIRE_TOOLS").is_none_or(|v| v != "1"), "{why}");
        return println!("SKIPPED: {why}");
    }
    watched(|| {
        for address in LOOPBACKS {
            let file = format!("ferroce-iwarp-{}-{}.pcapng", std::process::id(), u8::from(address.is_ipv6()));
            let path = std::env::temp_dir().join(file);
            let _ = std::fs::remove_file(&path);
            // Cut reads and writes: a segment of the capture is an FPDU all the same.
            let captured =
                config("short=20%,seed=1", true).with(|config| config.capture = Some(path.clone()));
            let (a, b) = (side(captured), side(config("", true)));
            let connections = connect(&a, &b, address).expect("connected");
            exchange(&a, &b, 1);
            // Refused: the last FPDU is a Terminate.
            let region = a.open_region(8);
            let bad = ferroce::RemoteRegion { rkey: ferroce::RKey(0x5a5a_5a5a), ..region.remote() };
            a.qp.read(5, &[region.sge(..).unwrap()], bad).unwrap();
            a.status(WcStatus::RemAccessErr);
            drop((connections, region, a, b));
            let text = tshark(&path, &["-V"]);
            let count = |what: &str| text.matches(what).count();
            for bad in ["Malformed", "Bad CRC", "[Expert Info (Warning", "[Expert Info (Error"] {
                assert_eq!(count(bad), 0, "{bad}: {}", path.display());
            }
            let fpdus = count("ULPDU length: ");
            assert!(
                fpdus > 20 && count("Good CRC32") == fpdus,
                "{fpdus} FPDUs, {} good",
                count("Good CRC32")
            );
            for kind in
                ["Request frame header", "Reply frame header", "Read Request", "Read Response", "Terminate"]
            {
                assert!(count(kind) > 0, "no {kind}: {}", path.display());
            }
            std::fs::remove_file(&path).unwrap();
        }
    });
}
