//! The host: shared memory, namespaces, and the kernel's own RDMA.

use super::{Finding, Verdict, local};
use crate::run::library::Libraries;
use crate::run::namespace::{self, Files};
use crate::run::tree::SysTree;
use ferroce_nic::Wire;
use std::path::Path;

/// With less space than this, some processes cannot share memory.
const SCARCE_MIB: u64 = 16;

/// Checks that fork; they must run while there is only one thread.
pub(super) fn before_threads() -> Vec<Finding> {
    // A separate check tests whether the libraries exist.
    let libraries =
        Libraries::find().unwrap_or(Libraries { verbs: "/nowhere".into(), connections: None, shim: None });
    let sys = SysTree::of(Wire::Roce, &[], false);
    let as_root = rustix::process::geteuid().is_root();
    vec![match namespace::try_out(&Files { sys: &sys, libraries: &libraries }) {
        Ok(()) if as_root => Finding::works("namespaces", "a mount namespace shows programs the device's files"),
        Ok(()) => Finding::works("namespaces", "user and mount namespaces show programs the device's files"),
        Err(refused) => Finding::limited("namespaces", format!("refused ({refused}); a preloaded library shows the files instead"))
            .advise("Some systems let an administrator allow them: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0"),
    }]
}

/// Whether `ferroce run` uses namespaces here; forks as well.
pub(super) fn has_namespaces() -> bool {
    before_threads().iter().all(|finding| finding.verdict == Verdict::Works)
}

pub(super) fn check() -> Vec<Finding> {
    vec![registry(), locked_memory(), kernel_rdma()]
}

fn registry() -> Finding {
    let base = ferroce_nic::registry::default_base();
    let free_mib = local::free_mib(&base).unwrap_or(u64::MAX);
    if free_mib < SCARCE_MIB {
        let found = format!(
            "{} has {free_mib} MiB left; a process needs 2, and 1 for each local peer",
            base.display()
        );
        return Finding::limited("registry", found).advise(
            "Free some space, or mount a larger one: docker run --shm-size=256m, mount -o remount,size=256m /dev/shm",
        );
    }
    match base == Path::new("/dev/shm") {
        true => Finding::works(
            "registry",
            format!("/dev/shm, through which your processes share memory; {free_mib} MiB left"),
        ),
        false => {
            Finding::limited("registry", format!("{}, since /dev/shm cannot be written", base.display()))
        }
    }
}

fn locked_memory() -> Finding {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown");
    Finding::note("locked memory", format!("limit {soft}; not relevant, since no memory is pinned"))
}

fn kernel_rdma() -> Finding {
    let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    let loaded: Vec<&str> = modules
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| {
            ["ib_core", "ib_uverbs", "rdma_rxe", "siw", "mlx5_ib", "mlx4_ib", "irdma", "bnxt_re", "efa"]
                .contains(name)
        })
        .collect();
    let devices: Vec<String> = std::fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != crate::devices::DEVICE)
        .collect();
    match (loaded.is_empty(), devices.is_empty()) {
        (true, true) => Finding::note("the kernel's RDMA", "none, and ferroce needs none"),
        (false, true) => {
            Finding::note("the kernel's RDMA", format!("modules {}, no device", loaded.join(", ")))
        }
        (_, false) => Finding::note(
            "the kernel's RDMA",
            format!("devices {}; below `ferroce run` programs see only ferroce0", devices.join(", ")),
        ),
    }
}
