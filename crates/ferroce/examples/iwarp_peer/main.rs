//! rping, ucmatose and ferroce's verifying program over iWARP, with the Rust API.
//!
//! `iwarp_peer PROGRAM ARGUMENTS` takes the arguments that the program takes, and talks to that program on another machine:
//! rdma-core's rping and ucmatose, and interop/verify. `cargo xtask interop` runs it against the Linux kernel's SoftiWARP.
//! `FERROCE_WIRE=iwarp` must be set. `iwarp_peer handmade` sends hand-made frames to rping instead, without a device.

mod handmade;
mod rping;
mod ucmatose;
mod verify;

use ferroce::{Completion, Cq, Device, Listener, Request, WcStatus};
use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Longer than any step of a healthy peer, also of an emulated one.
const MAX_WAIT: Duration = Duration::from_secs(40);

/// The options of a command line: one letter each, with a value if it is in `valued`.
struct Options(HashMap<char, String>);

impl Options {
    fn parse(words: &[String], valued: &str) -> Fallible<(Options, Vec<String>)> {
        let (mut options, mut rest) = (HashMap::new(), Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.strip_prefix('-').and_then(|letters| letters.chars().next()) {
                Some(letter) if valued.contains(letter) => {
                    let value = words.next().ok_or_else(|| format!("-{letter} needs a value"))?;
                    options.insert(letter, value.clone());
                }
                Some(letter) => drop(options.insert(letter, String::new())),
                None => rest.push(word.clone()),
            }
        }
        Ok((Options(options), rest))
    }

    fn has(&self, letter: char) -> bool {
        self.0.contains_key(&letter)
    }

    fn text(&self, letter: char) -> Fallible<&str> {
        self.0.get(&letter).map(String::as_str).ok_or_else(|| format!("-{letter} is missing").into())
    }

    fn number(&self, letter: char, usual: usize) -> Fallible<usize> {
        self.0.get(&letter).map_or(Ok(usual), |value| Ok(value.parse()?))
    }

    fn address(&self, letter: char, port: usize) -> Fallible<SocketAddr> {
        let address: IpAddr = self.text(letter)?.parse()?;
        Ok(SocketAddr::new(address, u16::try_from(port)?))
    }
}

/// The next completion, which must be a success.
fn success(cq: &Cq) -> Fallible<Completion> {
    let completion = cq.wait_timeout(MAX_WAIT)?;
    match completion.status {
        WcStatus::Success => Ok(completion),
        status => Err(format!("request {}: {status:?}", completion.wr_id).into()),
    }
}

fn accept(listener: &Listener) -> Fallible<Request> {
    Ok(listener.accept_timeout(MAX_WAIT)?)
}

fn main() -> Fallible<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((program, words)) = words.split_first() else {
        return Err("usage: iwarp_peer rping|ucmatose|verify|handmade ARGUMENTS".into());
    };
    if program == "handmade" {
        return handmade::run(words);
    }
    let device = Device::open()?;
    match program.as_str() {
        "rping" => rping::run(&device, words),
        "ucmatose" => ucmatose::run(&device, words),
        "verify" => verify::run(&device, words),
        other => Err(format!("{other} is not among rping, ucmatose, verify").into()),
    }
}
