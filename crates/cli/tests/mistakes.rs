//! The catalogue of mistakes: each program of programs/mistakes behaves as its comment states, and `ferroce run --explain` prints the reason.
//!
//! `FERROCE_REGENERATE=1 cargo test -p ferroce-cli --test mistakes` writes docs/learn/mistakes.md from the comments.

mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{build_library, cc, ferroce, has_headers, outcome, scratch};

/// Programs that run at the same time. Most of their time they wait.
const AT_ONCE: usize = 8;

/// A sentence that may follow any error, if a packet is in flight when it happens.
const AFTERMATH: &str = "dropped: QP # is in state ERR, which receives nothing; it must be in RTR or RTS";

/// How the report names what a program left behind. Most of these programs destroy nothing.
const LEFT_BEHIND: &str = "  never ";

/// What a line of a comment is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What the program prints.
    Shows,
    /// What ferroce prints about it.
    Says,
}

/// How the two ends of a mistake reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    SharedMemory,
    Udp,
}

impl Link {
    const ALL: [Link; 2] = [Link::SharedMemory, Link::Udp];

    /// For `ferroce run --link`.
    fn option(self) -> &'static str {
        match self {
            Link::SharedMemory => "auto",
            Link::Udp => "udp",
        }
    }
}

/// A line that is expected.
#[derive(Debug)]
struct Line {
    kind: Kind,
    /// The only link on which it comes.
    link: Option<Link>,
    text: String,
}

/// One entry of the catalogue.
#[derive(Debug)]
struct Mistake {
    name: String,
    what: String,
    /// Further options of `ferroce run`.
    options: String,
    lines: Vec<Line>,
}

impl Mistake {
    /// The entry of a comment without its marks.
    fn parse(name: &str, comment: &str) -> Mistake {
        let keys = [
            ("shows: ", Kind::Shows, None),
            ("says: ", Kind::Says, None),
            ("udp shows: ", Kind::Shows, Some(Link::Udp)),
            ("udp says: ", Kind::Says, Some(Link::Udp)),
            ("local shows: ", Kind::Shows, Some(Link::SharedMemory)),
            ("local says: ", Kind::Says, Some(Link::SharedMemory)),
        ];
        let mut mistake =
            Mistake { name: name.to_owned(), what: String::new(), options: String::new(), lines: Vec::new() };
        for text in comment.lines().map(|line| line.trim().trim_start_matches(['/', '*']).trim()) {
            if let Some(options) = text.strip_prefix("options: ") {
                mistake.options = format!("{options} ");
                continue;
            }
            let key = keys.iter().find_map(|(key, kind, link)| Some((text.strip_prefix(key)?, *kind, *link)));
            if let Some((rest, kind, link)) = key {
                mistake.lines.push(Line { kind, link, text: rest.trim().to_owned() });
            } else if !text.is_empty() {
                // A line without a key continues the one before it.
                let before = mistake.lines.last_mut().map_or(&mut mistake.what, |line| &mut line.text);
                *before = format!("{before} {text}").trim().to_owned();
            }
        }
        mistake
    }

    fn expected(&self, kind: Kind, link: Link) -> Vec<&str> {
        let lines =
            self.lines.iter().filter(|line| line.kind == kind && line.link.is_none_or(|only| only == link));
        lines.map(|line| line.text.as_str()).collect()
    }

