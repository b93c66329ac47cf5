//! One test between two machines.

use super::client::Client;
use super::control::{Control, STEP_TIMEOUT, canonical};
use super::gpu;
use super::handshake;
use super::measure::Measurement;
use super::options::TestArgs;
use super::params::{Params, Transport};
use super::rdma::Local;
use super::server;
use super::stats::{Bandwidth, Latency};
use super::test::Test;
use crate::failure::Failure;
use crate::table::{Align, Table};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Result at one size.
#[derive(Serialize)]
struct Line {
    params: Params,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<Bandwidth>,
    /// Bandwidth of copies of the same size from host memory to the GPU, without RDMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    bare_copy_gigabytes_per_s: Option<f64>,
}

/// Runs either side.
pub(crate) fn run(test: Test, args: &TestArgs) -> Result<(), Failure> {
    let params = args.params(test)?;
    args.faults.apply_here()?;
    match &args.host {
        Some(host) => run_client(test, args, &params, host),
        None => run_server(test, args),
    }
}

fn run_client(test: Test, args: &TestArgs, params: &Params, host: &str) -> Result<(), Failure> {
    let local = Local::new(None, args.gid_index);
    let lines = if params.threads > 1 {
        local.prepare(params)?;
        let others = (1..params.threads).map(|_| local.for_thread()).collect::<Result<Vec<_>, _>>()?;
        let threads = std::thread::scope(|scope| {
            // The server accepts the other threads once the first has sent their number.
            let others: Vec<_> = others
                .into_iter()
                .map(|local| scope.spawn(move || measure(test, args, params, host, local)))
                .collect();
            let first = measure(test, args, params, host, local)?;
            let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|_| Err(panicked())));
            std::iter::once(Ok(first)).chain(joined).collect::<Result<Vec<_>, _>>()
        })?;
        summed(threads)
    } else {
        measure(test, args, params, host, local)?
    };
    if args.json { crate::print_json(&lines) } else { crate::print_text(&render(test, &lines)) }
}

fn panicked() -> Failure {
    Failure::new("a thread of the test panicked")
}

/// Runs one thread's part of the test at every size.
fn measure(
    test: Test,
    args: &TestArgs,
    params: &Params,
    host: &str,
    local: Local,
) -> Result<Vec<Line>, Failure> {
    let control = Control::over_tcp(connect(test, host, args.port)?)
        .map_err(|error| Failure::io(format!("cannot use the connection to {host}"), error))?;
    let mut client = Client::new(control, local)?;
    let mut lines = Vec::new();
    let path_mtu = if params.transport == Transport::Ud { client.path_mtu(params)? } else { 0 };
    for size in args.sizes(params, path_mtu) {
        let params = args.params_of_size(test, size)?;
        let (latency, bandwidth) = match client.run(&params, args.budget(test))? {
            Measurement::Latency(histogram) => (histogram.summary(test.messages_per_round_trip()), None),
            Measurement::Bandwidth(bandwidth) => (None, Some(bandwidth)),
        };
        let bare_copy_gigabytes_per_s =
            if params.gpu { Some(gpu::bare_copy(params.size as usize)?) } else { None };
        lines.push(Line { params, latency, bandwidth, bare_copy_gigabytes_per_s });
    }
    client.leave();
    Ok(lines)
}

/// The sum of the results of the threads, for each size.
fn summed(threads: Vec<Vec<Line>>) -> Vec<Line> {
    let mut threads: Vec<_> = threads.into_iter().map(Vec::into_iter).collect();
    let mut sums = Vec::new();
    loop {
        let lines: Vec<Line> = threads.iter_mut().filter_map(Iterator::next).collect();
        let bandwidth = Bandwidth::sum(lines.iter().filter_map(|line| line.bandwidth));
        let Some(first) = lines.into_iter().next() else { return sums };
        sums.push(Line { bandwidth, ..first });
    }
}

fn connect(test: Test, host: &str, port: u16) -> Result<TcpStream, Failure> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        Failure::io(format!("cannot find the host {host}"), error)
            .advise("Check the name, or give its address")
    })?;
    let mut failed = Vec::new();
    for address in addresses {
        match TcpStream::connect_timeout(&address, STEP_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed.push(error),
        }
    }
    // An error of a host that answered is more helpful than one of an unreachable address.
    failed.sort_by_key(|error| !may_be_there(error));
    let why = failed.first().map_or_else(|| "it has no address".into(), io::Error::to_string);
    let advice = match failed.first() {
        Some(error) if may_be_there(error) => {
            format!("Start it there first: ferroce perf {} -p {port}", test.name())
        }
        _ => "This machine has no route to it; check the address, or try another of that host".into(),
    };
    Err(Failure::new(format!("cannot reach a server at {host} port {port}: {why}")).advise(advice))
}

/// Whether the host can be reached, but has no server.
fn may_be_there(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::TimedOut
            | ErrorKind::WouldBlock
    )
}

