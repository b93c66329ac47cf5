//! The chapters and their files, which are part of the command. A test compares the list with docs/SUMMARY.md.
//!
//! `learn` in this package is a link to docs/learn, so that `cargo package` includes the files.

use serde::{Serialize, Serializer, ser::SerializeStruct};

/// The C header of all chapters.
pub(super) const HEADER: &str = include_str!("../../learn/rdma.h");

/// A chapter of the book.
pub(super) struct Chapter {
    /// Its folder in docs/learn: number and name.
    pub(super) folder: &'static str,
    pub(super) text: &'static str,
    pub(super) c: &'static str,
    pub(super) rust: &'static str,
}

macro_rules! chapters {
    ($($folder:literal)*) => {
        &[$(Chapter {
            folder: $folder,
            text: include_str!(concat!("../../learn/", $folder, "/README.md")),
            c: include_str!(concat!("../../learn/", $folder, "/main.c")),
            rust: include_str!(concat!("../../learn/", $folder, "/main.rs")),
        }),*]
    };
}

/// All chapters, in the order of the book.
pub(super) const CHAPTERS: &[Chapter] = chapters! {
    "01-why-rdma"
    "02-objects"
    "03-first-message"
    "04-completions"
    "05-states"
    "06-keys"
    "07-write-read"
    "08-atomics"
    "09-transports"
    "10-connections"
    "11-loss"
    "12-congestion"
    "13-performance"
    "14-wire"
    "15-shared-memory"
};

impl Chapter {
    pub(super) fn number(&self) -> u32 {
        self.folder.split_once('-').and_then(|(number, _)| number.parse().ok()).unwrap_or_default()
    }

    /// The folder without the number.
    pub(super) fn name(&self) -> &'static str {
        self.folder.split_once('-').map_or(self.folder, |(_, name)| name)
    }

    /// The heading of the text without the number.
    pub(super) fn title(&self) -> &'static str {
        let heading = self.text.lines().next().unwrap_or_default();
        heading.split_once(". ").map_or(heading, |(_, title)| title)
    }

    /// The commands of the first console block, up to the first that prints something.
    pub(super) fn first_commands(&self) -> Vec<&'static str> {
        let block = self.text.split_once("```console\n").map_or("", |(_, block)| block);
        block.lines().map_while(|line| line.strip_prefix("$ ")).collect()
    }
}

impl Serialize for Chapter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut chapter = serializer.serialize_struct("Chapter", 4)?;
        chapter.serialize_field("number", &self.number())?;
        chapter.serialize_field("name", self.name())?;
        chapter.serialize_field("title", self.title())?;
        chapter.serialize_field("folder", self.folder)?;
        chapter.end()
    }
}
