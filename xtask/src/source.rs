//! Source files, and Rust code with blanked comments and literals, so that a rule about code ignores prose. Line numbers stay the same.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// All files below a folder, except in folders with these names; not in order.
pub(crate) fn files_below(folder: &Path, left_out: &[&str]) -> std::io::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            match path.is_dir() {
                false => files.push(path),
                true if path.is_symlink() || left_out.iter().any(|name| path.ends_with(name)) => {}
                true => folders.push(path),
            }
        }
    }
    Ok(files)
}

/// The code of each line, with spaces in place of comments and literals. Text that is not Rust is unchanged.
pub(crate) fn code_lines(text: &str) -> Vec<String> {
    let mut code: Vec<u8> = text.bytes().map(|byte| if byte == b'\n' { byte } else { b' ' }).collect();
    match text.parse() {
        Ok(tokens) => copy_all(tokens, text, &mut code),
        Err(_) => code.copy_from_slice(text.as_bytes()),
    }
    String::from_utf8_lossy(&code).lines().map(str::to_owned).collect()
}

fn copy_all(tokens: TokenStream, text: &str, code: &mut [u8]) {
    for token in tokens {
        match token {
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                if copy(open, group.span_open().byte_range(), text, code) {
                    copy(close, group.span_close().byte_range(), text, code);
                    copy_all(group.stream(), text, code);
                }
            }
            word => drop(copy(&word.to_string(), word.span().byte_range(), text, code)),
        }
    }
}

/// Copies a token if the source has its text at that position. The tokens of a doc comment have its position but another text.
fn copy(token: &str, at: Range<usize>, text: &str, code: &mut [u8]) -> bool {
    let is_there = text.get(at.clone()) == Some(token);
    if is_there {
        code[at].copy_from_slice(token.as_bytes());
    }
    is_there
}

/// Whether `line` contains `word` as a separate word. `word` may end in punctuation (`std::`, `todo!`).
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let ends_in_word = word.chars().next_back().is_some_and(is_word);
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !(before.is_some_and(is_word) || ends_in_word && after.is_some_and(is_word))
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_and_literals_vanish_and_lines_stay() {
        let text = "a /* unsafe /* nested */ */ b // unsafe\n\"unsafe \\\" unsafe\" c\nr#\"unsafe \" \"# d\n'\"' e 'x f\n";
        let words: Vec<Vec<String>> = code_lines(text)
            .iter()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        assert_eq!(words, [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e", "'x", "f"]]);
    }

    #[test]
    fn literals_over_several_lines_keep_the_count() {
        let lines = code_lines("let a = \"one\ntwo\";\nunsafe {}\n");
        assert_eq!(lines.len(), 3);
        assert!(has_word(&lines[2], "unsafe"));
    }

    #[test]
    fn unfinished_source_does_not_panic() {
        for text in ["\"", "'", "r#\"", "/*", "b'\\", "'\\'", "r#", "/", "r\"abc", "'\\u{1"] {
            let _ = code_lines(text);
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("use std::fmt;", "std::"));
        assert!(!has_word("use nostd::fmt;", "std::"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
        assert!(has_word("todo!()", "todo!"));
    }
}
