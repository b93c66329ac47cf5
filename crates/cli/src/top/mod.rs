//! `ferroce top`: what all ferroce processes of this user do, in the terminal.
//!
//! | file | question |
//! |---|---|
//! | `sample` | what the processes answered, and what changed since the answer before |
//! | `tables` | what each tab shows of a sample, as rows and columns |
//! | `app` | what is selected, sorted, filtered and open, and what a key does |
//! | `draw` | how that looks on a screen of this size |
//! | `terminal` | raw mode, keys and resizing, and the way back |

mod app;
mod draw;
pub(crate) mod sample;
pub(crate) mod tables;
mod terminal;
#[cfg(test)]
pub(crate) mod tests;

use crate::counters::parse_pause;
use crate::failure::Failure;
use app::App;
use sample::{Sample, Sampler};
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ferroce top                      watch all processes; q leaves, ? shows the keys
  ferroce top --filter 10.0.0.7    only rows with this address
  ferroce top --once               two samples as text
  ferroce top --json               one JSON document per second";

/// Options of `ferroce top`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Time between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_pause)]
    interval: Duration,
    /// Take two samples, print every table once as text, and end.
    #[arg(long)]
    once: bool,
    /// Print one JSON document per interval, one per line; with --once, one document.
    #[arg(long)]
    json: bool,
    /// Show only rows that contain this text, in any case.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

/// Shows the processes until the user leaves.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if args.json {
        return stream_json(args);
    }
    if args.once {
        let mut app = App::new(args.filter.clone(), false);
        app.update(second_sample(args.interval));
        return crate::print_text(&draw::text(&mut app, text_width()));
    }
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return Err(Failure::usage("ferroce top needs a terminal, and this is none")
            .advise("Use `ferroce top --once` for text or `ferroce top --json` for programs"));
    }
    terminal::run(App::new(args.filter.clone(), colours), args.interval)
}

/// A sample with rates: they need two.
pub(crate) fn second_sample(interval: Duration) -> Sample {
    let mut sampler = Sampler::default();
    sampler.take(None);
    std::thread::sleep(interval);
    sampler.take(None)
}

/// Columns of the text: those of the terminal, or enough for every column.
fn text_width() -> u16 {
    crossterm::terminal::size().ok().filter(|_| std::io::stdout().is_terminal()).map_or(200, |size| size.0)
}

/// Runs until the reader of the pipe closes it, or once.
fn stream_json(args: &Args) -> Result<(), Failure> {
    let mut sampler = Sampler::default();
    sampler.take(None);
    loop {
        std::thread::sleep(args.interval);
        let text = sampler.take(None).to_json().to_string();
        let mut stdout = std::io::stdout().lock();
        match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::io("cannot write to standard output", error)),
            Ok(()) if args.once => return Ok(()),
            Ok(()) => {}
        }
    }
}
