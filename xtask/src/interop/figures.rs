//! `cargo xtask interop --bench`: rdma_rxe and ferroce in the same guest, with the same programs.
//!
//! The kernel module owns UDP port 4791 of the whole machine, so the two cannot be there at once. They take turns, several
//! times, so that a disturbance of the host hits both.

use crate::figure::{self, median};
use std::time::Duration;

use super::Failure;
use super::ends::tcp_listens;
use super::guest::Guest;
use super::namespace::GUEST_V4;

const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(240);
/// Where the guest has our library; the others come from its own folders.
pub(crate) const LIBRARY_DIR: &str = "ferroce";

/// A program with its arguments, and which column of its table counts.
struct Figure {
    name: &'static str,
    command: &'static str,
    column: usize,
    unit: &'static str,
    more_is_better: bool,
}

#[rustfmt::skip]
const FIGURES: [Figure; 5] = [
    Figure { name: "write 64 KiB", command: "ib_write_bw -s 65536 -n 300", column: 3, unit: "MB/s", more_is_better: true },
    Figure { name: "write 4 KiB", command: "ib_write_bw -s 4096 -n 1500", column: 3, unit: "MB/s", more_is_better: true },
    Figure { name: "read 64 KiB", command: "ib_read_bw -s 65536 -n 300", column: 3, unit: "MB/s", more_is_better: true },
    Figure { name: "send latency 64 B", command: "ib_send_lat -s 64 -n 500", column: 4, unit: "us", more_is_better: false },
    Figure { name: "write latency 64 B", command: "ib_write_lat -s 64 -n 500", column: 4, unit: "us", more_is_better: false },
];

/// Who is measured.
#[derive(Clone, Copy)]
enum Device {
    Kernel,
    Ferroce,
}

impl Device {
    /// Makes it the one RDMA device of the guest.
    fn enter(self, guest: &Guest) -> Result<(), Failure> {
        let script = match self {
            Self::Kernel => {
                "lsmod | grep -q rdma_rxe || insmod /modules/*rdma_rxe.ko; [ -e /sys/class/infiniband/rxe0 ] || \
                 rdma link add rxe0 type rxe netdev eth0"
            }
            Self::Ferroce => "rdma link delete rxe0; rmmod rdma_rxe",
        };
        let answer = guest.run(0, script, LIMIT)?;
        if answer.status == 0 {
            return Ok(());
        }
        Err(Failure::Broken(format!("changing the device: {}", answer.text)))
    }

    /// One shell line: a server in the background and its client.
    fn line(self, command: &str, port: u16) -> String {
        let (environment, device) = match self {
            Self::Kernel => (String::new(), "-d rxe0 -x 1"),
            Self::Ferroce => {
                (format!("LD_LIBRARY_PATH=/{LIBRARY_DIR} FERROCE_ADDR={GUEST_V4}"), "-d ferroce0 -x 0")
            }
        };
        // The default timer of 67 ms is short for an emulated processor on a busy host.
        let end = format!("{environment} timeout -s KILL 100 {command} -F -m 1024 -u 18 -p {port} {device}");
        let listening = tcp_listens(port);
        format!(
            "{end} > /tmp/server 2>&1 & i=0; until {listening} || [ $i -gt 200 ]; do usleep 50000; i=$((i+1)); done; \
             {end} {GUEST_V4}; wait"
        )
    }
}

/// Measures and prints; everything, or the figures with one of these words in their names.
pub(crate) fn run(guest: &Guest, filter: &[String]) -> Result<(), Failure> {
    let is_chosen =
        |f: &&Figure| filter.is_empty() || filter.iter().any(|word| f.name.contains(word.as_str()));
    let figures: Vec<&Figure> = FIGURES.iter().filter(is_chosen).collect();
    let mut values = vec![[const { Vec::new() }; 2]; figures.len()];
    let mut port = 21_000;
    for _ in 0..ROUNDS {
        for (at, device) in [Device::Kernel, Device::Ferroce].into_iter().enumerate() {
            device.enter(guest)?;
            for (figure, values) in figures.iter().zip(&mut values) {
                port += 1;
                let answer = guest.run(0, &device.line(figure.command, port), LIMIT)?;
                let value = figure::of_perftest(&answer.text, figure.column).ok_or_else(|| {
                    Failure::Broken(format!("`{}` gave no figure: {}", figure.command, answer.text))
                })?;
                values[at].push(value);
            }
        }
    }
    println!("| figure | rdma_rxe | ferroce, UDP | ratio |\n|---|---|---|---|");
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
        "\nMedian of {ROUNDS} rounds in one guest, path MTU 1024. A ratio above 1 means that ferroce is better."
    );
    Ok(())
}
