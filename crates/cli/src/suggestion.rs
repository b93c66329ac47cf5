//! Suggestions for a mistyped command.
//!
//! clap compares words by their common letters, and does not suggest `run` for `rnu`. This module counts the letters that are added, left
//! out, changed, or swapped with the next one.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::ffi::OsString;

/// Adds suggestions for an unknown command if clap found none.
pub(crate) fn add(mut error: Error, root: &Command, line: impl Iterator<Item = OsString>) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand || error.get(ContextKind::SuggestedSubcommand).is_some() {
        return error;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned() else {
        return error;
    };
    let words = line.skip(1).map(|word| word.to_string_lossy().into_owned());
    let at =
        words.take_while(|word| *word != typed).fold(root, |at, word| at.find_subcommand(word).unwrap_or(at));
    let names = at.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    let meant: Vec<String> = closest(&typed, names).into_iter().map(str::to_owned).collect();
    if !meant.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
    error
}

/// The names that are closest to a word: at most one difference per three letters.
fn closest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let most = word.chars().count().div_ceil(3);
    let all: Vec<(usize, &str)> = names.map(|name| (distance(word, name), name)).collect();
    let least = all.iter().map(|(distance, _)| *distance).min().unwrap_or(usize::MAX);
    all.into_iter()
        .filter(|(distance, _)| *distance == least && least <= most)
        .map(|(_, name)| name)
        .collect()
}

/// Letters that were added, left out, changed, or swapped with the next one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandLine;
    use clap::{CommandFactory, Parser};

    fn error_text(line: &str) -> String {
        let words = || line.split(' ').map(OsString::from);
        let error = CommandLine::try_parse_from(words()).err().expect("a mistake");
        add(error, &CommandLine::command(), words()).to_string()
    }

    #[test]
    fn mistyped_commands_are_recognised_at_every_level() {
        for (line, meant) in [
            ("ferroce rnu -- x", "'run'"),
            ("ferroce docter", "'doctor'"),
            ("ferroce dsm rnu", "'run'"),
            ("ferroce fabric smi x.toml", "'sim'"),
            ("ferroce perf wirte-bw", "'write-bw'"),
        ] {
            let text = error_text(line);
            assert!(text.contains("similar") && text.contains(meant), "{line}: {text}");
        }
        assert!(!error_text("ferroce xyzzy").contains("similar"));
    }

    #[test]
    fn swapped_letters_count_once() {
        assert_eq!(
            [distance("rnu", "run"), distance("", "ab"), distance("top", "tops"), distance("a", "b")],
            [1, 2, 1, 1]
        );
    }
}
