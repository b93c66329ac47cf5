//! The book in docs/learn runs: every listing is the file that is compiled, every command is executed, every output is compared.
//!
//! A chapter is a README.md with these blocks, and no others:
//!
//! - `text`: a picture or a table of bytes. It is not checked.
//! - `c`, `rust`: the file that the comment `<!-- file: NAME -->` before it names.
//! - `diff`: lines of main.c to change before the next `console` block, and only for it.
//! - `console`: commands behind `$`, and what each prints: standard output, then standard error, then `(exit status N)` if that is
//!   not 0. `…` stands for any text, and a line that has only `…` stands for any lines but sentences of ferroce. A command with `# the same` at its end
//!   prints what the one before it prints. `^C` as the last line: the program hangs, and is interrupted once it has printed the rest.
//!
//! The commands run in a folder that `ferroce learn` has written. There `cargo` is a script that starts the Rust program from this test,
//! which contains all of them: so none is linked on its own.
//!
//! `FERROCE_REGENERATE=1 cargo test -p ferroce-cli --test learn` writes listings and outputs again.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio, Termination};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};
use support::{build_library, ferroce, has_headers, outcome, scratch};

/// Chapters that run at the same time.
const AT_ONCE: usize = 4;
/// The environment variable with the folder of the chapter whose Rust program is to run.
const WORKER: &str = "FERROCE_TEST_WORKER";
/// Separates what libtest prints first from what the program prints.
const BEGIN: &str = "<the Rust program begins>";
/// The wildcard.
const ANY: &str = "…";
const SAME: &str = "# the same";
const INTERRUPT: &str = "^C";
/// Far more than the watchdog of the NIC needs to explain a hang.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

macro_rules! programs {
    ($($module:ident $folder:literal)*) => {
        $(mod $module {
            include!(concat!("../../../docs/learn/", $folder, "/main.rs"));

            pub(super) fn start() -> std::process::ExitCode {
                std::process::Termination::report(main())
            }
        })*

        /// The Rust programs by the folders of their chapters.
        const PROGRAMS: &[(&str, fn() -> ExitCode)] = &[$(($folder, $module::start)),*];
    };
}

programs! {
    why_rdma "01-why-rdma"
    objects "02-objects"
    first_message "03-first-message"
    completions "04-completions"
    states "05-states"
    keys "06-keys"
    write_read "07-write-read"
    atomics "08-atomics"
    transports "09-transports"
    connections "10-connections"
    loss "11-loss"
    congestion "12-congestion"
    performance "13-performance"
    wire "14-wire"
    shared_memory "15-shared-memory"
}

/// Starts the program that [`WORKER`] names. Without one it does nothing.
#[test]
fn rust_program() {
    let Ok(folder) = std::env::var(WORKER) else { return };
    let (_, start) = PROGRAMS.iter().find(|(of, _)| *of == folder).expect("a program of this test");
    println!("{BEGIN}");
    let ended = start();
    std::process::exit(i32::from(ended != ExitCode::SUCCESS.report()));
}

/// A fenced block: its kind and the lines of its body.
struct Block {
    kind: String,
    body: Range<usize>,
}

fn blocks(lines: &[String]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (at, line) in lines.iter().enumerate() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        match open.take() {
            None => open = Some((kind.to_owned(), at + 1)),
            Some((kind, start)) => blocks.push(Block { kind, body: start..at }),
        }
    }
    assert!(open.is_none(), "a block has no end: {open:?}");
    blocks
}

/// Whether a line has the form of a pattern.
fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((before, pattern)) = pattern.split_once(ANY) else { return pattern == line };
    let Some(rest) = line.strip_prefix(before) else { return false };
    // The next literal text may occur several times.
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| line_matches(pattern, &rest[at..]))
}

