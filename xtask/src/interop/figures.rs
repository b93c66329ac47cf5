//! `cargo xtask interop --bench`: the kernel's device and ferroce in the same guest, with the same programs.
//!
//! rdma_rxe owns UDP port 4791 of the whole machine, and rdma_cm uses whichever device has the address, so the devices cannot exist at the
//! same time. They alternate several times, so that a disturbance of the host affects both.

use crate::figure::{self, median};
use std::time::Duration;

use super::Failure;
use super::ends::tcp_listens;
use super::guest::Guest;
use super::namespace::GUEST_V4;
use super::wire::Wire;

const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(240);
/// Folder of our libraries in the guest; all other libraries are the guest's own.
pub(crate) const LIBRARY_DIR: &str = "ferroce";
/// Attempts. perftest with -R listens twice; a client that connects before the second time crashes.
const TRIES: u32 = 3;

/// A program with its arguments, and which column of its table counts.
struct Figure {
    name: &'static str,
    wire: Wire,
    command: &'static str,
    column: usize,
    unit: &'static str,
    more_is_better: bool,
}

const fn bandwidth(name: &'static str, wire: Wire, command: &'static str) -> Figure {
    Figure { name, wire, command, column: 3, unit: "MB/s", more_is_better: true }
}

const fn latency(name: &'static str, wire: Wire, command: &'static str) -> Figure {
    Figure { name, wire, command, column: 4, unit: "us", more_is_better: false }
}

const FIGURES: [Figure; 8] = [
    bandwidth("write 64 KiB", Wire::Roce, "ib_write_bw -s 65536 -n 300"),
    bandwidth("write 4 KiB", Wire::Roce, "ib_write_bw -s 4096 -n 1500"),
    bandwidth("read 64 KiB", Wire::Roce, "ib_read_bw -s 65536 -n 300"),
    latency("send latency 64 B", Wire::Roce, "ib_send_lat -s 64 -n 500"),
    latency("write latency 64 B", Wire::Roce, "ib_write_lat -s 64 -n 500"),
    bandwidth("iwarp write 64 KiB", Wire::Iwarp, "ib_write_bw -R -s 65536 -n 300"),
    bandwidth("iwarp write 4 KiB", Wire::Iwarp, "ib_write_bw -R -s 4096 -n 1500"),
    latency("iwarp send latency 64 B", Wire::Iwarp, "ib_send_lat -R -s 64 -n 500"),
];

/// The measured device.
#[derive(Clone, Copy)]
enum Device {
    Kernel,
    Ferroce,
}

impl Device {
    /// Makes it the only RDMA device of the guest.
    fn enter(self, wire: Wire, guest: &Guest) -> Result<(), Failure> {
        let script = match (self, wire) {
            (Self::Kernel, Wire::Iwarp) => return wire.enter(guest),
            (Self::Kernel, Wire::Roce) => {
                "rdma link delete siw0; lsmod | grep -q rdma_rxe || insmod /modules/*rdma_rxe.ko; \
                 [ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev eth0"
            }
            (Self::Ferroce, Wire::Roce) => "rdma link delete rxe0; rmmod rdma_rxe",
            (Self::Ferroce, Wire::Iwarp) => "rdma link delete siw0",
        };
        let answer = guest.run(0, script, LIMIT)?;
        if answer.status == 0 {
            return Ok(());
        }
        Err(Failure::Broken(format!("changing the device: {}", answer.text)))
    }

    /// Server and client of a figure. A bare RDMA client finds its server over TCP, so it waits for a listener.
    fn line(self, figure: &Figure, port: u16) -> String {
        let Figure { wire, command, .. } = *figure;
        let (environment, device) = match (self, wire) {
            (Self::Kernel, Wire::Roce) => (String::new(), "-d rxe0 -x 1"),
            (Self::Ferroce, Wire::Roce) => (Self::environment(wire), "-d ferroce0 -x 0"),
            (Self::Kernel, Wire::Iwarp) => (String::new(), ""),
            (Self::Ferroce, Wire::Iwarp) => (Self::environment(wire), ""),
        };
        let options = match wire {
            // The default timer of 67 ms is short for an emulated processor on a busy host.
            Wire::Roce => "-m 1024 -u 18",
            Wire::Iwarp => "",
        };
        let end = format!("{environment} timeout -s KILL 100 {command} -F {options} -p {port} {device}");
        let listening = tcp_listens(port);
        format!(
            "{end} > /tmp/server 2>&1 & i=0; until {listening} || [ $i -gt 200 ]; do usleep 50000; i=$((i+1)); done; \
             {end} {GUEST_V4}; wait"
        )
    }

    fn environment(wire: Wire) -> String {
        format!("LD_LIBRARY_PATH=/{LIBRARY_DIR} FERROCE_ADDR={GUEST_V4} FERROCE_WIRE={}", wire.name())
    }
}

/// Measures and prints all figures, or those with one of these words in their names. `no_siw` is the reason why none are over iWARP.
pub(crate) fn run(guest: &Guest, filter: &[String], no_siw: Option<&str>) -> Result<(), Failure> {
    let is_chosen =
        |f: &&Figure| filter.is_empty() || filter.iter().any(|word| f.name.contains(word.as_str()));
    let (figures, over_iwarp) =
        FIGURES.iter().filter(is_chosen).partition::<Vec<_>, _>(|figure| figure.wire == Wire::Roce);
    let skipped = no_siw.filter(|_| !over_iwarp.is_empty());
    let figures: Vec<&Figure> =
        figures.into_iter().chain(over_iwarp.into_iter().filter(|_| skipped.is_none())).collect();
    let mut values = vec![[const { Vec::new() }; 2]; figures.len()];
    let mut port = 21_000;
    for _ in 0..ROUNDS {
        for wire in [Wire::Roce, Wire::Iwarp] {
            for (at, device) in [Device::Kernel, Device::Ferroce].into_iter().enumerate() {
                let mut chosen =
                    figures.iter().zip(&mut values).filter(|(figure, _)| figure.wire == wire).peekable();
                if chosen.peek().is_some() {
                    device.enter(wire, guest)?;
                }
                for (figure, values) in chosen {
                    values[at].push(measure(guest, device, figure, &mut port)?);
                }
            }
        }
    }
    println!("| figure | kernel | ferroce | ratio |\n|---|---|---|---|");
    for (figure, values) in figures.iter().zip(&mut values) {
        let [kernel, ferroce] = values.each_mut().map(|values| median(values));
        let ratio = if figure.more_is_better { ferroce / kernel } else { kernel / ferroce };
        println!(
            "| {} | {kernel:.1} {unit} | {ferroce:.1} {unit} | {ratio:.2} |",
            figure.name,
            unit = figure.unit
        );
    }
    println!(
        "\nMedian of {ROUNDS} rounds in one guest. The kernel's device is rdma_rxe (path MTU 1024), over iWARP siw. A ratio above 1 means \
         that ferroce is better."
    );
    if let Some(why) = skipped {
        println!("SKIPPED: the figures over iWARP: {why}");
    }
    Ok(())
}

fn measure(guest: &Guest, device: Device, figure: &Figure, port: &mut u16) -> Result<f64, Failure> {
    let mut text = String::new();
    for _ in 0..if figure.wire == Wire::Iwarp { TRIES } else { 1 } {
        *port += 1;
        text = guest.run(0, &device.line(figure, *port), LIMIT)?.text;
        if let Some(value) = figure::of_perftest(&text, figure.column) {
            return Ok(value);
        }
    }
    Err(Failure::Broken(format!("`{}` gave no figure: {text}", figure.command)))
}
