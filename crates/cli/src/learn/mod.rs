//! `ferroce learn`: the chapters of the book in docs/learn, and one of them with its files in a new folder.
//!
//! The files are part of the command, so that an installed one needs nothing else. The text is the same as in the book, except
//! that links to other pages are plain words.

mod chapters;

use crate::failure::Failure;
use crate::table::{self, Align, Column};
use chapters::{CHAPTERS, Chapter, HEADER};
use serde::Serialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The source tree that built this command. It is absent where the command was installed as a package.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

const EXAMPLES: &str = "\
Examples:
  ferroce learn                    list the chapters
  ferroce learn 3                  start chapter 3 in a new folder
  ferroce learn first-message here the same by name, in the folder here";

/// Options of `ferroce learn`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number or name of the chapter to start; without one, the chapters are listed.
    chapter: Option<String>,
    /// The new folder; by default the name of the chapter.
    folder: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// What starting a chapter did.
#[derive(Serialize)]
struct Started {
    title: &'static str,
    folder: PathBuf,
    files: Vec<&'static str>,
    next: String,
}

/// Lists the chapters, or starts one.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Some(wanted) = &args.chapter else { return list(args.json) };
    let chapter = find(wanted)?;
    let folder = args.folder.clone().unwrap_or_else(|| PathBuf::from(chapter.name()));
    let files = files(chapter);
    write(&folder, &files)?;
    let next = format!("cd {} && {}", quoted(&folder), chapter.first_commands().join(" && "));
    let files: Vec<&str> = files.into_iter().map(|(name, _)| name).collect();
    if args.json {
        return crate::print_json(&Started { title: chapter.title(), folder, files, next });
    }
    crate::print_text(&format!(
        "Chapter {}, {}, is in {}: {}.\nRead README.md there. Run this next:\n\n  {next}",
        chapter.number(),
        chapter.title(),
        folder.display(),
        files.join(", ")
    ))
}

fn list(json: bool) -> Result<(), Failure> {
    if json {
        return crate::print_json(&CHAPTERS);
    }
    let columns: [Column<Chapter>; 3] = [
        ("CHAPTER", Align::Right, |chapter| chapter.number().to_string()),
        ("NAME", Align::Left, |chapter| chapter.name().to_owned()),
        ("TITLE", Align::Left, |chapter| chapter.title().to_owned()),
    ];
    crate::print_text(&format!(
        "{}\n\nferroce learn 1 starts chapter 1 in a new folder.",
        table::of(&columns, CHAPTERS)
    ))
}

/// The chapter with this number, name or folder name.
fn find(wanted: &str) -> Result<&'static Chapter, Failure> {
    let is_wanted = |chapter: &&Chapter| {
        chapter.name() == wanted || chapter.folder == wanted || wanted.parse() == Ok(chapter.number())
    };
    CHAPTERS.iter().find(is_wanted).ok_or_else(|| {
        Failure::usage(format!("there is no chapter {wanted}"))
            .advise(format!("`ferroce learn` lists the {} chapters", CHAPTERS.len()))
    })
}

/// What a chapter's folder contains.
fn files(chapter: &Chapter) -> Vec<(&'static str, String)> {
    vec![
        ("README.md", without_links(chapter.text)),
        ("main.c", chapter.c.to_owned()),
        ("rdma.h", HEADER.to_owned()),
        ("main.rs", chapter.rust.to_owned()),
        ("Cargo.toml", manifest(chapter, Path::new(SOURCES))),
    ]
}

/// The manifest of the Rust program. Its dependencies are the sources that built this command if these exist, otherwise the published
/// packages.
fn manifest(chapter: &Chapter, sources: &Path) -> String {
    let dependency = |package: &str, folder: &str| match sources.join(folder).canonicalize() {
        Ok(path) => format!("{package} = {{ path = {:?} }}\n", path.display().to_string()),
        Err(_) => format!("{package} = {:?}\n", env!("CARGO_PKG_VERSION")),
    };
    let (ferroce, dsm) = (dependency("ferroce", "ferroce"), dependency("ferroce-dsm", "dsm"));
    format!(
        "[package]\nname = \"{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [[bin]]\nname = \"main-rust\"\npath = \"main.rs\"\n\n\
         [dependencies]\n{ferroce}{dsm}\n\
         [profile.dev]\nopt-level = 1\n\n\
         # The folder may lie inside another package.\n[workspace]\n",
        chapter.name()
    )
}

/// The text with `[words](../page)` as `words`: those pages are not in the folder.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](../");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, rest) = part.split_once(')').unwrap_or(("", part));
        if let Some(bracket) = plain.rfind('[') {
            plain.remove(bracket);
        }
        plain += rest;
    }
    plain
}

/// The path as a shell reads it.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "._/-".contains(c);
    if path.chars().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Writes the files into a folder that does not exist yet.
fn write(folder: &Path, files: &[(&str, String)]) -> Result<(), Failure> {
    let shown = folder.display();
    std::fs::create_dir(folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!("{shown} exists already; nothing was written"))
            .advise("Name another folder: ferroce learn CHAPTER FOLDER"),
        _ => Failure::io(format!("cannot create the folder {shown}"), error),
    })?;
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::write(&file, text)
            .map_err(|error| Failure::io(format!("cannot write {}", file.display()), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chapter_has_a_number_a_name_and_a_folder() {
        let by_name = find("first-message").expect("a chapter");
        assert_eq!((by_name.number(), by_name.title()), (3, "The first message"));
        for wanted in ["3", "03", "03-first-message"] {
            assert_eq!(find(wanted).expect("the same").folder, by_name.folder);
        }
        for wanted in ["0", "99", "-3", "", "message"] {
            assert!(find(wanted).is_err_and(|failure| failure.what().contains("no chapter")), "{wanted}");
        }
    }

    #[test]
    fn the_first_commands_build_and_run_the_c_program() {
        for chapter in CHAPTERS {
            let commands = chapter.first_commands();
            assert!(commands.len() == 2 && commands[1].starts_with("ferroce "), "{commands:?}");
        }
    }

    #[test]
    fn the_shell_reads_any_folder() {
        assert_eq!(quoted(Path::new("/a/b-c_1.d")), "/a/b-c_1.d");
        assert_eq!(quoted(Path::new("my folder's")), r"'my folder'\''s'");
    }

    #[test]
    fn links_to_other_pages_become_words() {
        assert_eq!(
            without_links("[a](../a.md#x), [b](b.md) and [c d](../../c) [e]"),
            "a, [b](b.md) and c d [e]"
        );
        assert_eq!(without_links("](../"), "");
    }

    #[test]
    fn without_sources_the_manifest_names_the_published_packages() {
        let chapter = &CHAPTERS[0];
        assert!(manifest(chapter, Path::new(SOURCES)).contains("ferroce = { path = \"/"));
        let published = manifest(chapter, Path::new("/nonexistent"));
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            published.contains(&format!("\nferroce = \"{version}\"\nferroce-dsm = \"{version}\"\n")),
            "{published}"
        );
    }
}
