//! Which libibverbs programs get below `ferroce run`, for each way to load it: C programs on the real library.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Outcome, build_library, cc, ferroce, has_compiler, is_root, outcome, scratch};

/// The library next to the command, which replaces the system's.
fn ours() -> PathBuf {
    let library = Path::new(env!("CARGO_BIN_EXE_ferroce")).with_file_name("libibverbs.so");
    library.canonicalize().expect("it was built")
}

/// A folder with the compiled programs and libraries of tests/c. `None`, with the reason printed, if this machine
/// cannot compile.
fn programs(name: &str) -> Option<PathBuf> {
    if !has_compiler() {
        return None;
    }
    build_library("ferroce-ibverbs");
    build_library("ferroce-shim");
    let folder = scratch().join(format!("loading.{name}.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    for file in ["list.c", "bundled.c"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(file);
        std::fs::copy(source, folder.join(file)).expect("a file of ours");
    }
    std::fs::write(folder.join("map"), "IBVERBS_1.1 { global: ibv_*; local: *; };\n")
        .expect("a file of ours");
    // As auditwheel renames a library: file and soname.
    const BUNDLED: &str = "libibverbs-1de1263b.so.1.14.48.0";
    cc(
        &folder,
        &format!("-shared -fPIC -o {BUNDLED} bundled.c -Wl,-soname,{BUNDLED} -Wl,--version-script=map"),
    );
    cc(&folder, "-Wall -Wextra -Werror -o list list.c -ldl");
    // RPATH comes before LD_LIBRARY_PATH, RUNPATH after it.
    for (kind, tags) in [("rpath", "--disable-new-dtags"), ("runpath", "--enable-new-dtags")] {
        let link = format!("list.c -DLINKED ./{BUNDLED} -ldl -Wl,{tags} -Wl,-rpath,{}", folder.display());
        cc(&folder, &format!("-o {kind} {link}"));
        cc(&folder, &format!("-shared -fPIC -o {kind}.so {link}"));
    }
    Some(folder)
}

#[track_caller]
fn run(options: &str, folder: &Path, line: &str) -> Outcome {
    let mut command = ferroce(&format!("run {options} -- ./{line}"));
    outcome(command.current_dir(folder))
}

/// Gives a file to another user, as whom it runs.
fn make_setuid(file: &Path) {
    std::os::unix::fs::chown(file, Some(65534), Some(65534)).expect("root may");
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o4755)).expect("our own file");
}

