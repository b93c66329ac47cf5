//! Layers of modules in a crate. A module may use only modules of lower layers, so there are no cycles.

use crate::layout::{File, shipped_lines};
use crate::source::has_word;

/// A crate whose modules form layers, from the bottom up. Modules of one layer do not use each other.
struct Layered {
    folder: &'static str,
    layers: &'static [(&'static str, &'static [&'static str])],
}

/// The layers. Every module must be listed here.
const LAYERED: &[Layered] = &[
    Layered {
        folder: "crates/nic/src/",
        layers: &[
            ("host", &["congestion", "limits", "operation_log", "poller_activity"]),
            ("registered memory", &["memory"]),
            ("links", &["link"]),
            ("settings", &["config", "counters"]),
            ("same-host fabric", &["error", "local"]),
            ("queues", &["device_memory", "gids", "locked_memory", "queues", "quota"]),
            ("addresses", &["addresses", "next_hop", "raw", "xrc"]),
            ("engine", &["engine"]),
            ("services", &["cm", "contexts", "device_attr", "exit_report", "watchdog"]),
            ("device", &["exit", "follow", "inspect", "nic"]),
            ("handles", &["objects", "open", "shared"]),
        ],
    },
    Layered {
        folder: "crates/shm/src/",
        layers: &[
            ("kernel", &["address_space", "registry", "vma"]),
            ("write protection", &["held_fd", "write_protect"]),
            ("memfd", &["memfd_backing"]),
            ("mappings", &["mapping"]),
            ("segment", &["segment", "shared"]),
            ("memory of GPUs", &["gpu_allocations"]),
            ("pages and rings", &["access", "pages", "ring", "source_ports"]),
            ("tables", &["backlog", "descriptors", "groups", "srq_descriptors"]),
            ("mapped regions", &["region_mapping"]),
            ("peers", &["local_peers"]),
            ("arrivals", &["hostile", "rx_rings"]),
        ],
    },
    Layered {
        folder: "crates/proto/src/",
        layers: &[
            ("numbers", &["ids", "listed", "time"]),
            ("wire", &["wire"]),
            ("verbs", &["verbs"]),
            ("congestion control", &["cc"]),
            ("state machines", &["cm", "qp"]),
            ("byte streams", &["iwarp"]),
        ],
    },
];

/// The folder that must not contain protocol logic, and the words that indicate it.
const ABOVE_PROTOCOL: &str = "crates/nic/src/";
const PROTOCOL_WORDS: [&str; 8] =
    ["Opcode", "Operation", "Psn", ".plus(", ".minus(", ".distance_from(", ".is_before(", ".is_after("];

/// Every use of a module that is not below the user, and modules without a layer.
pub(crate) fn check_order(files: &[File]) -> Vec<String> {
    LAYERED.iter().flat_map(|layered| layered.offenders(files)).collect()
}

/// Every opcode and every calculation with packet sequence numbers outside the protocol.
pub(crate) fn check_protocol(files: &[File]) -> Vec<String> {
    let above = files.iter().filter(|file| file.path.starts_with(ABOVE_PROTOCOL) && !is_test(&file.path));
    above.flat_map(protocol_in).collect()
}

fn protocol_in(file: &File) -> Vec<String> {
    let lines = file.code.iter().take(shipped_lines(&file.code)).enumerate();
    let known = |line: &str| {
        PROTOCOL_WORDS.iter().find(|word| match word.strip_prefix('.') {
            Some(_) => line.contains(**word),
            None => has_word(line, word),
        })
    };
    lines
        .filter_map(|(at, line)| {
            let word = known(line)?;
            Some(format!("{}:{}: `{word}`: opcodes and sequence numbers are proto's", file.path, at + 1))
        })
        .collect()
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

impl Layered {
    fn offenders(&self, files: &[File]) -> Vec<String> {
        let inside: Vec<(&File, &str)> = files
            .iter()
            .filter_map(|file| Some((file, file.path.strip_prefix(self.folder)?)))
            .filter(|(file, _)| !is_test(&file.path))
            .collect();
        let Some((root, _)) = inside.iter().find(|(_, path)| *path == "lib.rs") else { return Vec::new() };
        let exported = exports(&root.code);
        let mut offenders = Vec::new();
        for (file, path) in inside.iter().filter(|(_, path)| *path != "lib.rs") {
            let user = module_of(path);
            let Some(layer) = self.layer(user) else {
                offenders.push(format!("{}:1: `{user}` has no layer in xtask/src/layers.rs", file.path));
                continue;
            };
            for (at, name) in uses(&file.code[..shipped_lines(&file.code)], depth_of(path)) {
                let module =
                    exported.iter().find(|(export, _)| *export == name).map_or(name, |(_, m)| m.clone());
                let Some(used) = self.layer(&module).filter(|used| module != user && *used >= layer) else {
                    continue;
                };
                let [from, to] = [layer, used].map(|at| format!("layer {at}, {}", self.layers[at].0));
                offenders.push(format!(
                    "{}:{at}: `{user}` ({from}) uses `{module}` ({to}), which is not below it",
                    file.path
                ));
            }
        }
        offenders.extend(self.stale(&inside));
        offenders
    }

    fn layer(&self, module: &str) -> Option<usize> {
        self.layers.iter().position(|(_, modules)| modules.contains(&module))
    }

    /// Modules in the table that do not exist.
    fn stale(&self, inside: &[(&File, &str)]) -> Vec<String> {
        let is_there = |module: &str| inside.iter().any(|(_, path)| module_of(path) == module);
        let listed = self.layers.iter().flat_map(|(_, modules)| modules.iter());
        listed
            .filter(|module| !is_there(module))
            .map(|module| format!("xtask/src/layers.rs:1: {}{module} is gone", self.folder))
            .collect()
    }
}

/// The top module that a file below `src` belongs to.
fn module_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// Nesting depth of a file's module.
fn depth_of(path: &str) -> usize {
    path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').count()
}

/// The rest of each path from the root of the crate, after `crate::` or enough `super::`, and its line.
fn uses(code: &[String], depth: usize) -> Vec<(usize, String)> {
    let text = code.join("\n");
    let mut found = Vec::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in text.match_indices(&root) {
            let is_inside = text[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c));
            if !is_inside {
                let line = text[..at].matches('\n').count() + 1;
                found.extend(first_names(&text[at + root.len()..]).into_iter().map(|name| (line, name)));
            }
        }
    }
    found
}

