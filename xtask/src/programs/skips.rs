//! Which tests of the conformance suite may be skipped, and why.

/// The list; its head says what a line looks like.
const LIST: &str = include_str!("skips.txt");

/// Pattern and reason of each line.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = LIST.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('|')).map(|(test, reason)| (test.trim(), reason.trim()))
}

/// Why this test may be skipped; none if it may not.
pub(crate) fn reason_for(test: &str) -> Option<&'static str> {
    entries().find(|(pattern, _)| matches(pattern, test)).map(|(_, reason)| reason)
}

fn matches(pattern: &str, test: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => test.starts_with(start),
        None => pattern == test,
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::MODULES;
    use super::*;
    use std::fmt::Write;

    /// The page, made from the list.
    fn page() -> String {
        let total: usize = MODULES.iter().map(|(_, tests)| tests).sum();
        let mut text = format!(
            "# Conformance\n\n<!-- Made from xtask/src/programs/skips.txt: FERROCE_REGENERATE=1 cargo test -p xtask conformance_page -->\n\n\
             rdma-core's own test suite, as Debian 12 ships it (package python3-pyverbs), has {total} tests that ask for no vendor's\n\
             hardware. `cargo xtask programs --filter pyverbs` runs them on ferroce, unmodified, below `ferroce run`. None may fail, and\n\
             none may be skipped unless it stands here:\n\n| tests | why they are skipped |\n|---|---|\n"
        );
        entries().for_each(|(test, reason)| writeln!(text, "| `{test}` | {reason} |").expect("a string"));
        text + "\n| module | tests |\n|---|---:|\n"
            + &MODULES.iter().map(|(module, tests)| format!("| {module} | {tests} |\n")).collect::<String>()
            + REFUSED
    }

    /// What no test of the suite asks for, and the manual pages know.
    const REFUSED: &str = "\n## What the manual pages know and ferroce refuses\n\n\
        `ibv_import_device` with the descriptor of another process answers EOPNOTSUPP; within one process, devices, protection\n\
        domains, memory regions and device memory are imported as the manual says. A kernel driver gives both processes the same\n\
        device, and that device reaches the memory of either. Here each process has a NIC of its own, which checks keys and copies\n\
        bytes in its own memory. An imported region would have to be checked and copied by the owner's NIC for each request that\n\
        names it, and stay alive when the owner dies, so both processes would need one NIC: a daemon, which ferroce does not have.\n";

    #[test]
    fn conformance_page_tells_of_every_skip() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/conformance.md");
        if std::env::var_os("FERROCE_REGENERATE").is_some() {
            std::fs::write(file, page()).expect("the page can be written");
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == page(),
            "docs/reference/conformance.md is not what xtask/src/programs/skips.txt says; its head says how to make it anew"
        );
    }

    #[test]
    fn every_line_has_a_reason() {
        let lines = LIST.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
        assert_eq!(
            entries().filter(|(test, reason)| test.starts_with("tests.test_") && reason.len() > 10).count(),
            lines
        );
        assert!(reason_for("tests.test_cuda_dmabuf.X.test_y").is_some());
        assert!(reason_for("tests.test_qp.X.test_y").is_none());
    }
}