/// Whether lines have the form of patterns.
fn lines_match<P: AsRef<str>, L: AsRef<str>>(patterns: &[P], lines: &[L]) -> bool {
    let Some((pattern, others)) = patterns.split_first() else { return lines.is_empty() };
    if pattern.as_ref() == ANY {
        // The page always has the sentences of ferroce about the program.
        let first_sentence = lines.iter().position(|line| line.as_ref().starts_with("ferroce["));
        return (0..=first_sentence.unwrap_or(lines.len())).any(|at| lines_match(others, &lines[at..]));
    }
    lines.split_first().is_some_and(|(line, rest)| {
        line_matches(pattern.as_ref(), line.as_ref()) && lines_match(others, rest)
    })
}

/// A line for the page: process numbers, addresses, keys and queue pair numbers differ from run to run.
fn masked(line: &str) -> String {
    let word = |word: &str| {
        let address = word.trim_end_matches(':');
        // In sentences, and of the ends of a ladder.
        let names_peers = ["ferroce[", "A: ", "B: "].iter().any(|start| line.starts_with(start));
        let is_peer = names_peers && address.parse::<std::net::IpAddr>().is_ok();
        if is_peer { word.replacen(address, ANY, 1) } else { word.to_owned() }
    };
    let line = line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    // Times in a ladder, and of a capture.
    let line = match line.split_once("|  ").filter(|(arrow, _)| arrow.starts_with('|')) {
        Some((arrow, after)) => {
            format!("{}|  {ANY}{}", with_any_psn(arrow), after.find(',').map_or("", |at| &after[at..]))
        }
        None => line,
    };
    let line = match line.split_once(" RoCEv2 packet") {
        Some((count, _)) if count.parse::<u64>().is_ok() => format!("{count} RoCEv2 packet{ANY}"),
        _ => line,
    };
    let mut masked = String::new();
    let mut rest = line.as_str();
    while let Some(at) = [rest.find("0x"), rest.find("ferroce[")].into_iter().flatten().min() {
        let (prefix, least) = if rest[at..].starts_with("0x") { ("0x", 3) } else { ("ferroce[", 1) };
        let (before, number) = rest.split_at(at + prefix.len());
        let after = number.trim_start_matches(|c: char| c.is_ascii_hexdigit());
        let number = &number[..number.len() - after.len()];
        // Short numbers are those of requests, which the program chooses.
        masked += before;
        masked += if number.len() < least { number } else { ANY };
        rest = after;
    }
    masked + rest
}

/// An arrow of a ladder. The first PSN of the connection manager is random, and so is its length.
fn with_any_psn(arrow: &str) -> String {
    let psn = arrow.split_once("PSN ").map_or("", |(_, psn)| psn);
    let digits = psn.len() - psn.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if digits <= 4 {
        return arrow.to_owned();
    }
    let line: String = arrow.chars().filter(|&c| c == '-').collect();
    arrow.replacen(&psn[..digits], ANY, 1).replacen(&line, &format!("--{ANY}"), 1)
}

/// Whether a sentence of `--explain` may follow any failure, or appear on any slow machine.
fn is_incidental(line: &str) -> bool {
    let Some((_, line)) = line.strip_prefix("ferroce[").and_then(|rest| rest.split_once("] ")) else {
        return false;
    };
    line.starts_with("stalled: ")
        || (line.starts_with("dropped: ") && line.contains("is in state ERR, which receives nothing"))
}

/// The lines for the page. The report at the end of `--explain` counts packets, whose number varies: it is left out.
fn for_page(lines: &[String]) -> Vec<String> {
    let is_report = |line: &String| line.starts_with("ferroce run: process ");
    let report = lines.iter().position(is_report);
    let shown = lines[..report.unwrap_or(lines.len())].iter().map(|line| masked(line));
    let last = lines.last().filter(|line| line.starts_with("(exit status"));
    shown.chain(report.map(|_| ANY.to_owned())).chain(report.and(last).cloned()).collect()
}

/// A chapter, and the folder in which its commands run.
struct Book {
    folder: String,
    page: PathBuf,
    at: PathBuf,
    tools: PathBuf,
    address: String,
}

