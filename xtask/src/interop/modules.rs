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

/// Suffix of a module that the guest can load.
const PLAIN: &str = ".ko";
/// Suffixes of compressed modules. The guest has no program that unpacks them.
const COMPRESSED: [&str; 3] = [".ko.xz", ".ko.zst", ".ko.gz"];

/// The files to load, each after those it depends on. Fails if one of them is compressed.
pub(crate) fn in_order(sysroot: &Path) -> Result<Vec<PathBuf>, Failure> {
    let all = files_below(&sysroot.join("lib/modules"), &[])?.into_iter();
    let files = all.filter_map(|path| Some((module(&path)?, path))).collect();
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
    if !file.to_string_lossy().ends_with(PLAIN) {
        let why =
            format!("the module {name} is compressed, and the guest loads only {PLAIN}: {}", file.display());
        return Err(Failure::Broken(why));
    }
    for below in depends(&std::fs::read(file)?) {
        visit(&below, files, order)?;
    }
    order.push(file.clone());
    Ok(())
}

/// The name of the module in a file, compressed or not.
fn module(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let stem = std::iter::once(PLAIN).chain(COMPRESSED).find_map(|suffix| name.strip_suffix(suffix))?;
    Some(file_name(stem))
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
    fn a_compressed_module_is_named() {
        let sysroot = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        let folder = sysroot.join("lib/modules/6.1/kernel");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("rdma_rxe.ko"), b"\0depends=ib-uverbs\0").expect("a file");
        std::fs::write(folder.join("ib_uverbs.ko"), b"\0depends=\0").expect("a file");
        let plain = in_order(&sysroot).map_err(|_| ()).expect("an order");
        std::fs::rename(folder.join("ib_uverbs.ko"), folder.join("ib-uverbs.ko.xz")).expect("renamed");
        let compressed = in_order(&sysroot);
        std::fs::remove_dir_all(&sysroot).expect("removed");
        assert_eq!(plain, [folder.join("ib_uverbs.ko"), folder.join("rdma_rxe.ko")]);
        let Err(Failure::Broken(why)) = compressed else { panic!("{compressed:?}") };
        assert!(why.starts_with("the module ib_uverbs is compressed"), "{why}");
    }

    #[test]
    fn dependencies_are_read_out_of_the_module() {
        assert_eq!(
            depends(b"\x7fELF\0license=GPL\0depends=ib_core,ib-uverbs\0name=x\0"),
            ["ib_core", "ib_uverbs"]
        );
        assert!(depends(b"license=GPL\0depends=\0").is_empty());
    }
}
