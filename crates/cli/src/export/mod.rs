//! `ferroce export`: an endpoint that Prometheus scrapes.
//!
//! | file | question |
//! |---|---|
//! | `totals` | how counters of the host continue when a process ends |
//! | `metrics` | which metrics there are, and how they are written |
//!
//! `crate::http` answers the scrapes.

mod metrics;
#[cfg(test)]
mod tests;
mod totals;

use crate::counters::Report;
use crate::failure::Failure;
use crate::http::{self, Answer, Request};
use ferroce_nic::inspect;
use metrics::Format;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use totals::Totals;

const EXAMPLES: &str = "\
Examples:
  ferroce export                             serve http://127.0.0.1:9479/metrics
  ferroce export --listen 0.0.0.0:9479       for a Prometheus on another machine
  ferroce export --once                      print the metrics and end";

/// Options of `ferroce export`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9479")]
    listen: SocketAddr,
    /// Queue pairs that get metrics of their own: those that moved the most bytes.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    queue_pairs: u16,
    /// Print the metrics once, in the text format of Prometheus, and end.
    #[arg(long)]
    once: bool,
}

/// Serves until it is killed.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let totals = Mutex::new(Totals::default());
    let scrape = |format| {
        // The lock is held while the processes answer, so that overlapping scrapes update the sums in the order of their answers.
        let mut totals = totals.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let report = Report::of(inspect::whole(None));
        totals.update(&report.devices);
        metrics::render(&report, &totals, usize::from(args.queue_pairs), format)
    };
    if args.once {
        return crate::print_text(scrape(Format::Text).trim_end());
    }
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        Failure::io(format!("cannot listen on {}", args.listen), error)
            .advise("Choose another address or port with --listen")
    })?;
    let address = listener.local_addr().map_err(|error| Failure::io("the address of the socket", error))?;
    // The first sample: the sums then contain processes that end before the first scrape.
    let _ = scrape(Format::Text);
    crate::print_text(&format!("metrics of all ferroce processes of this user: http://{address}/metrics"))?;
    let _ = std::io::stdout().flush();
    if !address.ip().is_loopback() {
        eprintln!(
            "ferroce: {address} is no loopback address: anyone who can connect can read process names and peer addresses."
        );
    }
    let content = |request: &Request| match request.path() {
        "/metrics" => {
            let format = format_for(request);
            Answer::new(format.content_type(), scrape(format))
        }
        "/" => Answer::new("text/plain", "The metrics are at /metrics.\n"),
        _ => Answer::refusal(404, "only GET /metrics is answered here\n"),
    };
    http::serve(&listener, address.ip().is_loopback(), &content)
}

/// OpenMetrics if the request accepts it.
fn format_for(request: &Request) -> Format {
    match request.header("accept").is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}
