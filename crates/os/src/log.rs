//! `FERROCE_LOG`: why a completion failed, a packet was dropped or a call refused, in one sentence each.
//!
//! Off by default; the sentences are then not formatted.

#![expect(unsafe_code, reason = "writes to stderr without a lock")]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, OnceLock};

/// Lines of one kind that `explain` prints; the others are counted.
const LINES_PER_KIND: usize = 5;
/// Kinds of lines that `explain` distinguishes. Lines of further kinds are of one kind.
const MAX_KINDS: usize = 256;

/// The topic of [`misuse`].
const MISUSED: &str = "misused";

/// The topics that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Topics {
    completions: bool,
    drops: bool,
    calls: bool,
    /// Only a few lines of each kind are printed.
    brief: bool,
    /// Each line is a JSON object.
    json: bool,
}

static TOPICS: OnceLock<Topics> = OnceLock::new();

fn topics() -> Topics {
    *TOPICS.get_or_init(|| parse(&crate::env::var_os("FERROCE_LOG").unwrap_or_default().to_string_lossy()))
}

fn parse(value: &str) -> Topics {
    let mut topics = Topics::default();
    for word in value.split(',').map(str::trim) {
        match word {
            "" | "0" | "off" => {}
            "completions" => topics.completions = true,
            "drops" => topics.drops = true,
            "calls" => topics.calls = true,
            "json" => topics.json = true,
            "explain" => {
                topics = Topics { completions: true, drops: true, calls: true, brief: true, ..topics }
            }
            _ => topics = Topics { completions: true, drops: true, calls: true, ..topics },
        }
    }
    topics
}

/// Lines that were printed or counted, by kind. Lines that differ only in numbers are of one kind.
#[derive(Debug, Default)]
struct Kinds(BTreeMap<String, Kind>);

#[derive(Debug, Default)]
struct Kind {
    printed: Vec<String>,
    /// Lines that were not printed.
    more: u64,
}

impl Kinds {
    const fn new() -> Kinds {
        Kinds(BTreeMap::new())
    }

    /// Returns `true` if the line is to be printed, and counts it otherwise.
    fn admit(&mut self, line: &str) -> bool {
        let mut kind = kind_of(line);
        if self.0.len() >= MAX_KINDS && !self.0.contains_key(&kind) {
            kind = String::new();
        }
        let kind = self.0.entry(kind).or_default();
        let is_new = kind.printed.len() < LINES_PER_KIND && !kind.printed.iter().any(|before| before == line);
        if is_new {
            kind.printed.push(line.to_owned());
        } else {
            kind.more += 1;
        }
        is_new
    }

    /// For each kind with suppressed lines: the first line, and the number of suppressed lines since the last call.
    fn take_more(&mut self) -> Vec<(String, u64)> {
        let left_out = self.0.values_mut().filter(|kind| kind.more > 0);
        left_out.map(|kind| (kind.printed[0].clone(), std::mem::take(&mut kind.more))).collect()
    }
}

/// A line with each decimal or hexadecimal number replaced. The groups of an address are such numbers. A few words (`dead`) are, too.
fn kind_of(line: &str) -> String {
    let is_number = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit()) || word.chars().all(|c| c.is_ascii_hexdigit())
    };
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    words.map(|word| if is_number(word) { "#" } else { word }).collect()
}

static KINDS: Mutex<Kinds> = Mutex::new(Kinds::new());

/// With `FERROCE_LOG=explain`, the suppressed lines: for each kind the first line, and the number of suppressed lines since the last call.
pub fn take_more() -> Vec<(String, u64)> {
    KINDS.try_lock().map_or_else(|_| Vec::new(), |mut kinds| kinds.take_more())
}

fn say(topic: &str, why: fmt::Arguments<'_>) {
    let line = format!("{topic}: {why}");
    // `try_lock`, because in a child of `fork` a lock that another thread held is never released.
    if topics().brief && KINDS.try_lock().is_ok_and(|mut kinds| !kinds.admit(&line)) {
        return;
    }
    let pid = std::process::id();
    let line = match topics().json {
        true => to_json(pid, topic, &why.to_string()),
        false => format!("ferroce[{pid}] {line}\n"),
    };
    write(line.as_bytes());
}

/// Writes a line to stderr with one call, so that lines of several processes do not mix. Not through the standard library, whose stderr has a
/// lock: see `say`. A closed stderr is not an error.
fn write(mut line: &[u8]) {
    while !line.is_empty() {
        // SAFETY: the pointer and the length are those of the slice.
        let written = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
        match usize::try_from(written) {
            Ok(written) => line = line.get(written..).unwrap_or_default(),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The line as a JSON object.
fn to_json(pid: u32, topic: &str, why: &str) -> String {
    let mut text = String::with_capacity(why.len());
    for c in why.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c < ' ' => text += &format!("\\u{:04x}", u32::from(c)),
            c => text.push(c),
        }
    }
    format!("{{\"pid\":{pid},\"topic\":\"{topic}\",\"text\":\"{text}\"}}\n")
}

/// Reports a fault that may end the process, always. For signal handlers: it takes no lock and does not allocate. The sentence must not
/// contain characters that JSON escapes.
pub fn fatal(why: fmt::Arguments<'_>) {
    say_in_handler("fatal", why);
}

/// Reports a mistake of the program, always; as [`fatal`] for signal handlers.
pub fn misuse_in_handler(why: fmt::Arguments<'_>) {
    say_in_handler(MISUSED, why);
}

fn say_in_handler(topic: &str, why: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 1024], len: 0 };
    let pid = std::process::id();
    let is_json = TOPICS.get().is_some_and(|topics| topics.json);
    let written = match is_json {
        true => fmt::write(
            &mut line,
            format_args!("{{\"pid\":{pid},\"topic\":\"{topic}\",\"text\":\"{why}\"}}\n"),
        ),
        false => fmt::write(&mut line, format_args!("ferroce[{pid}] {topic}: {why}\n")),
    };
    if written.is_ok() {
        write(&line.bytes[..line.len]);
    }
}

