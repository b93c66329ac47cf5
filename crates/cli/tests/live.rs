//! `ferroce fabric live` from outside: two hosts, a switch, and real RDMA programs that communicate through it.

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Outcome, ferroce, outcome, scratch};

/// The trunk is slower than the hosts, and every packet that leaves another one behind is marked: a burst of packets gets marks
/// whatever the timing.
const SCENARIO: &str = r#"
name = "two hosts"
duration = "1s"
control = "dcqcn-nic,scale=20"
[topology]
kind = "dumbbell"
left = 1
right = 1
rate = "200Mb/s"
trunk_rate = "100Mb/s"
delay = "20us"
[switch.ecn]
kmin = "0B"
kmax = "0B"
pmax = 1.0
"#;

fn scenario(name: &str, rest: &str) -> PathBuf {
    let path = scratch().join(format!("live-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, format!("{SCENARIO}{rest}")).expect("a file");
    path
}

/// Runs the scenario with these arguments after it.
#[track_caller]
fn live(name: &str, rest: &str, arguments: &[&str]) -> (Outcome, Vec<serde_json::Value>) {
    let path = scenario(name, rest);
    // No program loads the library here: `ferroce perf` contains the NIC.
    let library = path.with_extension("so");
    std::fs::write(&library, "").expect("a file");
    let (page, json) = (path.with_extension("html"), path.with_extension("jsonl"));
    let mut command: Command = ferroce("fabric live");
    command.arg(&path).arg("-o").arg(&page).arg("--json").arg(&json).args(arguments);
    command.env("FERROCE_LIB", &library);
    let found = outcome(&mut command);
    let lines = std::fs::read_to_string(&json).unwrap_or_default();
    let lines = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    if found.code == 0 {
        let html = std::fs::read_to_string(&page).expect("the page");
        assert!(html.contains("<h2>Live: dcqcn-nic"), "{html}");
    }
    for file in [path, page, json, library] {
        let _ = std::fs::remove_file(file);
    }
    (found, lines)
}

/// Set to 1 where namespaces or /dev/net/tun are refused: the tests are skipped instead of failing.
const ALLOW_SKIP: &str = "FERROCE_TEST_SKIP_LIVE";

/// Whether this machine can run a live fabric. If not, the test fails, or is skipped where that is allowed.
fn can_live(name: &str) -> bool {
    let (found, _) = live(&format!("probe-{name}"), "", &["--", "true"]);
    let refused = found.code == 126;
    if refused {
        let allowed = std::env::var_os(ALLOW_SKIP).is_some_and(|value| value == "1");
        assert!(allowed, "no live fabric on this machine ({ALLOW_SKIP}=1 skips the test): {}", found.stderr);
        println!("SKIPPED: no live fabric on this machine; {}", found.stderr);
    }
    !refused
}

#[test]
fn rdma_programs_communicate_through_the_switch() {
    if !can_live("perf") {
        return;
    }
    let own = env!("CARGO_BIN_EXE_ferroce");
    // `ferroce perf` opens its own NIC, as any program of ours.
    let runs = format!(
        "[[workload]]\nkind = \"incast\"\nfan_in = 1\nsize = \"1MB\"\nto = 0\n\
         [[run]]\nhost = 0\nserver = true\nlisten = 18600\ncommand = \"{own} perf write-bw --port $FERROCE_FABRIC_PORT\"\n\
         [[run]]\nhost = 1\ncommand = \"{own} perf write-bw --port 18600 -s 65536 -n 40 h0\"\n"
    );
    let (found, lines) = live("perf", &runs, &[]);
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.stdout.contains("[h1] "), "{found:?}");
    let hosts = &lines[0]["run"]["hosts"];
    let number = |host: usize, key: &str| hosts[host][key].as_u64().expect("a number");
    assert!(number(1, "sent") >= 40 * 64, "packets of 1024 bytes: {hosts}");
    assert!(number(0, "received") <= number(1, "sent") && number(0, "received") >= 40 * 64, "{hosts}");
    assert!(number(0, "marked") > 0, "the switch marks queued packets: {hosts}");
    assert!(lines[0]["comparison"].is_object(), "a workload is simulated: {lines:?}");
}

#[test]
fn a_command_runs_on_every_host_and_the_worst_status_counts() {
    if !can_live("every") {
        return;
    }
    let script = "echo host $FERROCE_FABRIC_HOST of $FERROCE_FABRIC_HOSTS at $FERROCE_FABRIC_ADDRESS; hostname; \
                  ls /dev/shm | wc -l; exit $((5 * FERROCE_FABRIC_HOST))";
    let (found, lines) = live("every", "", &["--", "sh", "-c", script]);
    assert_eq!(found.code, 5, "{found:?}");
    for line in ["[h0] host 0 of 2 at 10.99.0.1", "[h1] host 1 of 2 at 10.99.0.2", "[h0] h0", "[h1] h1"] {
        assert!(found.stdout.lines().any(|found| found == line), "{line}: {found:?}");
    }
    assert!(lines[0]["comparison"].is_null(), "nothing to simulate");
}

#[test]
fn one_host_has_no_label() {
    if !can_live("one") {
        return;
    }
    let (found, _) = live("one", "", &["--host", "1", "--", "hostname"]);
    assert_eq!((found.code, found.stdout.lines().next()), (0, Some("h1")), "{found:?}");
}

/// A workload to simulate, and two variants.
const VARIANTS: &str = "[[workload]]\nkind = \"incast\"\nfan_in = 1\nsize = \"1MB\"\nto = 0\n\
                    [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\n";

#[test]
fn a_signal_ends_the_command_without_a_simulation() {
    if !can_live("signal") {
        return;
    }
    let path = scenario("signal", VARIANTS);
    let (page, json) = (path.with_extension("html"), path.with_extension("jsonl"));
    let mut command: Command = ferroce("fabric live");
    command.arg(&path).arg("-o").arg(&page).arg("--json").arg(&json);
    command.args(["--", "sh", "-c", "echo started; sleep 1000"]).env("FERROCE_LIB", &path);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("ferroce");
    let out = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines().map(|line| line.expect("text"));
    assert!(lines.by_ref().filter(|line| line.ends_with("started")).take(2).count() == 2);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process ID");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the child runs");
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().expect("a status").code(), Some(130), "{rest:?}");
    let text = std::fs::read_to_string(&json).expect("the results so far");
    let found: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(found.len(), 1, "the second variant is not run: {text}");
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.contains("Live: a") && !html.contains("a, simulated"), "{html}");
    for file in [path, page, json] {
        let _ = std::fs::remove_file(file);
    }
}

