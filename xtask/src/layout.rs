//! The house style as a check. Each rule returns its violations as `file:line: what is wrong`.

use std::path::Path;

use crate::layers;
use crate::source::{code_lines, files_below, has_word};
use crate::step::{Context, Report};

/// Files that may contain `unsafe`, each with the reason. Keep the list short: a reviewer reads it first.
const UNSAFE_FILES: &[(&str, &str)] = &[
    ("crates/bench/src/bin/instructions.rs", "parks threads of its own with a signal"),
    ("crates/cli/src/child.rs", "system calls between fork and exec"),
    ("crates/cli/src/doctor/library.rs", "loads the library and asks for its symbols"),
    ("crates/cli/src/doctor/network.rs", "tries socket options"),
    ("crates/cli/src/fabric/live/init.rs", "forks PID 1 of a host, which makes system calls only"),
    ("crates/cli/src/fabric/live/tun.rs", "enters namespaces, makes TUN devices and sets their addresses"),
    ("crates/cli/src/faults.rs", "sets a variable of its own process"),
    ("crates/cli/src/run/namespace.rs", "enters namespaces, and forks to try it first"),
    ("crates/cli/src/run/user_namespace.rs", "asks whose a namespace is"),
    ("crates/cli/src/sockopt.rs", "sets and reads socket options"),
    ("crates/cli/src/signals.rs", "blocks signals and waits for them"),
    ("crates/crc/src/castagnoli.rs", "an instruction that not every processor has"),
    ("crates/crc/src/folding.rs", "instructions that not every processor has"),
    ("crates/crc/src/folding/narrow.rs", "loads into registers of 128 bits"),
    ("crates/crc/src/folding/wide.rs", "loads into registers of 512 bits"),
    ("crates/dsm/examples/jacobi.rs", "works on shared memory where it lies, between two barriers"),
    ("crates/dsm/examples/mm.rs", "works on shared memory where it lies, between two barriers"),
    ("crates/dsm/src/faults/signal.rs", "a signal handler"),
    ("crates/dsm/src/faults/userfault.rs", "system calls of userfaultfd"),
    ("crates/dsm/src/map.rs", "maps shared memory and touches it"),
    ("crates/dsm/src/meet/client.rs", "ends the process when another one of its job has died"),
    ("crates/dsm/src/typed/plain.rs", "promises that numbers are plain bytes"),
    ("crates/dsm/src/typed/shared.rs", "reads and writes shared memory"),
    ("crates/dsm/tests/colocated.rs", "cuts memory of its own into more pieces than the system allows"),
    ("crates/dsm/tests/deaths.rs", "touches memory whose home is dead, and memory that is nowhere"),
    ("crates/dsm/tests/faults.rs", "forbids itself a system call"),
    ("crates/cli/src/perf/gpu.rs", "calls the CUDA driver, which it loads for --gpu"),
    ("crates/cli/src/perf/rdma/buffers.rs", "registers memory of a GPU"),
    ("crates/dsm/tests/programs.rs", "uses shared memory as programs do"),
    ("crates/dsm/tests/stress.rs", "uses shared memory as programs do"),
    ("crates/ferroce/src/memory/raw.rs", "the unsafe part of the safe API: memory shared with the NIC"),
    ("crates/ferroce/tests/support/fake_gpu.rs", "loads a CUDA driver and calls it"),
    ("crates/ferroce/tests/gpu.rs", "loads a CUDA driver, and registers memory of its GPU"),
    ("crates/ferroce/tests/iwarp.rs", "registers memory that cannot be read"),
    ("crates/ferroce/tests/local.rs", "stops and continues a child"),
    ("crates/ferroce/tests/on_demand.rs", "registers the whole address space"),
    ("crates/ferroce/tests/processes.rs", "forks"),
    ("crates/ferroce/tests/region_sizes.rs", "maps and registers memory, and stops a child"),
    ("crates/ferroce/tests/shared_memory.rs", "maps and registers memory of many kinds, and stops a child"),
    ("crates/ferroce/tests/waiting.rs", "polls descriptors as a program would"),
    ("crates/ffi/shim/src/next.rs", "asks the loader for libc's functions"),
    ("crates/ffi/shim/src/rename.rs", "reads names that C programs pass"),
    ("crates/ffi/shim/src/resolve.rs", "libc's functions, wrapped"),
    ("crates/ffi/shim/src/wrap.rs", "libc's functions, wrapped"),
    ("crates/nic/src/engine/background.rs", "sleeps on descriptors"),
    ("crates/os/src/wait_set.rs", "sleeps on descriptors"),
    ("crates/nic/src/engine/outgoing.rs", "promises that what packets point to is held until they are sent"),
    ("crates/os/src/thread.rs", "blocks the signals of new threads, and sets the time slice of a thread"),
    ("crates/os/src/env.rs", "asks whether the program has more rights than its caller"),
    ("crates/os/src/log.rs", "writes to stderr from a signal handler"),
    ("crates/os/src/memory.rs", "asks for the length of a page and a limit, and prefetches"),
    ("crates/os/src/signal.rs", "installs signal handlers and calls those of others"),
    ("crates/os/src/descriptors.rs", "raises the limit of descriptors"),
    ("crates/os/src/epoll.rs", "watches descriptors"),
    ("crates/nic/src/link/stream/socket.rs", "sends bytes that lie in registered memory"),
    ("crates/nic/src/engine/streams/egress.rs", "promises that what is sent is held until it is"),
    ("crates/nic/src/engine/streams/receive.rs", "promises that what is received into is held"),
    ("crates/os/src/eventfd.rs", "makes, reads and writes event descriptors"),
    ("crates/os/src/timerfd.rs", "makes and reads timer descriptors"),
    ("crates/nic/src/locked_memory.rs", "forks, in a test"),
    ("crates/nic/src/memory/freed.rs", "a signal handler"),
    ("crates/nic/src/memory/in_flight.rs", "releases a lock that was taken before fork"),
    ("crates/nic/src/memory/protected.rs", "protects pages against writing"),
    ("crates/nic/tests/in_flight.rs", "registers mapped memory, and writes to pages that are protected"),
    ("crates/nic/tests/freed_memory.rs", "unmaps memory that is registered, and handles the fault"),
    ("crates/nic/src/memory/gpu/driver.rs", "calls the CUDA driver, which it finds at run time"),
    ("crates/nic/src/memory/gpu/ipc.rs", "has the CUDA driver open memory of other processes"),
    ("crates/nic/src/memory/gpu/ipc/vmm.rs", "has the CUDA driver map memory of other processes"),
    ("crates/nic/src/memory/gpu/mod.rs", "has the CUDA driver copy"),
    ("crates/nic/src/memory/gpu/reads.rs", "memory that the GPU writes"),
    ("crates/nic/src/memory/gpu/staging.rs", "memory that the GPU reads and writes"),
    ("crates/nic/src/memory/gpu/tests.rs", "a driver whose GPU is memory of the test"),
    ("crates/nic/src/memory/gpu/writes.rs", "memory that the GPU reads"),
    ("crates/nic/src/exit.rs", "registers what runs at exit"),
    ("crates/os/src/library.rs", "finds functions of a loaded library"),
    ("crates/os/src/fork.rs", "registers what runs in a forked child"),
    ("crates/nic/src/inspect/process.rs", "asks the kernel who is behind a socket"),
    ("crates/nic/src/link/batch/gso_run.rs", "checksums payloads that lie in registered memory"),
    ("crates/nic/src/link/batch/rx.rs", "packets that lie where another process put them"),
    ("crates/nic/src/link/batch/icrc.rs", "checksums payloads that lie in registered memory"),
    ("crates/nic/src/link/batch/tx.rs", "takes the promise that such payloads stay"),
    ("crates/os/src/clock.rs", "reads the clock"),
    ("crates/os/src/interfaces.rs", "opens sockets, and walks the list of interfaces"),
    ("crates/nic/src/link/udp/sys.rs", "system calls for batches of datagrams"),
    ("crates/nic/src/engine/host.rs", "gets at what the queue pair's lock guards"),
    (
        "crates/nic/src/engine/host/tests.rs",
        "registers memory, and looks at what the queue pair's lock guards",
    ),
    ("crates/nic/src/engine/drive.rs", "gets at what the queue pair's lock guards"),
    ("crates/nic/src/engine/local_peers.rs", "gets at what the queue pair's lock guards"),
    ("crates/os/src/lock/raw.rs", "a lock that sleeps on a futex"),
    ("crates/os/src/lock/raw/models.rs", "a cell that loom watches"),
    ("crates/os/src/lock/kernel.rs", "system calls futex and membarrier"),
    ("crates/nic/src/engine/guarded.rs", "shares what another lock guards"),
    (
        "crates/shm/tests/no_memory.rs",
        "limits the address space of its process, and pushes a packet that lies in pieces",
    ),
    ("crates/shm/src/address_space.rs", "maps, moves and unmaps pages by calling the kernel itself"),
    ("crates/shm/src/memfd_backing.rs", "moves pages of registered memory into a memfd and back"),
    ("crates/shm/src/memfd_backing/memfd.rs", "makes memfds, maps them over pages, and maps pages over them"),
    ("crates/shm/src/memfd_backing/tests.rs", "maps, shares and unmaps memory, and forks"),
    ("crates/shm/src/memfd_backing/tests/huge.rs", "maps and unmaps huge pages"),
    ("crates/shm/src/memfd_backing/tests/pieces.rs", "seals memory, and copies a descriptor"),
    ("crates/shm/src/memfd_backing/tests/refusals.rs", "maps, protects and seals memory"),
    ("crates/shm/src/backlog.rs", "keeps packets that lie in pieces"),
    ("crates/nic/src/local/reach.rs", "puts a message into a ring from the region that it lies in"),
    ("crates/shm/src/vma.rs", "asks the kernel about mappings"),
    ("crates/shm/src/shared.rs", "copies descriptors and seals files"),
    ("crates/shm/src/shared/tests.rs", "maps and unmaps files"),
    ("crates/shm/src/write_protect.rs", "holds stores back with userfaultfd while pages move"),
    ("crates/shm/src/held_fd.rs", "looks what a descriptor leads to before it closes it"),
    ("crates/nic/src/local/link.rs", "vouches for the pieces of a packet that it puts into a ring"),
    ("crates/shm/src/mapping.rs", "memory of a file that several processes see"),
    ("crates/nic/src/local/rendezvous/tests.rs", "registers memory"),
    ("crates/shm/src/mapping/model.rs", "words that loom watches, which stay where they are"),
    ("crates/shm/src/descriptors/models.rs", "a cell that loom watches, shared by threads"),
    ("crates/shm/src/local_peers.rs", "puts packets into rings, piece by piece"),
    ("crates/shm/src/segment.rs", "asks the kernel for room in a file"),
    ("crates/shm/src/ring.rs", "copies packets that lie in pieces"),
    ("crates/shm/src/ring/hostile.rs", "pushes a slice of its own into a ring"),
    ("crates/shm/src/local_peers/outgoing.rs", "puts a packet into a ring from the backlog that it lies in"),
    ("crates/shm/src/ring/models.rs", "sends packets that lie in pieces"),
    ("crates/nic/src/memory/across.rs", "copies between processes, by the kernel"),
    ("crates/nic/src/memory/copy.rs", "the only place where bytes of registered memory move"),
    ("crates/nic/src/memory/external.rs", "reads registered memory for a checksum"),
    ("crates/nic/src/memory/on_demand.rs", "copies of memory that may be gone, by the kernel"),
    ("crates/nic/src/objects/pd.rs", "registration: the caller promises that the memory stays"),
    ("crates/nic/src/objects/region.rs", "registration anew, with the same promise"),
    ("crates/nic/src/raw/socket.rs", "a packet socket"),
    ("crates/shm/src/registry/directory.rs", "asks for rights and user"),
    ("crates/shm/src/registry/lock.rs", "locks bytes of a file"),
    ("crates/nic/src/shared.rs", "a NIC per process that is never freed"),
    ("crates/os/src/watch.rs", "a netlink socket"),
    ("crates/nic/tests/write_direct.rs", "registers memory anew, and keeps it alive"),
    ("crates/nic/tests/send_fast_path.rs", "registers memory anew"),
    ("crates/nic/tests/inspect.rs", "forks"),
    ("crates/nic/tests/cm_killed.rs", "kills itself"),
    ("crates/nic/tests/link_bench.rs", "reads how much processor time a thread used"),
    ("crates/nic/tests/link_namespaces.rs", "listens on a raw socket"),
    ("crates/nic/tests/link_processes.rs", "misdirects packets on purpose, and polls"),
    ("crates/nic/tests/link_support/mod.rs", "locks a file against tests of other processes"),
    ("crates/nic/tests/link_udp.rs", "polls descriptors as the engine does"),
    ("crates/nic/tests/objects_support/mod.rs", "registers memory, and keeps it alive"),
    ("crates/nic/tests/regions.rs", "maps and unmaps memory, and registers it"),
    ("crates/ferroce/tests/rendezvous.rs", "stops and continues processes"),
    ("crates/ferroce/tests/no_allocation.rs", "counts allocations, and stops a process"),
    ("crates/nic/tests/heap_support/mod.rs", "counts what the allocator hands out"),
];

