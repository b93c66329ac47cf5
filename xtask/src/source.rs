//! Rust source with comments and literals blanked, so that a rule about code does not fire on prose.
//!
//! Not a parser: it knows just enough of the lexical grammar to find where code ends. Lines stay lines, so an offender can
//! be named by its number.

/// Code of each line; comments are gone, strings and characters are empty.
pub(crate) fn code_lines(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment(&chars, at, code.chars().next_back());
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            // A comment in the middle of a line still separates two words.
            code.push(' ');
            code.extend(chars[at..end].iter().filter(|&&c| c == '\n'));
            at = end;
        }
    }
    code.lines().map(str::to_owned).collect()
}

/// Where the comment or literal that begins at `at` ends; `at` itself where none does.
fn literal_or_comment(chars: &[char], at: usize, before: Option<char>) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |rest| rest[0] == '\n'),
        '/' if next == Some('*') => block_comment(chars, at),
        '"' => string(chars, at + 1),
        '\'' => character(chars, at),
        'r' if !before.is_some_and(|c| is_word(c) && !matches!(c, 'b' | 'c')) => raw_string(chars, at),
        _ => at,
    }
}

fn find(chars: &[char], from: usize, hit: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|&at| hit(&chars[at..])).unwrap_or(chars.len())
}

fn block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut at = at;
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

fn string(chars: &[char], at: usize) -> usize {
    let mut at = at;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// `'x'` and `'\n'` are literals, `'a` is a lifetime.
fn character(chars: &[char], at: usize) -> usize {
    match chars[at + 1..] {
        ['\\', _, ..] => (find(chars, at + 3, |rest| rest[0] == '\'') + 1).min(chars.len()),
        [_, '\'', ..] => at + 3,
        _ => at,
    }
}

/// `r"..."`, `r#"..."#`; `r#name` is a word.
fn raw_string(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let closes =
        |rest: &[char]| rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|&c| c == '#');
    (find(chars, at + 2 + hashes, closes) + 1 + hashes).min(chars.len())
}

/// Whether `word` stands in `line` as a word of its own; `word` may end in punctuation (`std::`, `todo!`).
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
