//! Tests of the conformance suite that may be skipped, and the reasons.

/// The list; its head describes the format of a line.
const LIST: &str = include_str!("skips.txt");

/// Pattern and reason of each line.
fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = LIST.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('|')).map(|(test, reason)| (test.trim(), reason.trim()))
}

/// Why this test may be skipped; `None` if it must run.
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
             Which tests of rdma-core's own suite are skipped, and why? The suite of Debian 12 (package python3-pyverbs) has {total} tests\n\
             that need no vendor's hardware. `cargo xtask programs --filter pyverbs` runs them unmodified under `ferroce run`. No test may\n\
             fail, and only the tests listed here may be skipped:\n\n| tests | why they are skipped |\n|---|---|\n"
        );
        entries().for_each(|(test, reason)| writeln!(text, "| `{test}` | {reason} |").expect("a string"));
        text + "\n| module | tests |\n|---|---:|\n"
            + &MODULES.iter().map(|(module, tests)| format!("| {module} | {tests} |\n")).collect::<String>()
            + REFUSED
            + CHOICES
    }

    /// Calls in the manual pages that no test of the suite covers.
    const REFUSED: &str = "\n## Calls of the manual that ferroce refuses\n\n\
        `ibv_import_device` with the descriptor of another process returns EOPNOTSUPP. Within one process, devices, protection domains,\n\
        memory regions and device memory can be imported. A kernel driver gives both processes the same device, which accesses the\n\
        memory of either. In ferroce each process has its own NIC, which checks keys and copies bytes in its own memory. The owner's NIC\n\
        would have to check and copy for each request that names an imported region, and outlive the owner. That needs one NIC for\n\
        both processes, a daemon, which ferroce does not have.\n";

    /// Behaviour that no test of the suite covers and that the manual pages leave open.
    const CHOICES: &str = "\n## Where the manual leaves a choice\n\n\
        No test of the suite covers these. ferroce does what Linux's drivers (mlx5, rxe) and connection manager do:\n\n\
        | case | result |\n\
        |---|---|\n\
        | key of a bind of a type 2 memory window | the low 8 bits become those of the window's key, the other 24 are ignored |\n\
        | bind of 0 bytes, type 2 | MW_BIND_ERR (IBA o10-37.2.40); for type 1 it closes the window |\n\
        | region of 0 bytes | registered; operations of 0 bytes may name it. Linux refuses one that starts at a page |\n\
        | shared receive queue of another protection domain | accepted; receives are checked against the domain of the queue |\n\
        | datagram longer than the active MTU of the port | LOC_LEN_ERR, also where its path carries more |\n\
        | WRITE with immediate and a bad rkey | one packet of the path MTU: the receive completes with LOC_ACCESS_ERR (IBA 11.6.2); more: it is flushed |\n\
        | more objects than `ibv_query_device` states | ENOMEM |\n\
        | `ibv_advise_mr` on a region without on-demand paging | ENOENT |\n\
        | queue pair or address handle to a GID without a route | the reason of the routing table: ENETUNREACH, EHOSTUNREACH |\n\
        | pointer to a destroyed or foreign object, or overwritten `handle` | EINVAL from the verb that destroys it. Other verbs do not check |\n\
        | completion counters, DMA handles, dma-buf of device memory | EOPNOTSUPP |\n";

    #[test]
    fn conformance_page_tells_of_every_skip() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/conformance.md");
        if std::env::var_os("FERROCE_REGENERATE").is_some() {
            std::fs::write(file, page()).expect("the page can be written");
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == page(),
            "docs/reference/conformance.md differs from xtask/src/programs/skips.txt; run this test with FERROCE_REGENERATE=1"
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
