//! `FERROCE_LOG`: why a completion failed, a packet was dropped or a call refused, in one sentence each.
//!
//! Off by default, and then the sentences are not even formatted.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// The topics that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Topics {
    completions: bool,
    drops: bool,
    calls: bool,
}

fn topics() -> Topics {
    static TOPICS: OnceLock<Topics> = OnceLock::new();
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
            _ => topics = Topics { completions: true, drops: true, calls: true },
        }
    }
    topics
}

fn say(topic: &str, why: fmt::Arguments<'_>) {
    let line = format!("ferroce[{}] {topic}: {why}\n", std::process::id());
    // One write per line, so that lines of several processes do not mix. A closed stderr is nobody's failure.
    let _ = std::io::stderr().write_all(line.as_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_topics() {
        assert_eq!(parse(""), Topics::default());
        assert_eq!(parse("off"), Topics::default());
        assert_eq!(parse("drops"), Topics { drops: true, ..Topics::default() });
        let both = Topics { completions: true, drops: true, calls: false };
        assert_eq!(parse("drops, completions"), both);
        assert_eq!(parse("1"), Topics { calls: true, ..both });
    }
}