    /// Runs it on a loopback address that no other program has: a datagram may be lost when one joins or leaves. Returns what differs
    /// from its comment.
    fn check(&self, program: &Path, link: Link, address: &str) -> Result<(), String> {
        let [shows, says] = [Kind::Shows, Kind::Says].map(|kind| self.expected(kind, link));
        // `timeout` ends what hangs although it was explained, or was not explained.
        let line = format!("run --explain {}--link {} -- timeout -s KILL 60", self.options, link.option());
        let mut child = ferroce(&line)
            .arg(program)
            .arg(&self.name)
            .env("FERROCE_ADDR", address)
            // `--link auto` leaves the variable as it is.
            .env_remove("FERROCE_LINK")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut input = child.stdin.take();
        let mut said: Vec<String> = Vec::new();
        for line in BufReader::new(child.stderr.take().expect("a pipe")).lines() {
            said.extend(sentence(&line.expect("text")));
            if says.iter().all(|pattern| said.iter().any(|line| matches(pattern, line))) {
                // A program that hangs ends with its input.
                input.take();
            }
        }
        let mut shown = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut shown).expect("text");
        let status = child.wait().expect("an end");
        let is_said = |pattern: &str| said.iter().any(|line| matches(pattern, line));
        // On a slow machine the watchdog reports stalls, whatever the mistake is.
        let is_besides =
            |line: &str| line.starts_with("stalled: ") || line.starts_with(LEFT_BEHIND.trim_start());
        let is_expected = |line: &str| {
            is_besides(line) || says.iter().chain([&AFTERMATH]).any(|pattern| matches(pattern, line))
        };
        let missing: Vec<_> = says.iter().filter(|pattern| !is_said(pattern)).collect();
        let extra: Vec<_> = said.iter().filter(|line| !is_expected(line)).collect();
        if shown.lines().eq(shows.iter().copied())
            && status.success()
            && missing.is_empty()
            && extra.is_empty()
        {
            return Ok(());
        }
        Err(format!(
            "{} ({link:?}, {status}) shows {shown:?}, not {shows:?};\n  not said: {missing:#?}\n  not in the comment: {extra:#?}",
            self.name
        ))
    }
}

/// A line of ferroce about the program, without the process; not one about the path that the device chose. From the report at the end,
/// what the program left behind.
fn sentence(line: &str) -> Option<String> {
    if line.starts_with(LEFT_BEHIND) {
        return Some(line.trim_start().to_owned());
    }
    let (_, line) = line.strip_prefix("ferroce[")?.split_once("] ")?;
    (!line.starts_with("chose: ")).then(|| line.to_owned())
}

/// Whether a line has the form of a pattern, in which `#` stands for a number or an address.
fn matches(pattern: &str, line: &str) -> bool {
    let Some((before, pattern)) = pattern.split_once('#') else { return pattern == line };
    let Some(line) = line.strip_prefix(before) else { return false };
    let rest = line.trim_start_matches(|c: char| c.is_ascii_hexdigit() || "x.:".contains(c));
    let number = line[..line.len() - rest.len()].trim_end_matches(['.', ':']);
    !number.is_empty() && matches(pattern, &line[number.len()..])
}

/// The files with mistakes: the title of each, and its entries.
fn catalogue() -> Vec<(String, Vec<Mistake>)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder()).expect("part of the repository").flatten().map(|e| e.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).expect("text");
        let title = text.lines().next().expect("a title").trim_matches(['/', '*', ' ']).to_owned();
        let parts: Vec<&str> = text.split("\nMISTAKE(").collect();
        let mistakes = parts.windows(2).map(|pair| {
            let (name, _) = pair[1].split_once(')').expect("a name");
            let comment = pair[0].rsplit_once("/*").expect("a comment before it").1;
            Mistake::parse(name, comment)
        });
        (title, mistakes.collect())
    };
    files.iter().map(read).filter(|(_, mistakes): &(_, Vec<_>)| !mistakes.is_empty()).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/mistakes")
}

/// Compiles all of them into one program. `None`, with the reason printed, if this machine cannot.
fn compile() -> Option<PathBuf> {
    if !has_headers() {
        return None;
    }
    for package in ["ferroce-ibverbs", "ferroce-rdmacm", "ferroce-shim"] {
        build_library(package);
    }
    let program = scratch().join(format!("mistakes.{}", std::process::id()));
    let files =
        std::fs::read_dir(folder()).expect("part of the repository").flatten().map(|entry| entry.file_name());
    let sources: Vec<String> =
        files.map(|name| name.into_string().expect("text")).filter(|name| name.ends_with(".c")).collect();
    let flags = "-Wall -Wextra -Wno-missing-field-initializers -Werror -pthread";
    cc(&folder(), &format!("{flags} -o {} {} -lrdmacm -libverbs", program.display(), sources.join(" ")));
    Some(program)
}