impl Book {
    /// A command as a reader types it.
    fn shell(&self, command: &str) -> Command {
        let path = std::env::var("PATH").expect("a path");
        let own = Path::new(env!("CARGO_BIN_EXE_ferroce")).parent().expect("a folder");
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(&self.at);
        shell.env("PATH", format!("{}:{}:{path}", self.tools.display(), own.display()));
        shell.env("FERROCE_ADDR", &self.address).env_remove("FERROCE_LINK").env(WORKER, &self.folder);
        shell.stdin(Stdio::null());
        shell
    }

    /// Runs a command. Returns the lines that it prints.
    fn run(&self, command: &str) -> Vec<String> {
        let found = outcome(&mut self.shell(command));
        let is_worker = found.stdout.contains(BEGIN);
        let is_libtest = |line: &&str| is_worker && ["", "running 1 test", BEGIN].contains(line);
        let shown = found.stdout.lines().filter(|line| !is_libtest(line)).chain(found.stderr.lines());
        let mut lines: Vec<String> = shown.map(str::to_owned).collect();
        if found.code != 0 {
            lines.push(format!("(exit status {})", found.code));
        }
        lines
    }

    /// Runs a command that hangs, until it has printed these lines. Returns what it has printed.
    fn run_until(&self, command: &str, expected: &[String]) -> Vec<String> {
        let mut shell = self.shell(command);
        let mut child =
            shell.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh");
        let (sender, lines) = mpsc::channel();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("a pipe")), Box::new(child.stderr.take().expect("a pipe"))];
        for (number, stream) in streams.into_iter().enumerate() {
            let sender = sender.clone();
            // The receiver may have seen enough.
            std::thread::spawn(move || {
                BufReader::new(stream)
                    .lines()
                    .map_while(Result::ok)
                    .all(|line| sender.send((number, line)).is_ok())
            });
        }
        drop(sender);
        let mut found = [Vec::new(), Vec::new()];
        let deadline = Instant::now() + HANG_TIMEOUT;
        while !lines_match(expected, &found.concat()) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((number, line)) = lines.recv_timeout(left) else { break };
            found[number].push(line);
        }
        let group = format!("-{}", child.id());
        let kill = |signal| Command::new("kill").args([signal, "--", &group]).status();
        let _ = kill("-INT");
        let deadline = Instant::now() + HANG_TIMEOUT;
        while child.try_wait().expect("a child of ours").is_none() {
            if Instant::now() > deadline {
                let _ = kill("-KILL");
                child.wait().expect("an end");
                panic!("{command}: it does not end {HANG_TIMEOUT:?} after SIGINT");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        found.concat()
    }

    /// Runs the commands of a block. Returns the block as it should be, and what differs.
    fn console(&self, body: &[String], failures: &mut Vec<String>) -> Vec<String> {
        let (mut page, mut at, mut before) = (Vec::new(), 0, Vec::new());
        while at < body.len() {
            let line = &body[at];
            let Some(command) = line.strip_prefix("$ ") else {
                failures.push(format!("{}: this is not below a command: {line}", self.folder));
                break;
            };
            let end = body[at + 1..].iter().position(|line| line.starts_with("$ "));
            let expected = &body[at + 1..end.map_or(body.len(), |end| at + 1 + end)];
            at += 1 + expected.len();
            page.push(line.clone());
            let found = match expected.split_last() {
                Some((last, lines)) if last == INTERRUPT => {
                    let mut found = self.run_until(command, lines);
                    found.push(INTERRUPT.to_owned());
                    found
                }
                _ => self.run(command),
            };
            let mut found = found;
            if !expected.iter().any(|line| is_incidental(line)) {
                found.retain(|line| !is_incidental(line));
            }
            if command.ends_with(SAME) {
                if !lines_match(&before, &found) {
                    failures.push(format!("{}: {line}\nis not the same: {found:#?}", self.folder));
                }
            } else if lines_match(expected, &found) {
                before = expected.to_vec();
                page.extend_from_slice(expected);
            } else {
                failures.push(format!("{}: {line}\nprints {found:#?}\nnot {expected:#?}", self.folder));
                before = for_page(&found);
                page.extend_from_slice(&before);
            }
        }
        page
    }

    /// The same, up to five times if it draws packets: a busy machine sends some of them again.
    fn console_or_again(&self, body: &[String], failures: &mut Vec<String>) -> Vec<String> {
        let before = failures.len();
        let tries = if body.iter().any(|line| line.contains("timeline --text")) { 5 } else { 1 };
        let mut page = self.console(body, failures);
        for _ in 1..tries {
            if failures.len() == before {
                break;
            }
            failures.truncate(before);
            page = self.console(body, failures);
        }
        page
    }

    /// Applies a `diff` block to main.c.
    fn change(&self, body: &[String]) {
        let side = |other: char| -> String {
            let kept = body.iter().filter(|line| !line.starts_with(other));
            kept.map(|line| format!("{}\n", line.get(1..).unwrap_or_default())).collect()
        };
        let (old, new) = (side('+'), side('-'));
        let file = self.at.join("main.c");
        let text = std::fs::read_to_string(&file).expect("written by ferroce learn");
        assert_eq!(
            text.matches(&old).count(),
            1,
            "{}: main.c does not contain this once:\n{old}",
            self.folder
        );
        std::fs::write(file, text.replacen(&old, &new, 1)).expect("our own file");
    }

    /// Runs the chapter. Returns what differs.
    fn check(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.page).expect("part of the repository");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let source = self.page.parent().expect("a folder");
        let read = |name: &str| std::fs::read_to_string(source.join(name)).expect("a file of the chapter");
        let (mut page, mut from, mut failures, mut changed) = (Vec::new(), 0, Vec::new(), false);
        for Block { kind, body } in blocks(&lines) {
            page.extend_from_slice(&lines[from..body.start]);
            from = body.end;
            let block = &lines[body.clone()];
            match kind.as_str() {
                "text" => page.extend_from_slice(block),
                "c" | "rust" => {
                    let comment = &lines[body.start - 2];
                    let name = comment.strip_prefix("<!-- file: ").and_then(|rest| rest.strip_suffix(" -->"));
                    let name = name.unwrap_or_else(|| panic!("{}: no file before {block:?}", self.folder));
                    page.extend(read(name).lines().map(str::to_owned));
                }
                "diff" => {
                    self.change(block);
                    changed = true;
                    page.extend_from_slice(block);
                }
                "console" => {
                    page.extend(self.console_or_again(block, &mut failures));
                    if std::mem::take(&mut changed) {
                        std::fs::write(self.at.join("main.c"), read("main.c")).expect("our own file");
                    }
                }
                other => panic!("{}: a block of kind {other:?} is not checked: {block:?}", self.folder),
            }
        }
        page.extend_from_slice(&lines[from..]);
        let page = page.join("\n") + "\n";
        if page != text {
            if std::env::var_os("FERROCE_REGENERATE").is_some() {
                std::fs::write(&self.page, page).expect("the page can be written");
            }
            failures.push(format!(
                "{}: run this test with FERROCE_REGENERATE=1, and read the changes",
                self.folder
            ));
        }
        failures
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().expect("part of the repository")
}

