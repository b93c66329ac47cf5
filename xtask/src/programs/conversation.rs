//! Runs a server, then its clients.

use std::time::Duration;

use serde_json::Value;

use super::cases::Proof;
use super::session::{Launcher, Program};
use super::worker::answer;

/// One row: the command lines, and the output of a success.
pub(crate) struct Case {
    /// The client's line; also the case's name. `{port}` stands for the port. A table may define more placeholders.
    pub(crate) name: &'static str,
    pub(crate) server: &'static str,
    pub(crate) proof: Proof,
    pub(crate) end: End,
}

/// Behaviour of the server when its client has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It ends as well.
    Follows,
    /// It waits for other clients. A second client runs, then the server is stopped.
    Stays,
    /// It does not listen, but prints that it has joined the group. It ends with its client.
    InGroup,
}

pub(crate) const fn case(end: End, server: &'static str, name: &'static str, proof: Proof) -> Case {
    Case { name, server, proof, end }
}

/// How the programs of one table are run.
pub(crate) struct Procedure<'a> {
    pub(crate) limit: Duration,
    /// A line with everything filled in.
    pub(crate) words: &'a dyn Fn(&str) -> Vec<String>,
    /// Whether the server is ready for its client.
    pub(crate) is_ready: &'a dyn Fn(&Program) -> bool,
    /// What must be true after each client, besides its proof.
    pub(crate) check: &'a dyn Fn() -> Result<(), String>,
}

/// The case with this name, and its index in the table.
pub(crate) fn find(cases: &'static [Case], name: &str) -> Result<(usize, &'static Case), String> {
    cases.iter().enumerate().find(|(_, case)| case.name == name).ok_or_else(|| format!("no case {name}"))
}

/// Runs a case and returns its result.
pub(crate) fn run(launcher: &Launcher, case: &Case, procedure: &Procedure<'_>) -> Value {
    let mut tails = Vec::new();
    answer(run_case(launcher, case, procedure, &mut tails), tails)
}

fn run_case(
    launcher: &Launcher,
    case: &Case,
    procedure: &Procedure<'_>,
    tails: &mut Vec<String>,
) -> Result<(), String> {
    let mut server = launcher.start(&format!("{} server", case.name), &(procedure.words)(case.server))?;
    let outcome = run_clients(launcher, case, procedure, &mut server, tails);
    tails.extend(server.tail());
    outcome
}

fn run_clients(
    launcher: &Launcher,
    case: &Case,
    procedure: &Procedure<'_>,
    server: &mut Program,
    tails: &mut Vec<String>,
) -> Result<(), String> {
    server.wait_until(procedure.limit, "ready", |server| (procedure.is_ready)(server))?;
    let clients = if case.end == End::Stays { 2 } else { 1 };
    for _client in 0..clients {
        let mut client = launcher.start(&format!("{} client", case.name), &(procedure.words)(case.name))?;
        let outcome = client.finish(procedure.limit);
        tails.extend(client.tail());
        outcome?;
        case.proof.check(&client.output())?;
        (procedure.check)()?;
    }
    if case.end == End::Stays { Ok(()) } else { server.finish_soon() }
}