/// The first name of a path, or the names of a list in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| -> String {
        path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(list) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut start, mut names) = (0_usize, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                names.push(name(&list[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Names that the root re-exports, and the module of each.
fn exports(root: &[String]) -> Vec<(String, String)> {
    let text = root.join("\n");
    let statements = text.match_indices("use ").map(|(at, word)| &text[at + word.len()..]);
    statements
        .filter_map(|rest| rest.split_once(';')?.0.split_once("::"))
        .flat_map(|(module, names)| {
            first_names(names.trim()).into_iter().map(move |name| (name, module.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Layered =
        Layered { folder: "crates/x/src/", layers: &[("low", &["lock", "log"]), ("high", &["engine"])] };

    fn offenders(path: &str, text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File::new(format!("crates/x/src/{path}"), text.to_owned());
        let root = "mod engine;\npub use engine::{Engine, Posting};\npub use lock::Mutex;\n";
        let mut files = vec![file("lib.rs", root), file(path, text)];
        for module in ["lock.rs", "log.rs", "engine/mod.rs"] {
            if files.iter().all(|file| !file.path.ends_with(module)) {
                files.push(file(module, ""));
            }
        }
        SMALL.offenders(&files)
    }

    #[test]
    fn downwards_and_inside_is_fine() {
        let text =
            "use crate::engine::qp::Qp;\nuse crate::{lock, log::drop};\nuse super::super::engine::A;\n";
        assert_eq!(offenders("engine/drive.rs", text), [""; 0]);
    }

    #[test]
    fn upwards_and_sideways_is_named_with_file_line_and_layers() {
        let up = "crates/x/src/lock.rs:2: `lock` (layer 0, low) uses `engine` (layer 1, high), which is not below it";
        for text in [
            "\nuse crate::engine::Engine;\n",
            "\nfn f() { crate::engine::run() }\n",
            "\nuse super::engine::Engine;\n",
            "\nuse crate::Posting;\n",
            "\nuse crate::{lock::{A, B},\n    engine};\n",
        ] {
            assert_eq!(offenders("lock.rs", text), [up], "{text}");
        }
        assert_eq!(offenders("log.rs", "use crate::lock::Mutex;\n").len(), 1);
    }

    #[test]
    fn prose_and_tests_may_name_anything() {
        let text = "//! See crate::engine.\n#[cfg(test)]\nmod tests {\n    use crate::engine::Engine;\n}\n";
        assert_eq!(offenders("lock.rs", text), [""; 0]);
        assert_eq!(offenders("lock/tests.rs", "use crate::engine::Engine;\n"), [""; 0]);
    }

    #[test]
    fn every_module_has_a_layer() {
        let found = offenders("fresh.rs", "");
        assert_eq!(found, ["crates/x/src/fresh.rs:1: `fresh` has no layer in xtask/src/layers.rs"]);
        let only_root = [File::new("crates/x/src/lib.rs".to_owned(), String::new())];
        assert_eq!(SMALL.offenders(&only_root).len(), 3, "all of the table is gone");
    }

    #[test]
    fn opcodes_and_sequence_numbers_are_found_in_shipped_code() {
        let file = |text: &str| [File::new("crates/nic/src/a.rs".to_owned(), text.to_owned())];
        let found = check_protocol(&file("//! x\nlet next = psn.plus(1);\nlet o = WcOpcode::Send;\n"));
        assert_eq!(found, ["crates/nic/src/a.rs:2: `.plus(`: opcodes and sequence numbers are proto's"]);
        assert_eq!(check_protocol(&file("use x::Opcode;\n")).len(), 1);
        assert_eq!(check_protocol(&file("#[cfg(test)]\nmod tests {\n    use x::Psn;\n}\n")), [""; 0]);
    }
}