fn run_server(test: Test, args: &TestArgs) -> Result<(), Failure> {
    // IPv6 sockets accept IPv4 clients, too; without IPv6, IPv4 is used.
    let addresses =
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port)), (Ipv4Addr::UNSPECIFIED, args.port).into()];
    let listener = TcpListener::bind(&addresses[..]).map_err(|error| {
        Failure::io(format!("cannot listen on TCP port {}", args.port), error)
            .advise("Another server may be running; choose another port on both sides with -p")
    })?;
    let port = listener.local_addr().map_or(args.port, |address| address.port());
    let port_option =
        if port == super::options::DEFAULT_PORT { String::new() } else { format!(" -p {port}") };
    eprintln!("ferroce perf: waiting for a client. On the other machine:");
    eprintln!("  ferroce perf {} {}{port_option}", test.name(), host_name());
    let mut control = await_client(&listener, None)?;
    let local = Local::new(None, args.gid_index);
    let mut served: Vec<Params> = Vec::new();
    std::thread::scope(|scope| {
        let mut listener = Some(listener);
        server::serve(&mut control, &local, server::IDLE, |requested| {
            args.agrees_with(test, requested)?;
            served.push(requested.clone());
            if let Some(listener) = listener.take().filter(|_| requested.threads > 1) {
                local.prepare(requested).map_err(|failure| failure.what().to_owned())?;
                let others =
                    (1..requested.threads).map(|_| local.for_thread()).collect::<Result<Vec<_>, _>>();
                let others = others.map_err(|failure| failure.what().to_owned())?;
                scope.spawn(move || serve_others(scope, test, args, &listener, others));
            }
            Ok(())
        })
    })?;
    if args.json {
        return crate::print_json(&serde_json::json!({ "served": served }));
    }
    eprintln!("ferroce perf: served {} of {}; the client has the figures.", tests(served.len()), test.name());
    Ok(())
}

/// Serves the other threads of a client.
fn serve_others<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    test: Test,
    args: &'scope TestArgs,
    listener: &TcpListener,
    others: Vec<Local>,
) {
    for local in others {
        let control = match await_client(listener, Some(STEP_TIMEOUT)) {
            Ok(control) => control,
            Err(failure) => return eprintln!("ferroce perf: {}.", failure.what()),
        };
        scope.spawn(move || {
            let mut control = control;
            let agrees = |requested: &Params| args.agrees_with(test, requested);
            if let Err(failure) = server::serve(&mut control, &local, server::IDLE, agrees) {
                eprintln!("ferroce perf: {}.", failure.what());
            }
        });
    }
}

/// Waits for a valid client, for at most this time if any; ignores port scans.
fn await_client(listener: &TcpListener, most: Option<Duration>) -> Result<Control, Failure> {
    let give_up = most.map(|most| Instant::now() + most);
    loop {
        if let Some(give_up) = give_up {
            await_connection(listener, give_up)?;
        }
        let (stream, from) =
            listener.accept().map_err(|error| Failure::io("cannot accept a client", error))?;
        let from = canonical(from).ip();
        let greeted = Control::over_tcp(stream)
            .map_err(|error| Failure::io("cannot use the connection", error))
            .and_then(|mut control| handshake::greet(&mut control).map(|()| control));
        match greeted {
            Ok(control) => {
                eprintln!("ferroce perf: client {from} connected.");
                return Ok(control);
            }
            Err(failure) => eprintln!("ferroce perf: refused {from}: {}.", failure.what()),
        }
    }
}

/// Waits until a client connects.
fn await_connection(listener: &TcpListener, give_up: Instant) -> Result<(), Failure> {
    let left = give_up.saturating_duration_since(Instant::now());
    let timeout = rustix::event::Timespec::try_from(left).ok();
    let mut fds = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(0) => Err(Failure::new("the other threads of the client did not connect")),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::io("cannot wait for a client", error)),
    }
}

fn tests(n: usize) -> String {
    if n == 1 { "one test".into() } else { format!("{n} tests") }
}

/// The name of this machine in the command for the other one. A host name is more likely to resolve there than any of
/// our addresses is to be reachable.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn render(test: Test, lines: &[Line]) -> String {
    let right = |names: &[&'static str]| names.iter().map(|name| (*name, Align::Right)).collect::<Vec<_>>();
    let us = |ns: Option<f64>| ns.map_or("–".into(), |ns| format!("{:.2}", ns / 1e3));
    let mut table = if test.is_bandwidth() {
        let mut names = vec!["bytes", "messages", "GB/s", "M msg/s"];
        if lines.iter().any(|line| line.bandwidth.is_some_and(|b| b.lost.is_some())) {
            names.push("lost");
        }
        if lines.iter().any(|line| line.bare_copy_gigabytes_per_s.is_some()) {
            names.push("bare copy\nGB/s");
        }
        Table::new(&right(&names))
    } else {
        Table::new(&right(&[
            "bytes",
            "samples",
            "min\nµs",
            "median\nµs",
            "mean\nµs",
            "p99\nµs",
            "p99.9\nµs",
            "max\nµs",
        ]))
    };
    for line in lines {
        let size = line.params.size.to_string();
        if let Some(bandwidth) = &line.bandwidth {
            let rates = [bandwidth.gigabytes_per_s, bandwidth.million_messages_per_s]
                .map(|rate| format!("{rate:.3}"));
            let lost = bandwidth.lost.map(|lost| lost.to_string());
            let bare = line.bare_copy_gigabytes_per_s.map(|rate| format!("{rate:.3}"));
            let figures = [size.clone(), bandwidth.messages.to_string()].into_iter().chain(rates);
            table.line(figures.chain(lost).chain(bare));
        }
        if let Some(latency) = &line.latency {
            let times = [Some(latency.min_ns), Some(latency.median_ns), Some(latency.mean_ns)];
            let tail = [latency.p99_ns, latency.p999_ns, Some(latency.max_ns)];
            let times = times.into_iter().chain(tail).map(us);
            table.line([size, latency.samples.to_string()].into_iter().chain(times));
        }
    }
    let kind = match test.is_bandwidth() {
        true => "from the first message to the arrival of the last",
        false if test.messages_per_round_trip() > 1.0 => "half a round trip",
        false => "a whole round trip",
    };
    format!("{}: {kind}\n{}", test.name(), table.render())
}
