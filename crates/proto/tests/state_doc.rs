//! Checks that `docs/reference/qp-states.md` matches the state table.
//! `FERROCE_REGENERATE=1 cargo test -p ferroce-proto --test state_doc` writes the page.

use ferroce_proto::qp::state::{state_name, transitions};
use ferroce_proto::verbs::{AttrMask, Transport};
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
# Queue pair states

Which queue pair transition needs which attributes? This page is generated from `crates/proto/src/qp/state/table.rs`
(`FERROCE_REGENERATE=1 cargo test -p ferroce-proto --test state_doc`); a test compares the two.

A `modify` must set all required attributes and may set the optional ones. Any other attribute makes the call fail without
effect. `STATE` is required whenever the state changes. Every state may change to RESET and to ERR; these transitions take
only `STATE` and are omitted below. A pair of states that is not listed is not a transition. `ALT_PATH` is in the
specification's table, but a RoCE port has no alternate path, so its value is always refused. Each end of an XRC connection
ignores the attributes that only the other end has.

| state | posted receive | posted send |
|---|---|---|
| RESET | refused | refused |
| INIT | queued | refused |
| RTR | queued and consumed | refused |
| RTS | queued and consumed | sent |
| SQD | queued and consumed | queued; started requests finish, then `SQ_DRAINED` |
| SQE (UC, UD) | queued and consumed | flushed |
| ERR | flushed | flushed |
";

fn names(mask: AttrMask) -> String {
    let names: Vec<String> = mask.iter_names().map(|(name, _)| format!("`{name}`")).collect();
    if names.is_empty() { "-".into() } else { names.join(" ") }
}

fn page() -> String {
    let mut page = HEAD.to_string();
    let transports = [
        (Transport::Rc, "RC"),
        (Transport::Uc, "UC"),
        (Transport::Ud, "UD"),
        (Transport::XrcIni, "XRC INI (the end that sends)"),
        (Transport::XrcTgt, "XRC TGT (the end that receives)"),
    ];
    for (transport, title) in transports {
        write!(page, "\n## {title}\n\n| from | to | required | optional |\n|---|---|---|---|\n").unwrap();
        for line in transitions() {
            let leaving = matches!(state_name(line.to), "RESET" | "ERR");
            let Some(attrs) = line.attrs(transport).filter(|_| !leaving) else { continue };
            let (from, to) = (state_name(line.from), state_name(line.to));
            let (required, optional) = (names(attrs.required), names(attrs.optional));
            writeln!(page, "| {from} | {to} | {required} | {optional} |").unwrap();
        }
    }
    page
}

#[test]
fn the_page_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/qp-states.md");
    if std::env::var_os("FERROCE_REGENERATE").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).expect("docs/reference/qp-states.md");
    assert_eq!(
        written,
        page(),
        "docs/reference/qp-states.md is stale: run this test with FERROCE_REGENERATE=1"
    );
}
