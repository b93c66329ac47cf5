//! The examples run, and end by themselves.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use support::process;

/// Builds the example with the profile, features and target folder of the tests, so that it usually exists already.
fn build(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/TEST");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--example", name]);
    if cfg!(feature = "tokio") {
        cargo.args(["--features", "tokio"]);
    }
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo starts").success(), "example {name} does not build");
    profile.join("examples").join(name)
}

fn run(name: &str) {
    let mut child = Command::new(build(name)).stdout(Stdio::null()).spawn().expect("the example starts");
    let status = process::wait(&mut child);
    assert!(status.success(), "example {name} ended with {status}");
}

#[test]
fn pingpong() {
    run("pingpong");
}

#[test]
fn connect() {
    run("connect");
}

#[test]
fn one_sided() {
    run("one_sided");
}

#[test]
fn counter() {
    run("counter");
}

#[test]
fn datagram() {
    run("datagram");
}

#[test]
fn srq_server() {
    run("srq_server");
}

#[test]
fn multicast() {
    run("multicast");
}

#[test]
fn xrc() {
    run("xrc");
}

#[test]
fn windows() {
    run("windows");
}

#[test]
fn device_memory() {
    run("device_memory");
}

#[test]
fn on_demand() {
    run("on_demand");
}

#[cfg(feature = "tokio")]
#[test]
fn async_tokio() {
    run("async_tokio");
}
