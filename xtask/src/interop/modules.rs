//! Kernel modules of the guest, and the order in which they load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::source::files_below;

/// The modules to load. The checksums come first: rdma_rxe requests crc32 from the crypto interface by name, which is not a module
/// dependency.
const WANTED: [&str; 15] = [
    "configfs",
    "crc32_generic",
    "crc32c_generic",
    "libcrc32c",
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "sch_netem",
    "sch_prio",
    "cls_u32",
    "ib_core",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "rdma_rxe",
];

/// The files to load, each after those it depends on.
pub(crate) fn in_order(sysroot: &Path) -> Result<Vec<PathBuf>, Failure> {
    let all = files_below(&sysroot.join("lib/modules"), &[])?.into_iter();
    let modules = all.filter(|path| path.extension().is_some_and(|extension| extension == "ko"));
    let name = |path: &Path| path.file_stem().map(|stem| file_name(&stem.to_string_lossy()));
    let files = modules.filter_map(|path| Some((name(&path)?, path))).collect();
    let mut order = Vec::new();
    for name in WANTED {
        // A module that is built into the kernel has no file.
        visit(name, &files, &mut order)?;
    }
    Ok(order)
}

fn visit(name: &str, files: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let Some(file) = files.get(name) else { return Ok(()) };
    if order.contains(file) {
        return Ok(());
    }
    for below in depends(&std::fs::read(file)?) {
        visit(&below, files, order)?;
    }
    order.push(file.clone());
    Ok(())
}

/// A module carries its dependencies as the text `depends=a,b` in a section of zero-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(file_name).collect()
}

/// The name that the kernel uses: file names have dashes or underscores, the kernel only underscores.
fn file_name(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_out_of_the_module() {
        assert_eq!(
            depends(b"\x7fELF\0license=GPL\0depends=ib_core,ib-uverbs\0name=x\0"),
            ["ib_core", "ib_uverbs"]
        );
        assert!(depends(b"license=GPL\0depends=\0").is_empty());
    }
}
