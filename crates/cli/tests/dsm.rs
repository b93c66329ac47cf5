//! `ferroce dsm` from outside: a C program over libjia, started as several processes that share memory.

mod sshd;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use support::{Outcome, build_library, example, ferroce, finish, has_compiler, outcome, scratch};

/// The program of tests/c, compiled by `ferroce dsm cc`. `None`, with the reason printed, if this machine cannot.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    if !has_compiler() {
        return None;
    }
    build_library("ferroce-jia");
    let program = scratch().join(format!("behaviour.{}", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/behaviour.c");
    let mut cc = ferroce("dsm cc -Wall -Wextra -Werror -D_GNU_SOURCE -o");
    let compiled = outcome(cc.arg(&program).arg(source));
    assert_eq!(compiled.code, 0, "{compiled:?}");
    Some(program)
}

#[track_caller]
fn run(options: &str, behaviour: &str) -> Option<Outcome> {
    let program = program()?;
    Some(outcome(ferroce(&format!("dsm run {options}")).arg(program).args(behaviour.split_whitespace())))
}

#[test]
fn every_process_has_the_arguments_and_the_first_has_the_input() {
    let Some(program) = program() else { return };
    let mut command = ferroce("dsm run -n 3");
    command.arg(program).args(["describe", "a b", "-n", "$HOME", ""]).current_dir("/");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    child.stdin.take().expect("a pipe").write_all(b"hello\n").expect("it listens");
    let found = finish(child);
    assert_eq!(found.code, 0, "{found:?}");
    for rank in 0..3 {
        let line = format!("[{rank}] of 3, in /: <describe> <a b> <-n> <$HOME> <>");
        assert!(found.stdout.lines().any(|printed| printed == line), "{line}: {found:?}");
        let input = format!("[{rank}] input: {}", if rank == 0 { "hello" } else { "none" });
        assert!(found.stdout.lines().any(|printed| printed == input), "{input}: {found:?}");
    }
}

#[test]
fn output_can_be_left_as_it_is() {
    let Some(found) = run("-n 2 --plain", "describe") else { return };
    assert!(
        found.stdout.lines().all(|line| line.starts_with("of 2") || line.starts_with("input")),
        "{found:?}"
    );
}

#[test]
fn a_compiler_may_have_options() {
    let Some(program) = program() else { return };
    let object = program.with_extension("o");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/behaviour.c");
    let mut cc = ferroce("dsm cc -D_GNU_SOURCE -c -o");
    let found = outcome(cc.arg(&object).arg(source).env("CC", " cc  -g "));
    assert_eq!(found.code, 0, "{found:?}");
    std::fs::remove_file(object).expect("the compiler made it");
}

/// As make exports it: CC="ferroce dsm cc".
#[test]
fn a_compiler_that_is_this_command_is_not_called() {
    let Some(program) = program() else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/behaviour.c");
    let own = env!("CARGO_BIN_EXE_ferroce");
    let folder = scratch().join(format!("cc.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    // A script that calls the command cannot be recognised; it is called once.
    let script = folder.join("my-cc");
    std::fs::write(&script, format!("#!/bin/sh\necho wrapped\nexec {own} dsm cc \"$@\"\n")).expect("a file");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("our own file");
    for (cc, refused, wrapped) in [
        (format!("{own} dsm cc"), true, 0),
        (format!("env {own} dsm cc --static"), true, 0),
        (script.display().to_string(), false, 1),
    ] {
        let object = program.with_extension("refused.o");
        let mut command = ferroce("dsm cc -D_GNU_SOURCE -c -o");
        let found = outcome(command.arg(&object).arg(&source).env("CC", &cc));
        assert_eq!((found.code, found.stdout.matches("wrapped").count()), (0, wrapped), "{cc}: {found:?}");
        assert_eq!(
            found.stderr.contains("which is this command; cc is used instead"),
            refused,
            "{cc}: {found:?}"
        );
        std::fs::remove_file(object).expect("the compiler made it");
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}

#[test]
fn a_death_ends_all_and_is_named() {
    for (behaviour, code, sentence) in [
        ("killed", 128 + 9, "was killed by signal 9"),
        ("exits", 3, "ended with status 3"),
        ("error", 71, "the reason is 42"),
        ("lock", 71, "lock 123456"),
        ("unlock", 71, "jia_unlock: lock 3"),
        ("before", 71, "process 2 ends: jia_lock: before jia_init"),
        ("leaves", 71, "jia_exit: this process leaves the job while it holds lock 1"),
        ("past", 71, "jia_get: 100 bytes at 0x200000000ffa exceed the allocations"),
        ("reduce", 71, "operation 99 does not exist"),
        ("forgets", 70, "process 2 ends without jia_exit"),
    ] {
        let Some(found) = run("-n 3", behaviour) else { return };
        assert_eq!(found.code, code, "{behaviour}: {found:?}");
        assert!(found.stderr.contains(sentence), "{behaviour}: {found:?}");
        for rank in 0..2 {
            let stopped = format!("[{rank}] ferroce dsm: process {rank} stops: process 2 of the job is down");
            assert!(found.stderr.contains(&stopped), "{behaviour}: {found:?}");
        }
    }
}

#[test]
fn failures_before_the_job_name_the_rank() {
    let Some(program) = program() else { return };
    let found = outcome(ferroce("dsm run -n 3").arg(program).env("FERROCE_DSM_HEAP", "much"));
    for rank in 0..3 {
        let sentence = format!("[{rank}] ferroce dsm: process {rank} ends: jia_init: FERROCE_DSM_HEAP is");
        assert!(found.stderr.contains(&sentence), "{found:?}");
    }
    let found = outcome(Command::new(program).arg("before"));
    assert_eq!(found.stderr, "ferroce dsm: this process ends: jia_lock: before jia_init\n", "{found:?}");
}

#[test]
fn a_process_that_never_joins_ends_the_others() {
    let Some(found) = run("-n 3", "early") else { return };
    assert_eq!(found.code, 5, "{found:?}");
    assert!(found.stderr.contains("process 1 of the job is down: ended with status 5"), "{found:?}");
}

#[test]
fn the_worst_status_is_returned() {
    let Some(found) = run("-n 3", "late") else { return };
    assert_eq!(found.code, 9, "{found:?}");
}

#[test]
fn programs_that_share_nothing_run_too() {
    let found = outcome(ferroce("dsm run -n 2 sh -c").arg("echo $FERROCE_DSM_RANK of $FERROCE_DSM_SIZE"));
    let mut lines: Vec<&str> = found.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 2", "[1] 1 of 2"], "{found:?}");
    let found = outcome(&mut ferroce("dsm run -n 2 ./no/such/program"));
    assert_eq!(found.code, 127, "{found:?}");
}

#[test]
fn a_signal_to_the_launcher_ends_everything() {
    let Some(program) = program() else { return };
    let mut command = ferroce("dsm run -n 3");
    command.arg(program).arg("sleeps").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut sleepers = Vec::new();
    while sleepers.len() < 3 {
        let mut line = String::new();
        assert!(output.read_line(&mut line).expect("a line") > 0, "all three fall asleep");
        sleepers.push(line.trim().rsplit(' ').next().expect("a number").to_owned());
    }
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let found = finish(child);
    assert_eq!(found.code, 128 + 15, "{found:?}");
    for sleeper in sleepers {
        assert!(!Path::new("/proc").join(&sleeper).exists(), "process {sleeper} is left");
    }
}

/// Starting many takes long. Process 0 sends a request to the rendezvous, gets the answer, and ends the job, all before the
/// last ones have started.
#[test]
fn many_processes_are_watched_while_they_are_started() {
    let script = "echo started; [ $FERROCE_DSM_RANK = 0 ] || exec sleep 100
        exec 3<>/dev/tcp/${FERROCE_DSM_MEET%:*}/${FERROCE_DSM_MEET##*:}
        echo hello >&3; read -r answer <&3; echo $answer; kill -TERM $PPID; exec sleep 100";
    let found = outcome(ferroce("dsm run -n 1000 bash -c").arg(script));
    assert_eq!(found.code, 128 + 15, "{found:?}");
    assert!(found.stdout.contains("[0] refused wrong key, rank or version"), "{found:?}");
    let started = found.stdout.matches("started").count();
    assert!(started < 500, "{started} were started");
}

/// The first processes end long before the last are started; the last must be started nevertheless.
#[test]
fn many_short_processes_all_run() {
    let found = outcome(&mut ferroce("dsm run -n 300 echo here"));
    assert_eq!((found.code, found.stdout.matches("here").count()), (0, 300), "{found:?}");
}

#[test]
fn more_processes_than_a_job_has_are_refused() {
    let hosts = scratch().join(format!("many.{}", std::process::id()));
    std::fs::write(&hosts, "a.test 1000\nb.test 1000\n").expect("a file");
    let found = outcome(ferroce("dsm run --hosts").arg(&hosts).arg("true"));
    std::fs::remove_file(hosts).expect("our own file");
    assert_eq!(found.code, 2, "{found:?}");
    assert!(found.stderr.contains("exceed the maximum of a job, 1024"), "{found:?}");
}

#[test]
fn a_jiaconf_that_is_not_understood_is_refused() {
    let folder = scratch().join(format!("conf.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    let (hosts, conf) = (folder.join("hosts"), folder.join(".jiaconf"));
    std::fs::write(&hosts, "localhost\n").expect("a file");
    std::fs::write(&conf, "comm_type = udp\nprefetch = perhaps\n").expect("a file");
    let found = outcome(ferroce("dsm run --hosts").arg(&hosts).arg("true"));
    std::fs::remove_dir_all(&folder).expect("our own folder");
    assert_eq!(found.code, 2, "{found:?}");
    let sentence = format!("{}, line 2: prefetch is \"perhaps\"; set it to on or off", conf.display());
    assert!(found.stderr.contains(&sentence), "{found:?}");
}

#[test]
fn other_machines_are_reached_by_ssh() {
    let Some(program) = program() else { return };
    let folder = scratch().join(format!("hosts.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    let (hosts, ssh) = (folder.join("hosts"), folder.join("ssh"));
    std::fs::write(&hosts, "far.test 2\nnear.test ann secret\nlocalhost\n").expect("a file");
    // A stand-in that runs the line here, as the shell of the other machine would.
    let script = "#!/bin/sh\nfor word; do line=$word; done\necho \"to $*\" | cut -d' ' -f1-10 >&2\nexec sh -c \"$line\"\n";
    std::fs::write(&ssh, script).expect("a file");
    let mut command = ferroce("dsm run --meet 127.0.0.1 --hosts");
    command.arg(&hosts).arg("--ssh").arg(format!("sh {}", ssh.display()));
    let found = outcome(command.arg(program).args(["describe", "it's"]));
    std::fs::remove_dir_all(folder).expect("our own folder");
    assert_eq!(found.code, 0, "{found:?}");
    for rank in 0..4 {
        assert!(found.stdout.contains(&format!("[{rank}] of 4, in ")), "{found:?}");
    }
    assert_eq!(found.stdout.matches("<describe> <it's>").count(), 4, "{found:?}");
    assert!(
        found.stderr.contains("[2] to -o BatchMode=yes -o ConnectTimeout=10 -T -l ann near.test cd"),
        "{found:?}"
    );
    assert!(found.stderr.contains("passwords") && !found.stderr.contains("secret"), "{found:?}");
}

#[test]
fn a_machine_that_ssh_does_not_reach_is_named() {
    let hosts = scratch().join(format!("unreached.{}", std::process::id()));
    std::fs::write(&hosts, "localhost\nfar.test\n").expect("a file");
    let ssh = hosts.with_extension("sh");
    std::fs::write(&ssh, "exit 255\n").expect("a file");
    let mut command = ferroce("dsm run --meet 127.0.0.1 --hosts");
    command.arg(&hosts).arg("--ssh").arg(format!("sh {}", ssh.display())).args(["sleep", "100"]);
    let found = outcome(&mut command);
    [hosts, ssh].iter().for_each(|file| std::fs::remove_file(file).expect("our own file"));
    assert_eq!(found.code, 255, "{found:?}");
    let sentence = "process 1 did not start on far.test, or was lost there: ssh ended with status 255";
    assert!(found.stderr.contains(sentence), "{found:?}");
}

#[test]
fn another_machine_that_fails_is_named_with_its_status() {
    let hosts = scratch().join(format!("failing.{}", std::process::id()));
    std::fs::write(&hosts, "far.test\n").expect("a file");
    let mut command = ferroce("dsm run --meet 127.0.0.1 --ssh /bin/false --hosts");
    let found = outcome(command.arg(&hosts).arg("true"));
    std::fs::remove_file(hosts).expect("our own file");
    assert_eq!(found.code, 1, "{found:?}");
    let sentence = "process 0, started on far.test by `/bin/false`, ended with status 1.";
    assert!(found.stderr.contains(sentence), "{found:?}");
}

#[test]
fn a_line_that_is_no_host_is_refused() {
    let found = outcome(&mut ferroce("dsm run --hosts /etc/passwd true"));
    assert_eq!(found.code, 2, "{found:?}");
    assert!(
        found.stderr.contains("/etc/passwd, line 1: ") && found.stderr.contains("is not the name of a host"),
        "{found:?}"
    );
}

#[test]
fn killing_a_process_that_does_not_stop_is_reported() {
    let script = "[ $FERROCE_DSM_RANK = 0 ] && exit 3; trap '' TERM; while :; do sleep 1; done";
    let found = outcome(ferroce("dsm run -n 2 sh -c").arg(script));
    assert_eq!(found.code, 128 + 9, "{found:?}");
    let sentence = "process 1 did not stop when the job ended, and was killed by the launcher with signal 9.";
    assert!(found.stderr.contains(sentence), "{found:?}");
}

fn sshd(name: &str) -> Option<sshd::Sshd> {
    sshd::Sshd::start(scratch().join(format!("{name}.{}", std::process::id())))
}

#[test]
fn a_real_ssh_server_starts_processes() {
    let (Some(program), Some(server)) = (program(), sshd("ssh")) else { return };
    let mut command = ferroce("dsm run --meet 127.0.0.1 --stat --hosts");
    command.arg(server.hosts(1, 2)).args(["--ssh", &server.command()]).arg(program);
    command.args(["describe", "it's", "a b", "$HOME", ""]).current_dir("/");
    let found = outcome(&mut command);
    assert_eq!(found.code, 0, "{found:?}");
    for rank in 0..3 {
        let line = format!("[{rank}] of 3, in /: <describe> <it's> <a b> <$HOME> <>");
        assert!(found.stdout.lines().any(|printed| printed == line), "{line}: {found:?}");
    }
    assert!(found.stderr.contains("Transport: ") && !found.stderr.contains('\u{1e}'), "{found:?}");
    // The remote host returns the worst status, and the process that died is named.
    let mut command = ferroce("dsm run --meet 127.0.0.1 --hosts");
    command.arg(server.hosts(1, 2)).args(["--ssh", &server.command()]).arg(program).arg("exits");
    let found = outcome(&mut command);
    assert_eq!(found.code, 3, "{found:?}");
    assert!(found.stderr.contains("process 2 of the job is down"), "{found:?}");
}

#[test]
fn processes_behind_a_real_ssh_end_with_the_launcher() {
    let (Some(program), Some(server)) = (program(), sshd("ssh-end")) else { return };
    let mut command = ferroce("dsm run --meet 127.0.0.1 --hosts");
    command.arg(server.hosts(1, 1)).args(["--ssh", &server.command()]).arg(program).arg("sleeps");
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut sleepers = Vec::new();
    while sleepers.len() < 2 {
        let mut line = String::new();
        assert!(output.read_line(&mut line).expect("a line") > 0, "both fall asleep");
        sleepers.push(line.trim().rsplit(' ').next().expect("a number").to_owned());
    }
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let found = finish(child);
    assert_eq!(found.code, 128 + 15, "{found:?}");
    // Behind ssh no parent waits for the process; the rendezvous reports to it that the launcher has ended.
    let start = std::time::Instant::now();
    while sleepers.iter().any(|sleeper| Path::new("/proc").join(sleeper).exists()) {
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "left: {sleepers:?}");
        std::thread::yield_now();
    }
}

/// It checks its product itself.
#[test]
fn matrices_are_multiplied_in_rust() {
    let Some(program) = example("mm") else { return };
    for transport in ["local", "rdma", "udp"] {
        let mut command = ferroce(&format!("dsm run -n 3 --transport {transport}"));
        let found = outcome(command.arg(&program).arg("100"));
        assert_eq!(found.code, 0, "{transport}: {found:?}");
        assert!(found.stdout.starts_with("[0] mm: 100 x 100, 3 processes: "), "{transport}: {found:?}");
    }
}

#[test]
fn programs_in_rust_report_their_counters() {
    let Some(program) = example("jacobi") else { return };
    let page = scratch().join(format!("stat-rust.{}.html", std::process::id()));
    let mut command = ferroce(&format!("dsm run -n 2 --transport rdma --stat={}", page.display()));
    let found = outcome(command.arg(program).args(["64", "64", "5"]));
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.stderr.contains("Transport: rdma, page faults by "), "{found:?}");
    let html = std::fs::read_to_string(&page).expect("a page");
    std::fs::remove_file(page).expect("our own file");
    assert!(html.contains("barrier: ") && html.ends_with("</html>\n"), "{html}");
}

#[test]
fn statistics_are_printed_and_drawn() {
    let page = scratch().join(format!("stat.{}.html", std::process::id()));
    let Some(found) = run(&format!("-n 2 --stat={}", page.display()), "describe") else { return };
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.stderr.contains("Transport: local") && found.stderr.contains("barriers"), "{found:?}");
    assert!(!found.stdout.contains("statistics") && !found.stderr.contains('\u{1e}'), "{found:?}");
    let html = std::fs::read_to_string(&page).expect("a page");
    std::fs::remove_file(page).expect("our own file");
    assert!(html.contains("barrier: ") && html.ends_with("</html>\n"), "{html}");
}

/// A process as mpirun starts it.
fn below_mpirun(program: &Path, behaviour: &str, rank: u32) -> std::process::Child {
    let mut command = Command::new(program);
    command
        .arg(behaviour)
        .env("OMPI_COMM_WORLD_RANK", rank.to_string())
        .env("OMPI_COMM_WORLD_SIZE", "2")
        .env("PMIX_NAMESPACE", format!("test-{behaviour}-{}", std::process::id()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

#[test]
fn mpirun_needs_no_launcher_of_ours() {
    let Some(program) = program() else { return };
    // The process that runs the rendezvous starts last: the other must wait for it.
    let [second, first] = [1, 0].map(|rank| below_mpirun(program, "describe", rank));
    for child in [first, second] {
        let found = finish(child);
        assert!(found.code == 0 && found.stdout.contains("of 2, in"), "{found:?}");
    }
}

#[test]
fn below_mpirun_process_0_is_named_when_it_dies() {
    let Some(program) = program() else { return };
    let [mut first, second] = [0, 1].map(|rank| below_mpirun(program, "first", rank));
    let found = finish(second);
    first.wait().expect("it was killed");
    assert_eq!(found.code, 70, "{found:?}");
    let sentence = "process 1 stops: process 0 of the job, which runs the rendezvous, is lost";
    assert!(found.stderr.contains(sentence) && !found.stderr.contains("launcher"), "{found:?}");
}

/// The table and the timeline of `--stat` agree about barriers, also for the process that enters last and does not wait.
#[test]
fn statistics_agree_with_their_timeline() {
    let Some(found) = run("-n 3 --stat --json", "barriers") else { return };
    let line = found
        .stderr
        .lines()
        .find(|line| line.starts_with("{\"processes\""))
        .unwrap_or_else(|| panic!("{found:?}"));
    let statistics: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let processes = statistics["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 3, "{line}");
    for process in processes {
        let spans = process["spans"].as_array().expect("a list").iter();
        let drawn: u64 = spans.filter(|span| span[0] == "barrier").filter_map(|span| span[2].as_u64()).sum();
        let counted = process["counters"]["barrier_wait_ns"].as_u64().expect("a number");
        assert!(
            drawn > 0 && counted >= drawn,
            "process {}: {counted} ns counted, {drawn} ns drawn",
            process["rank"]
        );
    }
}