#[test]
fn every_mistake_is_explained() {
    let Some(program) = compile() else { return };
    let catalogue = catalogue();
    let runs: Vec<(&Mistake, Link)> = catalogue
        .iter()
        .flat_map(|(_, mistakes)| mistakes)
        .flat_map(|mistake| Link::ALL.map(|link| (mistake, link)))
        .collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let [.., b, c] = std::process::id().to_be_bytes();
            let address = format!("127.{}.{b}.{c}", 80 + number);
            let (runs, next, failures, program) = (&runs, &next, &failures, &program);
            scope.spawn(move || {
                while let Some((mistake, link)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = mistake.check(program, *link, &address) {
                        failures.lock().expect("no panic").push(failure);
                    }
                }
            });
        }
    });
    check_json(&program);
    std::fs::remove_file(program).expect("our own file");
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{} of {} runs:\n{}", failures.len(), runs.len(), failures.join("\n"));
}

/// With `--explain=json`, each line is an object: the sentences, and the report of the process.
fn check_json(program: &Path) {
    let mut command = ferroce("run --explain=json --");
    let found = outcome(command.arg(program).arg("wrong_rkey"));
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let lines: Vec<serde_json::Value> = found.stderr.lines().map(parse).collect();
    let failed: Vec<_> = lines.iter().filter(|line| line["topic"] == "failed").collect();
    assert!(
        failed.len() == 2 && failed.iter().all(|line| line["pid"].is_u64() && line["text"].is_string()),
        "{found:?}"
    );
    let report = lines.last().expect("a report");
    assert_eq!(
        (&report["topic"], &report["report"]["failed_completions"]),
        (&"report".into(), &1.into()),
        "{found:?}"
    );
}

#[test]
fn the_page_lists_every_mistake() {
    let catalogue = catalogue();
    let count: usize = catalogue.iter().map(|(_, mistakes)| mistakes.len()).sum();
    let mut page = format!(
        "# Mistakes\n\n\
         <!-- Made from programs/mistakes: FERROCE_REGENERATE=1 cargo test -p ferroce-cli --test mistakes -->\n\n\
         What does my program see when I make this mistake, and what does ferroce tell me? Each of these {count} mistakes is a short function in \
         `programs/mistakes`. To make one:\n\n\
         ```\n\
         cc -pthread -o mistakes programs/mistakes/*.c -lrdmacm -libverbs\n\
         ferroce run --explain -- ./mistakes wrong_rkey\n\
         ```\n\n\
         The first lines of each entry are printed by the program, as on hardware. The others are those of `ferroce run --explain`; `#` stands for a number or an address. \
         A line with `(UDP)` or `(one host)` appears only on that link.\n"
    );
    for (title, mistakes) in &catalogue {
        let _ = write!(page, "\n## {}\n", title.trim_end_matches('.'));
        for mistake in mistakes {
            let with = match mistake.options.trim() {
                "" => String::new(),
                options => format!(" With `ferroce run {options}`:"),
            };
            let _ = write!(page, "\n### {}\n\n{}{with}\n\n```\n", mistake.name, mistake.what);
            for line in &mistake.lines {
                let link = match line.link {
                    None => "",
                    Some(Link::Udp) => " (UDP)",
                    Some(Link::SharedMemory) => " (one host)",
                };
                let _ = writeln!(page, "{}{link}", line.text);
            }
            page += "```\n";
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/learn/mistakes.md");
    if std::env::var_os("FERROCE_REGENERATE").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(path).expect("part of the repository");
    assert!(page == written, "docs/learn/mistakes.md is stale: run this test with FERROCE_REGENERATE=1");
}