/// A line on the stack.
struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        free.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Reports why a completion failed, if `FERROCE_LOG` names the topic `completions`.
pub fn completion(why: fmt::Arguments<'_>) {
    if topics().completions {
        say("failed", why);
    }
}

/// Reports why a packet was dropped, if `FERROCE_LOG` names the topic `drops`.
pub fn drop(why: fmt::Arguments<'_>) {
    if topics().drops {
        say("dropped", why);
    }
}

/// Reports which path the device chose, if `FERROCE_LOG` names the topic `calls`.
pub fn choice(why: fmt::Arguments<'_>) {
    if topics().calls {
        say("chose", why);
    }
}

/// Reports why a call was refused, if `FERROCE_LOG` names the topic `calls`. C callers see a bare number only.
pub fn refusal(why: fmt::Arguments<'_>) {
    if topics().calls {
        say("refused", why);
    }
}

/// Reports that the device ignores or cannot fulfil a setting of the user, always.
pub fn warning(why: fmt::Arguments<'_>) {
    say("warning", why);
}

/// Reports a mistake of the program that no call returns, always. The caller is a check that the user has enabled.
pub fn misuse(why: fmt::Arguments<'_>) {
    say(MISUSED, why);
}

/// Whether `FERROCE_LOG` names any topic.
pub fn is_on() -> bool {
    let Topics { completions, drops, calls, .. } = topics();
    completions || drops || calls
}

/// Whether [`stall`] prints: `FERROCE_LOG=explain`.
pub fn explains() -> bool {
    topics().brief
}

/// Reports why an operation does not progress, with `FERROCE_LOG=explain`.
pub fn stall(why: fmt::Arguments<'_>) {
    if explains() {
        say("stalled", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_topics() {
        assert_eq!(parse(""), Topics::default());
        assert_eq!(parse("off"), Topics::default());
        assert_eq!(parse("drops"), Topics { drops: true, ..Topics::default() });
        let both = Topics { completions: true, drops: true, ..Topics::default() };
        assert_eq!(parse("drops, completions"), both);
        assert_eq!(parse("1"), Topics { calls: true, ..both });
        assert_eq!(parse("explain"), Topics { calls: true, brief: true, ..both });
        assert_eq!(parse("explain,json"), Topics { calls: true, brief: true, json: true, ..both });
        assert_eq!(parse("json,explain"), parse("explain,json"));
    }

    /// In a child of `fork`, a lock that another thread held is never released.
    #[test]
    fn a_line_is_printed_while_another_thread_holds_stderr() {
        let held = std::io::stderr().lock();
        let (sender, printed) = std::sync::mpsc::channel();
        let printer = std::thread::spawn(move || {
            warning(format_args!("a test prints this line"));
            sender.send(()).unwrap();
        });
        printed.recv_timeout(std::time::Duration::from_secs(30)).expect("it does not wait for the lock");
        std::mem::drop(held);
        printer.join().unwrap();
    }

    #[test]
    fn a_line_of_json_escapes_its_text() {
        let line = to_json(7, "refused", "a \"b\" \\ c\n");
        assert_eq!(line, "{\"pid\":7,\"topic\":\"refused\",\"text\":\"a \\\"b\\\" \\\\ c\\u000a\"}\n");
    }

    #[test]
    fn a_line_is_printed_once_and_few_that_differ_only_in_numbers() {
        let mut kinds = Kinds::new();
        let refused = "refused: ibv_modify_qp: QP 17: no such port 3";
        assert!(kinds.admit(refused) && kinds.admit("refused: ibv_reg_mr: no such flag"));
        assert!((0..11).all(|_| !kinds.admit(refused)));
        let dropped = |n: u32| {
            let (psn, group) = (n * 1000, 0xa000 + n);
            format!("dropped: QP {n} at 10.0.0.{n}, {group:04x}:{group:04x}: PSN {psn:#x} of no request")
        };
        let printed = (0..100).filter(|&n| kinds.admit(&dropped(n))).count();
        assert_eq!(printed, LINES_PER_KIND);
        let more = [(dropped(0), 100 - LINES_PER_KIND as u64), (refused.to_owned(), 11)];
        assert_eq!((kinds.take_more(), kinds.take_more()), (more.to_vec(), vec![]));
    }

    #[test]
    fn the_table_of_kinds_is_bounded() {
        let mut kinds = Kinds::new();
        let word = |n: usize| format!("dropped: {}", "x".repeat(n));
        let printed = (1..=2 * MAX_KINDS).filter(|&n| kinds.admit(&word(n))).count();
        assert_eq!((printed, kinds.0.len()), (MAX_KINDS + LINES_PER_KIND, MAX_KINDS + 1));
        assert_eq!(kinds.take_more(), [(word(MAX_KINDS + 1), (MAX_KINDS - LINES_PER_KIND) as u64)]);
    }
}