/// Folders in which every file may contain `unsafe`. At the C boundary every argument is a pointer, so a list of files is useless.
const UNSAFE_FOLDERS: &[(&str, &str)] = &[("crates/ffi/", "the C boundary")];

/// Crates that run inside foreign programs, and the file that starts their threads.
const LIBRARIES: [&str; 6] =
    ["crates/os/", "crates/shm/", "crates/nic/", "crates/ferroce/", "crates/dsm/", "crates/ffi/"];
const SPAWNS: &str = "crates/os/src/thread.rs";

/// Folders with Rust files of this repository.
const FOLDERS: [&str; 5] = ["crates", "xtask", "fuzz", "examples", "tests"];
/// Folders inside them with output of tools.
const GENERATED: [&str; 3] = ["target", "corpus", "artifacts"];

/// The page that names every environment variable.
const VARIABLES: &str = "docs/reference/environment.md";

const MAX_LINES: usize = 600;
const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
/// Module names without a meaning.
const EMPTY_NAMES: [&str; 4] = ["utils", "common", "misc", "manager"];

/// A Rust file. Its path is relative to the root of the repository.
pub(crate) struct File {
    pub(crate) path: String,
    text: String,
    pub(crate) code: Vec<String>,
}

impl File {
    pub(crate) fn new(path: String, text: String) -> Self {
        let code = code_lines(&text);
        Self { path, text, code }
    }