/// The processes of the machine that have this word in their command line.
fn processes_with(word: &str) -> usize {
    let has_word = |entry: std::io::Result<std::fs::DirEntry>| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        line.split(|byte| *byte == 0).any(|found| found == word.as_bytes()).then_some(())
    };
    std::fs::read_dir("/proc").expect("/proc").filter_map(has_word).count()
}

#[test]
fn no_process_outlives_the_command() {
    if !can_live("kill") {
        return;
    }
    // In a session of its own, so that no signal to a process group reaches it. The number is unique to this process and test.
    let wait = |test: u32| format!("{}", 1_000_000_000 + 10 * std::process::id() + test);
    let script = |wait: &str| {
        format!(
            "setsid sleep {wait} > /dev/null 2>&1 & echo $(cat /proc/1/comm) $(test -d /proc/$$ && echo proc)"
        )
    };

    let killed = wait(1);
    let path = scenario("kill", "");
    let mut command: Command = ferroce("fabric live");
    command.arg(&path).args(["--", "sh", "-c", &format!("{}; sleep 1000", script(&killed))]);
    let mut child = command.env("FERROCE_LIB", &path).stdout(Stdio::piped()).spawn().expect("ferroce");
    let out = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines().map(|line| line.expect("text"));
    let started: Vec<String> = lines.by_ref().take(2).collect();
    assert!(started.iter().all(|line| line.ends_with(" fabric-host proc")), "{started:?}");
    let deadline = Instant::now() + Duration::from_secs(60);
    while processes_with(&killed) < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(processes_with(&killed), 2, "one on each host");
    child.kill().expect("it runs");
    child.wait().expect("a status");
    while processes_with(&killed) > 0 {
        assert!(Instant::now() < deadline, "{} processes survive", processes_with(&killed));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(path).expect("our own file");

    let left = wait(2);
    let (found, _) = live("left", "", &["--", "sh", "-c", &script(&left)]);
    assert_eq!((found.code, processes_with(&left)), (0, 0), "{found:?}");
}

#[test]
fn a_timeout_ends_the_command_and_a_high_status_does_not() {
    if !can_live("timeout") {
        return;
    }
    let (found, lines) = live("timeout", VARIANTS, &["--timeout", "1", "--", "sleep", "1000"]);
    assert!(found.code == 124 && found.stderr.contains("--timeout"), "{found:?}");
    assert_eq!(lines.len(), 1, "later variants are not run");
    let (found, lines) = live("status", VARIANTS, &["--no-sim", "--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!((found.code, lines.len()), (139, 2), "both variants run: {found:?}");
}

#[test]
fn mistakes_are_one_sentence() {
    let cases: [(&str, &[&str], &str); 5] = [
        ("", &[], "no [[run]] table"),
        ("", &["--host", "7", "--", "true"], "hosts are 0 to 1"),
        ("", &["--only", "x", "--", "true"], "no variant named \"x\""),
        ("[[run]]\nhost = 3\ncommand = \"true\"\n", &[], "host 3 does not exist"),
        ("[[run]]\nprogram = \"true\"\n", &[], "program"),
    ];
    for (rest, arguments, expected) in cases {
        let (found, _) = live("mistake", rest, arguments);
        assert!(found.code == 2 && found.stderr.contains(expected), "{expected}: {found:?}");
    }
}

/// A fabric that cannot exist, and a machine that refuses its hosts: one sentence, one remedy, and the exit status of a shell.
#[test]
fn what_the_machine_refuses_is_one_sentence_with_the_remedy() {
    let path = scenario("refused", "");
    let text = std::fs::read_to_string(&path).expect("our own file");
    let run = |shell: &str, text: String| {
        std::fs::write(&path, text).expect("our own file");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", shell, "sh"]);
        command.arg(env!("CARGO_BIN_EXE_ferroce")).args(["fabric", "live"]).arg(&path).args([
            "-o",
            "/dev/null",
            "--",
            "true",
        ]);
        outcome(command.stdin(Stdio::null()))
    };
    let (plain, before) = ("exec \"$@\"", text.clone());
    let fast = run(plain, text.replace("200Mb/s", "100Gb/s"));
    assert!(
        fast.code == 2 && fast.stderr.contains("100 Gb/s") && fast.stderr.contains("at most 10 Gb/s"),
        "{fast:?}"
    );
    let many = run(plain, text.replace("left = 1", "left = 80"));
    assert!(
        many.code == 2 && many.stderr.contains("81 hosts") && many.stderr.contains("at most 64"),
        "{many:?}"
    );
    if !can_live("refused") {
        return;
    }
    let no_tun = run("mount -t tmpfs none /dev/net && exec \"$@\"", before.clone());
    assert!(no_tun.code == 126 && no_tun.stderr.contains("opening /dev/net/tun: No such file"), "{no_tun:?}");
    assert!(no_tun.stderr.contains("modprobe tun"), "{no_tun:?}");
    // Without capabilities it needs a user namespace, and there may be none.
    let drop_all = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    let no_user = run(drop_all, before);
    assert!(no_user.code == 126 && no_user.stderr.contains("user namespace: No space left"), "{no_user:?}");
    assert!(no_user.stderr.contains("max_user_namespaces"), "{no_user:?}");
    std::fs::remove_file(path).expect("our own file");
}

#[test]
fn a_command_starts_on_a_host_of_a_running_fabric() {
    if !can_live("exec") {
        return;
    }
    let (own, path) = (env!("CARGO_BIN_EXE_ferroce"), scenario("exec", ""));
    // On host 0: words and input as they are, the exit status, a line as by ssh, and a host that does not exist.
    let script = format!(
        "cd /tmp; echo 'a  b' | {own} fabric exec h1 sh -c 'hostname; pwd; cat; exit 7'; echo status $?; \
         {own} fabric ssh -o BatchMode=yes -T -p 22 user@h1 'echo ssh $FERROCE_FABRIC_HOST; kill -TERM $$' ; echo status $?; \
         {own} fabric exec h9 true 2>&1; echo ready; sleep 1000"
    );
    let mut command: Command = ferroce("fabric live");
    command.arg(&path).args(["--host", "0", "--", "sh", "-c", &script]).env("FERROCE_LIB", &path);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ferroce");
    let out = child.stdout.take().expect("a pipe");
    let lines = BufReader::new(out).lines().map(|line| line.expect("text"));
    // The library is an empty file, which ld.so reports.
    let found: Vec<String> =
        lines.take_while(|line| line != "ready").filter(|line| !line.contains("ld.so")).collect();
    let expected = [
        "h1",
        "/tmp",
        "a  b",
        "status 7",
        "ssh 1",
        "status 143",
        "ferroce: host h9 does not exist; hosts are h0 to h1.",
    ];
    assert_eq!(found, expected);

    // From outside. The command ends with its caller.
    let fabric = child.id().to_string();
    let outside = outcome(ferroce("fabric exec --fabric").args([&fabric, "h1", "hostname"]));
    assert_eq!((outside.code, outside.stdout.as_str()), (0, "h1\n"), "{outside:?}");
    let wait = format!("{}", 1_000_000_000 + 10 * std::process::id() + 3);
    let mut caller =
        ferroce("fabric exec --fabric").args([&fabric, "h1", "sleep", &wait]).spawn().expect("ferroce");
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait_until = |holds: &dyn Fn(usize) -> bool| {
        // The caller has the word in its command line as well.
        while !holds(processes_with(&wait)) {
            assert!(Instant::now() < deadline, "{} processes", processes_with(&wait));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_until(&|count| count == 2);
    caller.kill().expect("it runs");
    caller.wait().expect("a status");
    wait_until(&|count| count == 0);
    child.kill().expect("it runs");
    child.wait().expect("a status");
    let gone = outcome(ferroce("fabric exec --fabric").args([&fabric, "h1", "hostname"]));
    assert!(gone.code == 1 && gone.stderr.contains("there is no live fabric"), "{gone:?}");
    std::fs::remove_file(path).expect("our own file");
}