fn learn() -> PathBuf {
    docs().join("learn")
}

/// The folders of the chapters, as the command lists them.
fn chapters() -> Vec<(String, String)> {
    let listed = outcome(&mut ferroce("learn --json")).json();
    let field = |chapter: &serde_json::Value, name: &str| chapter[name].as_str().expect("text").to_owned();
    let listed = listed.as_array().expect("a list").iter();
    listed.map(|chapter| (field(chapter, "folder"), field(chapter, "title"))).collect()
}

/// Writes the folder of each chapter with the command, and a `cargo` that starts the Rust programs.
fn prepare(at: &Path) -> Vec<Book> {
    // A test that was killed leaves its folder.
    let _ = std::fs::remove_dir_all(at);
    let tools = at.join("tools");
    std::fs::create_dir_all(&tools).expect("a folder of our own");
    let own = std::env::current_exe().expect("this test");
    // With one thread, libtest prints the test's name before the program's first line. A further word is one more filter to libtest,
    // which changes nothing, and an argument to the program.
    let start = format!("exec {} --exact rust_program --nocapture --test-threads=2", own.display());
    let cargo = format!(
        "#!/bin/sh\ncase $1 in\nrun) {start} $4 ;;\nbuild) mkdir -p target/debug && \
         printf '#!/bin/sh\\n{start}\\n' >target/debug/main-rust && chmod +x target/debug/main-rust ;;\nesac\n"
    );
    let script = tools.join("cargo");
    std::fs::write(&script, cargo).expect("a file of our own");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, executable).expect("a file of our own");
    let [.., b, c] = std::process::id().to_be_bytes();
    let book = |(number, (folder, _)): (usize, (String, String))| {
        let (page, place) = (learn().join(&folder).join("README.md"), at.join(&folder));
        let started = outcome(ferroce("learn").args([Path::new(&folder), &place]));
        assert!(started.code == 0 && started.stdout.contains("Run this next:"), "{started:?}");
        Book {
            folder,
            page,
            at: place,
            tools: tools.clone(),
            address: format!("127.{}.{b}.{c}", 100 + number),
        }
    };
    chapters().into_iter().enumerate().map(book).collect()
}