    /// Lines of code that `offends`, numbered from 1.
    fn offenders(&self, offends: impl Fn(&str) -> bool, what: &str) -> Vec<String> {
        let lines = self.code.iter().enumerate().filter(|(_, line)| offends(line));
        lines.map(|(at, _)| format!("{}:{}: {what}", self.path, at + 1)).collect()
    }
}

/// The step.
pub(crate) fn check(ctx: &Context) -> Report {
    let files = match read_all(&ctx.root) {
        Ok(files) => files,
        Err(error) => return Report::fail(format!("the sources could not be read: {error}")),
    };
    let mut failures: Vec<String> = files.iter().flat_map(check_file).collect();
    failures.extend(stale_permissions(&files));
    failures.extend(proto_forbids_unsafe(&files));
    failures.extend(layers::check_order(&files));
    failures.extend(layers::check_protocol(&files));
    failures.extend(crate::links::broken(&ctx.root));
    failures.extend(crate::fuzz::undocumented_targets(&ctx.root));
    failures.extend(undocumented_variables(
        &files,
        &std::fs::read_to_string(ctx.root.join(VARIABLES)).unwrap_or_default(),
    ));
    Report { passed: usize::from(failures.is_empty()), failures, ..Report::default() }
}

fn check_file(file: &File) -> Vec<String> {
    let rules = [too_long, std_in_proto, unlisted_unsafe, open_thread, unfinished, empty_name, no_heading];
    rules.iter().flat_map(|rule| rule(file)).collect()
}