#[test]
fn every_way_to_load_the_library_finds_ours() {
    let Some(folder) = programs("ways") else { return };
    let bundled = outcome(Command::new("./rpath").arg("linked").current_dir(&folder));
    assert!(bundled.stdout.starts_with("bundled\n"), "without ferroce run it uses its own: {bundled:?}");
    let expected = format!("ferroce0\n{}\n", ours().display());
    for options in ["", "--no-namespace"] {
        for line in [
            "list open libibverbs.so",
            "list open libibverbs.so.1",
            "rpath linked",
            "runpath linked",
            "list module ./rpath.so",
            "list module ./runpath.so",
        ] {
            let found = run(options, &folder, line);
            assert_eq!(
                (found.code, found.stdout.as_str()),
                (0, expected.as_str()),
                "{options} {line}: {found:?}"
            );
            assert_eq!(found.stderr, "", "{options} {line}");
        }
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}

#[test]
fn preloading_harms_no_other_program() {
    let Some(folder) = programs("others") else { return };
    for line in ["true", "sh -c true", "sh -c $0$(true) sh", "env -u LD_PRELOAD true", "env -i true"] {
        let found = outcome(&mut ferroce(&format!("run -- {line}")));
        assert_eq!((found.code, found.stderr.as_str()), (0, ""), "{line}: {found:?}");
    }
    if is_root() {
        let setuid = folder.join("setuid");
        std::fs::copy("/bin/true", &setuid).expect("a file of ours");
        make_setuid(&setuid);
        let found = run("", &folder, "setuid");
        assert_eq!((found.code, found.stderr.as_str()), (0, ""), "{found:?}");
    }
    // A command below the command: the list of libraries grows, and nothing else happens.
    let mut nested = ferroce("run -- sh -c");
    nested.arg(format!("{} run -- ./list open libibverbs.so", env!("CARGO_BIN_EXE_ferroce")));
    let found = outcome(nested.current_dir(&folder));
    assert!(
        found.code == 0 && found.stdout.starts_with("ferroce0\n") && found.stderr.is_empty(),
        "{found:?}"
    );
    std::fs::remove_dir_all(folder).expect("our own folder");
}

#[test]
fn a_library_that_the_user_preloads_is_found_before_ours() {
    let Some(folder) = programs("user") else { return };
    let own = folder.join("libibverbs-1de1263b.so.1.14.48.0");
    let found = outcome(ferroce("run -- ./rpath linked").current_dir(&folder).env("LD_PRELOAD", &own));
    assert!(found.stdout.starts_with("bundled\n"), "{found:?}");
    std::fs::remove_dir_all(folder).expect("our own folder");
}

/// gcc's sanitizer refuses to run where another library is loaded before its own.
#[test]
fn a_program_with_a_sanitizer_runs() {
    let Some(folder) = programs("asan") else { return };
    let sanitizer = ["-fsanitize=address", "-o", "asan", "list.c", "-ldl"];
    let compiled = outcome(Command::new("cc").args(sanitizer).current_dir(&folder));
    if compiled.code != 0 {
        println!("SKIPPED: cc has no AddressSanitizer; it is in the package libasan8");
        return;
    }
    for options in ["", "--no-namespace"] {
        let mut command = ferroce(&format!("run {options} -- ./asan open libibverbs.so.1"));
        let found = outcome(command.current_dir(&folder).env("ASAN_OPTIONS", "detect_leaks=0"));
        assert!(found.code == 0 && found.stdout.starts_with("ferroce0\n"), "{found:?}");
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}

/// The loader of musl cannot load our library, and ends a program for which a preloaded library cannot be loaded.
#[test]
fn the_preloaded_names_are_for_glibc_alone() {
    build_library("ferroce-ibverbs");
    let found = outcome(ferroce("run -- sh -c").arg("echo \"$LD_PRELOAD\"").env_remove("LD_PRELOAD"));
    assert!(found.stdout.ends_with("/$LIB/libibverbs.so.1\n"), "{found:?}");
}

/// `--preload` is for the program alone: neither `ferroce` nor its loader may need what the library needs.
#[test]
fn preloaded_libraries_are_for_the_program_alone() {
    let Some(folder) = programs("preload") else { return };
    std::fs::write(folder.join("needs.c"), "int needs(void) { return 0; }\n").expect("a file of ours");
    cc(&folder, "-shared -fPIC -o libgone.so needs.c");
    cc(&folder, "-shared -fPIC -o libneeds.so needs.c -Wl,--no-as-needed -L. -lgone");
    let own = folder.join("own.so");
    std::fs::copy(folder.join("libgone.so"), &own).expect("our own file");
    let mut command = ferroce("run --preload ./libneeds.so --preload ./libgone.so -- sh -c");
    command.arg("echo \"$LD_PRELOAD\"; cat /proc/self/maps").current_dir(&folder);
    let found = outcome(command.env("LD_PRELOAD", &own).env("LD_LIBRARY_PATH", &folder));
    let at = folder.display();
    let listed = format!("{}:{at}/libneeds.so:{at}/libgone.so:", own.display());
    assert!(found.stdout.starts_with(&listed) && found.stdout.contains("libneeds.so\n"), "{found:?}");
    // The loader cannot find what the library needs. The program alone ends for that.
    let found = run("--preload ./libneeds.so", &folder, "list open libibverbs.so");
    assert!(found.code == 127 && found.stderr.starts_with("./list: error while loading"), "{found:?}");
    std::fs::remove_dir_all(folder).expect("our own folder");
}

/// The findings of `ferroce doctor -- COMMAND`, as `check: found (advice)`, and the exit status.
#[track_caller]
fn doctor(folder: &Path, command: &str) -> (Vec<String>, i32) {
    let found = outcome(ferroce(&format!("doctor --json -- {command}")).current_dir(folder));
    let findings: serde_json::Value =
        serde_json::from_str(&found.stdout).unwrap_or_else(|error| panic!("{command}: {error}: {found:?}"));
    let text =
        |finding: &serde_json::Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let lines = findings.as_array().expect("a list").iter().map(|finding| {
        let [check, verdict, what, advice] =
            ["check", "verdict", "found", "advice"].map(|name| text(finding, name));
        format!("{check} {verdict}: {what} ({advice})")
    });
    (lines.collect(), found.code)
}

/// One of the findings has all of these words, and the exit status is 1 if one fails.
#[track_caller]
fn diagnose(folder: &Path, command: &str, words: &[&str]) {
    let (lines, code) = doctor(folder, command);
    let right = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(right, "{command}: {words:?} in {lines:#?}");
    assert_eq!(code, i32::from(lines.iter().any(|line| line.contains(" fails: "))), "{command}: {lines:#?}");
}

#[test]
fn doctor_reports_what_a_command_would_load() {
    let Some(folder) = programs("doctor") else { return };
    diagnose(&folder, "./rpath", &["libibverbs works", "libibverbs-1de1263b", "RPATH from file ./rpath"]);
    diagnose(&folder, "./rpath linked", &["without ferroce run note", "libibverbs-1de1263b"]);
    diagnose(&folder, "./runpath.so", &["libibverbs works", "RUNPATH from file ./runpath.so"]);
    diagnose(&folder, "true", &["libibverbs note", "not linked with libibverbs"]);
    if Path::new("/usr/bin/ib_write_bw").exists() {
        build_library("ferroce-rdmacm");
        diagnose(&folder, "ib_write_bw --size 8", &["libibverbs works: ferroce's, for all"]);
        diagnose(&folder, "ib_write_bw", &["librdmacm works: ferroce's, for all"]);
        diagnose(
            &folder,
            "ib_write_bw",
            &["without ferroce run note", "/libibverbs.so.1", "the system's libraries"],
        );
    } else {
        println!("SKIPPED: ib_write_bw is missing; it is in the package perftest");
    }
    std::fs::write(folder.join("opens.c"), OPENS).expect("a file of ours");
    cc(&folder, "-o opens opens.c -ldl");
    diagnose(&folder, "./opens", &["libibverbs works", "./opens opens libibverbs by name"]);
    std::fs::remove_dir_all(folder).expect("our own folder");
}

const OPENS: &str =
    "#include <dlfcn.h>\nint main(void) { return dlopen(\"libibverbs.so\", RTLD_NOW) == 0; }\n";

#[test]
fn doctor_explains_why_our_library_cannot_be_loaded() {
    let Some(folder) = programs("refused") else { return };
    let file = |name: &str| folder.join(name);
    std::fs::write(file("empty.c"), "int main(void) { return 0; }\n").expect("a file of ours");
    std::fs::write(
        file("inside.c"),
        "const char *volatile path = \"/sys/class/infiniband_verbs\";\nint main(void) { return !path; }\n",
    )
    .expect("a file of ours");
    cc(&folder, "-static -o plain empty.c");
    cc(&folder, "-static -o static inside.c");
    cc(&folder, "-o inside inside.c");
    cc(&folder, "-o musl empty.c -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1");
    cc(&folder, "-shared -fPIC -o libgone.so bundled.c");
    cc(&folder, "-o lonely empty.c -Wl,--no-as-needed -L. -lgone");
    std::fs::remove_file(file("libgone.so")).expect("our own file");
    diagnose(&folder, "./plain", &["libibverbs note", "statically", "does not contain"]);
    diagnose(&folder, "./static", &["libibverbs fails", "contains libibverbs itself", "Link it dynamically"]);
    diagnose(&folder, "./inside", &["libibverbs fails", "contains libibverbs itself"]);
    diagnose(&folder, "./musl", &["libibverbs fails", "musl"]);
    diagnose(&folder, "./lonely", &["libraries fails", "libgone.so is not found"]);
    // The field of the processor, at byte 18, with a number that does not exist.
    let mut foreign = std::fs::read(file("list")).expect("our own file");
    foreign[18] = 0xfe;
    std::fs::write(file("foreign.so"), foreign).expect("a file of ours");
    diagnose(&folder, "./foreign.so", &["command fails", "another processor"]);
    diagnose(&folder, "no-such-program-of-ferroce", &["command fails", "does not exist"]);
    diagnose(&folder, "./map", &["command fails", "is not executable", "chmod +x"]);
    if is_root() {
        make_setuid(&file("list"));
        diagnose(&folder, "./list", &["rights fails", "LD_PRELOAD", "Run a copy"]);
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}

#[test]
fn doctor_follows_scripts_to_their_interpreters() {
    let Some(folder) = programs("scripts") else { return };
    let script = |name: &str, first: &str| {
        std::fs::write(folder.join(name), format!("{first}\nexit 0\n")).expect("a file of ours");
        std::fs::set_permissions(folder.join(name), PermissionsExt::from_mode(0o755)).expect("our own file");
    };
    script("shell", "#!/bin/sh -e");
    script("by-env", "#!/usr/bin/env sh");
    script("second", &format!("#!{}", folder.join("shell").display()));
    script("broken", "#!/nowhere/at/all");
    script("endless", &format!("#!{}", folder.join("endless").display()));
    diagnose(&folder, "./shell", &["command note", "./shell is a script of /bin/sh"]);
    diagnose(&folder, "./by-env", &["./by-env is a script of", "/sh"]);
    diagnose(&folder, "./second", &["shell is a script of /bin/sh"]);
    diagnose(&folder, "./broken", &["command fails", "/nowhere/at/all", "does not exist"]);
    diagnose(&folder, "./endless", &["command fails", "each other"]);
    let python = Path::new("/usr/bin/python3");
    if python.exists() {
        script("python", "#!/usr/bin/python3");
        diagnose(&folder, "./python", &["modules note", "ferroce doctor -- MODULE.so"]);
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}

/// librdmacm is not preloaded; the advice of the doctor is, and it works.
#[test]
fn a_bundled_librdmacm_is_named_with_a_remedy() {
    let Some(folder) = programs("rdmacm") else { return };
    build_library("ferroce-rdmacm");
    std::fs::write(folder.join("cm.c"), "void *rdma_create_event_channel(void) { return 0; }\n")
        .expect("a file of ours");
    std::fs::write(folder.join("map"), "RDMACM_1.0 { global: rdma_*; local: *; };\n")
        .expect("a file of ours");
    let user = "void *rdma_create_event_channel(void);\nint main(void) { return rdma_create_event_channel() == 0; }\n";
    std::fs::write(folder.join("user.c"), user).expect("a file of ours");
    const BUNDLED: &str = "librdmacm-0a1b.so.1";
    cc(&folder, &format!("-shared -fPIC -o {BUNDLED} cm.c -Wl,-soname,{BUNDLED} -Wl,--version-script=map"));
    cc(&folder, &format!("-o user user.c ./{BUNDLED} -Wl,-rpath,{}", folder.display()));
    assert_eq!(run("", &folder, "user").code, 1, "the copy has no channel");
    diagnose(&folder, "./user", &["librdmacm fails", BUNDLED, "not ferroce's", "ferroce run --preload "]);
    let ours = Path::new(env!("CARGO_BIN_EXE_ferroce")).with_file_name("librdmacm.so");
    for options in ["", "--no-namespace"] {
        let remedied = run(&format!("{options} --preload {}", ours.display()), &folder, "user");
        assert_eq!((remedied.code, remedied.stderr.as_str()), (0, ""), "{options}: {remedied:?}");
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}