#[test]
fn every_chapter_runs() {
    if !has_headers() {
        return;
    }
    for package in ["ferroce-ibverbs", "ferroce-rdmacm", "ferroce-shim", "ferroce-jia"] {
        build_library(package);
    }
    let at = scratch().join(format!("learn.{}", std::process::id()));
    let books = prepare(&at);
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(book) = books.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = book.check();
                    failures.lock().expect("no panic").extend(found);
                }
            });
        }
    });
    std::fs::remove_dir_all(at).expect("our own folder");
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Chapters without a ladder: the first sends no packet, and the packets of the second depend on when its processes meet.
const WITHOUT_LADDER: [&str; 2] = ["02-objects", "15-shared-memory"];

#[test]
fn every_chapter_has_the_same_parts() {
    for (folder, title) in chapters() {
        let text = std::fs::read_to_string(learn().join(&folder).join("README.md")).expect("a chapter");
        assert!(text.lines().next().expect("a heading").ends_with(&title), "{folder}");
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let mut parts = vec!["In C", "In Rust", "Run it", "Its packets", "Three mistakes", "Exercises"];
        parts.retain(|part| *part != "Its packets" || !WITHOUT_LADDER.contains(&folder.as_str()));
        let found: Vec<&str> = headings.into_iter().filter(|heading| parts.contains(heading)).collect();
        assert_eq!(found, parts, "{folder}");
        let (before, mistakes) = text.split_once("\n## Three mistakes\n").expect("a heading");
        let (mistakes, exercises) = mistakes.split_once("\n## Exercises\n").expect("a heading");
        assert!(before.contains("\n```text\n"), "{folder} has no picture");
        assert_eq!(mistakes.matches("\n### ").count(), 3, "{folder}: mistakes");
        assert!(mistakes.matches("\n```console\n").count() >= 3, "{folder}: mistakes that are run");
        let answers = exercises.matches("\n<details><summary>Answer</summary>\n").count();
        assert!(answers >= 2 && answers == exercises.matches("\n</details>").count(), "{folder}: answers");
    }
}

#[test]
fn the_contents_list_the_chapters_of_the_command() {
    let (mut contents, mut summary) = (Vec::new(), Vec::new());
    for ((folder, title), number) in chapters().iter().zip(1..) {
        contents.push(format!("{number}. [{title}]({folder}/README.md)"));
        summary.push(format!("  - [{number}. {title}](learn/{folder}/README.md)"));
    }
    for (page, listed) in [("learn/README.md", contents), ("SUMMARY.md", summary)] {
        let text = std::fs::read_to_string(docs().join(page)).expect("part of the repository");
        let entry =
            |line: &&str| line.trim_start_matches([' ', '-', '[']).starts_with(|c: char| c.is_ascii_digit());
        assert_eq!(text.lines().filter(entry).collect::<Vec<_>>(), listed, "{page}");
    }
    let programs: Vec<&str> = PROGRAMS.iter().map(|(folder, _)| *folder).collect();
    let folders: Vec<String> = chapters().into_iter().map(|(folder, _)| folder).collect();
    assert_eq!(programs, folders, "the Rust programs of this test");
}