fn too_long(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    let long = lines > MAX_LINES;
    long.then(|| format!("{}:{lines}: {lines} lines, at most {MAX_LINES}", file.path)).into_iter().collect()
}

fn std_in_proto(file: &File) -> Vec<String> {
    let is_test = file.path.ends_with("/tests.rs") || file.path.contains("/tests/");
    if !file.path.starts_with("crates/proto/src/") || is_test {
        return Vec::new();
    }
    let shipped = shipped_lines(&file.code);
    let all = file.code.iter().take(shipped).enumerate();
    all.filter(|(_, line)| has_word(line, "std::"))
        .map(|(at, _)| format!("{}:{}: `std::` in proto, which is no_std", file.path, at + 1))
        .collect()
}

/// Number of lines before the unit tests at the end of a file, which may use std.
pub(crate) fn shipped_lines(code: &[String]) -> usize {
    let opens_tests = |at: usize| {
        let module = code[at + 1..].iter().map(|line| line.trim()).find(|line| !line.starts_with("#["));
        code[at].trim() == "#[cfg(test)]"
            && module.is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    };
    (0..code.len()).find(|&at| opens_tests(at)).unwrap_or(code.len())
}

fn unlisted_unsafe(file: &File) -> Vec<String> {
    if UNSAFE_FILES.iter().any(|(path, _)| *path == file.path)
        || UNSAFE_FOLDERS.iter().any(|(folder, _)| file.path.starts_with(folder))
    {
        return Vec::new();
    }
    file.offenders(
        |line| has_word(line, "unsafe"),
        "`unsafe` in a file that xtask/src/layout.rs does not list",
    )
}

