//! Relative links of the Markdown pages. Each link to a file must name one that exists, and each `#anchor` a heading of it.

use std::path::{Path, PathBuf};

use crate::source::files_below;

/// Pages of the repository's root that are checked, besides everything below docs/.
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Returns every broken link as `page:line: what is wrong`.
pub(crate) fn broken(root: &Path) -> Vec<String> {
    let mut pages: Vec<PathBuf> = PAGES.iter().map(|page| root.join(page)).collect();
    let docs = files_below(&root.join("docs"), &[]).unwrap_or_default();
    pages.extend(docs.into_iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")));
    pages.sort();
    pages.iter().flat_map(|page| broken_in(root, page)).collect()
}

fn broken_in(root: &Path, page: &Path) -> Vec<String> {
    let shown = page.strip_prefix(root).unwrap_or(page).display();
    let Ok(text) = std::fs::read_to_string(page) else { return vec![format!("{shown}:1: cannot be read")] };
    let links = prose(&text).flat_map(|(at, line)| links(line).map(move |link| (at, link)));
    let wrong = links.filter(|(_, link)| !resolves(page, link));
    wrong.map(|(at, link)| format!("{shown}:{at}: the link to {link} leads nowhere")).collect()
}

/// Numbered lines outside fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The targets of `[text](target)` and `![text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

fn resolves(page: &Path, link: &str) -> bool {
    if link.contains("://") {
        return true;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let folder = page.parent().unwrap_or(Path::new(""));
    let target = if file.is_empty() { page.to_owned() } else { folder.join(file) };
    match anchor {
        None => target.exists(),
        Some(anchor) => std::fs::read_to_string(target)
            .is_ok_and(|text| prose(&text).filter_map(|(_, line)| heading_anchor(line)).any(|h| h == anchor)),
    }
}

/// The anchor that GitHub gives a heading: lower case, `-` for spaces, without punctuation.
fn heading_anchor(line: &str) -> Option<String> {
    let title = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect())
}

/// The code at the start of a row of a table, such as `name` in "| `name` | …".
pub(crate) fn first_code(line: &str) -> Option<String> {
    Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found_with_their_lines() {
        let root = std::env::temp_dir().join(format!("ferroce-links-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs/use")).expect("a folder");
        for page in PAGES {
            std::fs::write(root.join(page), "# Title\n").expect("a page");
        }
        let text = "# One `two`, three\n[good](../../README.md#title) [up](..) [site](https://x.y/z)\n\
                    ```\n[code](nowhere)\n```\n[self](#one-two-three)\n![gone](a.svg) [bad](../../README.md#none)\n";
        std::fs::write(root.join("docs/use/page.md"), text).expect("a page");
        let found = broken(&root);
        std::fs::remove_dir_all(&root).expect("the folder is removed");
        assert_eq!(
            found,
            [
                "docs/use/page.md:7: the link to a.svg leads nowhere",
                "docs/use/page.md:7: the link to ../../README.md#none leads nowhere"
            ]
        );
    }
}