/// The files to which the relative links of a page lead.
fn links(page: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(page).expect("a page of the documentation");
    // Every second part is a block of code.
    let links = text.split("```").step_by(2).flat_map(|prose| prose.split("](").skip(1));
    let targets = links.filter_map(|rest| rest.split(['#', ')']).next());
    let relative = targets.filter(|target| !target.is_empty() && !target.contains("://"));
    let leads = |target: &str| page.with_file_name(target).canonicalize();
    relative
        .map(|target| leads(target).unwrap_or_else(|error| panic!("{page:?}: {target}: {error}")))
        .collect()
}

#[test]
fn links_of_the_website_stay_in_it() {
    let docs = docs();
    let pages = links(&docs.join("SUMMARY.md"));
    // mdBook makes a page of each file in the summary, and copies all others but Markdown.
    let is_there = |target: &PathBuf| {
        let is_page = target.extension().is_some_and(|extension| extension == "md");
        if is_page { pages.contains(target) } else { target.is_file() && target.starts_with(&docs) }
    };
    let lost: Vec<(&Path, PathBuf)> = pages
        .iter()
        .flat_map(|page| links(page).into_iter().map(move |target| (page.as_path(), target)))
        .filter(|(_, target)| !is_there(target))
        .collect();
    assert!(lost.is_empty(), "`mdbook build docs` does not take these with it: {lost:#?}");
}

#[test]
fn a_chapter_is_never_written_over_something() {
    let at = scratch().join(format!("learn-twice.{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&at);
    let start = || outcome(ferroce("learn 3").arg(&at));
    assert_eq!(start().code, 0);
    std::fs::write(at.join("main.c"), "mine").expect("our own folder");
    let again = start();
    assert!(again.code == 1 && again.stderr.contains("exists already; nothing was written"), "{again:?}");
    assert_eq!(std::fs::read_to_string(at.join("main.c")).expect("our own file"), "mine");

    // The sources are here, so the manifest names them, and cargo accepts it.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    std::fs::copy(lock, at.join("Cargo.lock")).expect("part of the repository");
    if support::may_build() {
        // Unlike `cargo metadata`, this needs only the packages of this platform, which building ferroce has downloaded.
        let tree = ["tree", "--offline", "--edges", "normal", "--depth", "1", "--prefix", "none"];
        let found = outcome(Command::new(env!("CARGO")).args(tree).current_dir(&at));
        let used: Vec<_> = found.stdout.lines().filter(|line| line.starts_with("ferroce v")).collect();
        assert!(found.code == 0 && used.len() == 1 && used[0].ends_with("/crates/ferroce)"), "{found:?}");
    }
    std::fs::remove_dir_all(at).expect("our own folder");

    let unknown = outcome(&mut ferroce("learn nothing"));
    assert!(unknown.code == 2 && unknown.stderr.contains("there is no chapter nothing"), "{unknown:?}");
}

#[test]
fn wildcards_stand_for_any_text() {
    assert!(line_matches("QP 0x…: … of … bytes", "QP 0x12: a of b of 3 bytes") && line_matches("a…", "a"));
    assert!(!line_matches("QP 0x… x", "QP 0x12") && !line_matches("a", "ab") && !line_matches("…b", "bc"));
    let lines = ["one", "two", "three"];
    assert!(
        lines_match(&["one", "…"], &lines)
            && lines_match(&["…", "thr…"], &lines)
            && lines_match(&["…"], &[""; 0])
    );
    assert!(!lines_match(&["one", "two"], &lines) && !lines_match(&["…", "two"], &lines));
    for address in ["0:0:0:0:0:ffff:7f64:1", "127.100.0.1", "fe80::1"] {
        let line = format!("ferroce[12] failed: QP 0x05a at {address}: wr_id 0x2: 7");
        assert_eq!(masked(&line), "ferroce[…] failed: QP 0x… at …: wr_id 0x2: 7");
    }
}