/// Threads of a library that could receive the program's signals.
fn open_thread(file: &File) -> Vec<String> {
    let is_library =
        LIBRARIES.iter().any(|folder| file.path.starts_with(folder)) && file.path.contains("/src/");
    let may = file.path == SPAWNS || file.path.ends_with("/tests.rs") || file.path.contains("/tests/");
    if !is_library || may || file.path.ends_with("/models.rs") {
        return Vec::new();
    }
    let starts = |line: &str| {
        let line = line.replace("ferroce_os::thread::", "");
        line.contains("thread::spawn") || line.contains("thread::Builder")
    };
    let shipped = file.code.iter().take(shipped_lines(&file.code)).enumerate();
    let found = shipped.filter(|(_, line)| starts(line));
    found
        .map(|(at, _)| format!("{}:{}: a thread without `ferroce_os::thread::spawn`", file.path, at + 1))
        .collect()
}

/// Files in [`UNSAFE_FILES`] without `unsafe`. The list must not permit `unsafe` that nobody reviewed.
fn stale_permissions(files: &[File]) -> Vec<String> {
    let used = |path: &str| {
        files.iter().any(|file| file.path == path && file.code.iter().any(|line| has_word(line, "unsafe")))
    };
    let stale = UNSAFE_FILES.iter().filter(|(path, _)| !used(path));
    stale
        .map(|(path, _)| format!("{path}:1: may say `unsafe` but does not; drop it from UNSAFE_FILES"))
        .collect()
}

fn proto_forbids_unsafe(files: &[File]) -> Vec<String> {
    let path = "crates/proto/src/lib.rs";
    let forbids = |file: &File| file.code.iter().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    let good = files.iter().any(|file| file.path == path && forbids(file));
    if good { Vec::new() } else { vec![format!("{path}:1: lacks `#![forbid(unsafe_code)]`")] }
}

/// Environment variables that the page does not document.
fn undocumented_variables(files: &[File], page: &str) -> Vec<String> {
    let known: Vec<&str> = variables(page).collect();
    let lines = files
        .iter()
        .filter(|file| !file.path.starts_with("xtask/src/layout.rs"))
        .flat_map(|file| file.text.lines().enumerate().map(move |(at, line)| (&file.path, at + 1, line)));
    lines
        .flat_map(|(path, at, line)| variables(line).map(move |name| (path, at, name)))
        .filter(|(_, _, name)| !known.contains(name))
        .map(|(path, at, name)| format!("{path}:{at}: {name} is not in {VARIABLES}"))
        .collect()
}

/// Every `FERROCE_NAME` in a text. The bare prefix, as in `FERROCE_*`, does not count.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')
        .filter(|word| word.len() > "FERROCE_".len() && word.starts_with("FERROCE_"))
}

fn unfinished(file: &File) -> Vec<String> {
    let offends = |line: &str| UNFINISHED.iter().any(|word| has_word(line, word));
    file.offenders(offends, "todo!, unimplemented! or dbg!")
}

fn empty_name(file: &File) -> Vec<String> {
    let is_meaningless = |name: &str| name.split('_').any(|word| EMPTY_NAMES.contains(&word));
    let mut offenders = file.offenders(
        |line| module_name(line).is_some_and(is_meaningless),
        "a module name that says nothing (utils, common, misc, manager)",
    );
    let path = file.path.trim_end_matches(".rs");
    if path.split('/').any(is_meaningless) {
        offenders
            .push(format!("{}:1: a file name that says nothing (utils, common, misc, manager)", file.path));
    }
    offenders
}

/// `name` in `pub(crate) mod name;`
fn module_name(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.find(|word| *word == "mod").and_then(|_| words.next())
}

fn no_heading(file: &File) -> Vec<String> {
    let in_src = file.path.starts_with("crates/") && file.path.split('/').nth(2) == Some("src");
    let headless = in_src && !file.text.starts_with("//!");
    headless.then(|| format!("{}:1: does not start with a `//!` comment", file.path)).into_iter().collect()
}

fn read_all(root: &Path) -> std::io::Result<Vec<File>> {
    let mut files = Vec::new();
    for folder in FOLDERS.iter().map(|folder| root.join(folder)).filter(|folder| folder.is_dir()) {
        let paths = files_below(&folder, &GENERATED)?;
        for path in paths.iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs")) {
            let shown = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
            files.push(File::new(shown, std::fs::read_to_string(path)?));
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(path: &str, text: &str) -> Vec<String> {
        check_file(&File::new(path.to_owned(), text.to_owned()))
    }

    #[test]
    fn a_clean_file_is_clean() {
        let text = "//! Heading: unsafe, std:: and todo! in prose are prose.\nmod bth;\nuse core::fmt;\n";
        assert_eq!(offences("crates/proto/src/wire/mod.rs", text), [""; 0]);
    }

    #[test]
    fn each_rule_names_file_and_line() {
        let cases = [
            ("crates/nic/src/a.rs", "//! x\nfn f() { unsafe { g() } }\n", "crates/nic/src/a.rs:2: `unsafe`"),
            ("crates/proto/src/a.rs", "//! x\n\nuse std::vec;\n", "crates/proto/src/a.rs:3: `std::`"),
            ("crates/nic/src/a.rs", "//! x\nthread::spawn(f);\n", "crates/nic/src/a.rs:2: a thread without"),
            ("crates/nic/src/a.rs", "//! x\nmod conn_manager;\n", "crates/nic/src/a.rs:2: a module name"),
            ("crates/nic/tests/common/mod.rs", "", "crates/nic/tests/common/mod.rs:1: a file name"),
            ("crates/nic/src/a.rs", "use x;\n", "crates/nic/src/a.rs:1: does not start"),
            ("xtask/src/a.rs", "fn f() { todo!() }\n", "xtask/src/a.rs:1: todo!"),
        ];
        for (path, text, expected) in cases {
            let found = offences(path, text);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{path}: {found:?}");
        }
        let long = "\n".repeat(MAX_LINES + 1);
        assert_eq!(offences("xtask/src/a.rs", &long), ["xtask/src/a.rs:601: 601 lines, at most 600"]);
    }

    #[test]
    fn a_variable_must_be_documented() {
        let text = "//! FERROCE_LOG, FERROCE_*, FERROCE_\nlet name = \"FERROCE_NEW\";\n";
        let files = [File::new("crates/nic/src/a.rs".to_owned(), text.to_owned())];
        let found = undocumented_variables(&files, "| `FERROCE_LOG` |");
        assert_eq!(found, ["crates/nic/src/a.rs:2: FERROCE_NEW is not in docs/reference/environment.md"]);
    }

    #[test]
    fn unit_tests_of_proto_may_use_std() {
        let inline = "//! x\n#[cfg(test)]\nmod tests {\n    use std::vec;\n}\n";
        assert_eq!(offences("crates/proto/src/a.rs", inline), [""; 0]);
        let apart = "//! x\n#[cfg(test)]\nmod tests;\nuse std::vec;\n";
        assert_eq!(offences("crates/proto/src/a.rs", apart).len(), 1, "code after a test module is shipped");
    }
}
