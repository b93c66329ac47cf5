//! Finds the libraries that replace the system's.
//!
//! They are next to the command: in a source tree cargo puts both into one folder; an installation has `bin/ferroce`
//! and `lib/ferroce/`. Cargo cannot name a file `libibverbs.so.1`, so the loader needs a link with that name.
//!
//! Programs find the libraries in three ways. Linked programs need `libibverbs.so.1`. NCCL opens `libibverbs.so`
//! first. A wheel may contain its own copy with another name, which it finds by its RPATH; symbols of the preloaded
//! library come before those of the copy.

use crate::failure::Failure;
use crate::program::NOT_FOUND;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Path of another library file, or of a folder with the libraries.
pub(crate) const VARIABLE: &str = "FERROCE_LIB";
/// The name under which programs load libibverbs.
pub(crate) const VERBS: &str = "libibverbs.so.1";
/// The connection manager's library, if it is built.
const CONNECTIONS: &str = "librdmacm.so.1";
/// Redirects file names where namespaces are refused.
const SHIM: &str = "libferroce_shim.so";
/// The values of the loader's `$LIB`, as folders: `lib`, `lib64`, and Debian's `lib/x86_64-linux-gnu`.
const LIB_FOLDERS: [&str; 4] = ["lib", "lib64", "x86_64-linux-gnu", "aarch64-linux-gnu"];

/// The libraries that were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Libraries {
    /// libibverbs.
    pub(crate) verbs: PathBuf,
    /// librdmacm, if there is one of ours.
    pub(crate) connections: Option<PathBuf>,
    /// The shim.
    pub(crate) shim: Option<PathBuf>,
}

impl Libraries {
    /// Searches next to this command, or in `FERROCE_LIB`.
    pub(crate) fn find() -> Result<Libraries, Failure> {
        let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let own = own_folder()?;
        match named {
            Some(path) => named_by_variable(&path, &own),
            None => search(&candidates(&own)).ok_or_else(|| not_found(&own)),
        }
    }

    /// Makes a folder in which the loader finds the libraries by every name that programs use.
    pub(crate) fn make_in(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir(folder)?;
        for (name, file) in
            [(VERBS, Some(&self.verbs)), (CONNECTIONS, self.connections.as_ref()), (SHIM, self.shim.as_ref())]
        {
            let Some(file) = file else { continue };
            symlink(file, folder.join(name))?;
            if let Some(unversioned) = name.strip_suffix(".1") {
                symlink(file, folder.join(unversioned))?;
            }
        }
        LIB_FOLDERS.into_iter().try_for_each(|name| symlink(".", folder.join(name)))
    }

    /// The libraries to preload from a folder of [`Libraries::make_in`], as the value of `LD_PRELOAD`.
    ///
    /// Only glibc's loader replaces `$LIB`. That of musl finds no such file and ignores the entry; it could not resolve
    /// the symbols of libraries that are linked with glibc, and would end the program.
    pub(crate) fn preload(&self, folder: &Path, with_shim: bool) -> OsString {
        let names = [self.shim.is_some().then_some(SHIM).filter(|_| with_shim), Some(VERBS)];
        let paths = names.into_iter().flatten().map(|name| folder.join("$LIB").join(name).into_os_string());
        paths.collect::<Vec<_>>().join(OsStr::new(":"))
    }
}

/// The folder of this command, links resolved: `~/bin/ferroce` may be a link into a source tree.
pub(crate) fn own_folder() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize());
    let own = own.map_err(|error| Failure::io("cannot locate this command", error))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_path_buf())
}

/// Finds a library of ours next to this command, by its name. It replaces none of the system's.
pub(crate) fn next_to_command(name: &str) -> Result<Option<PathBuf>, Failure> {
    Ok(candidates(&own_folder()?).iter().find_map(|folder| in_folder(folder, name)))
}

fn candidates(own: &Path) -> [PathBuf; 2] {
    [own.to_path_buf(), own.join("../lib/ferroce")]
}

fn search(folders: &[PathBuf]) -> Option<Libraries> {
    let verbs = folders.iter().find_map(|folder| in_folder(folder, VERBS))?;
    let rest = |name| folders.iter().find_map(|folder| in_folder(folder, name));
    Some(Libraries { verbs, connections: rest(CONNECTIONS), shim: rest(SHIM) })
}

/// The library by its own name or, as cargo creates it, without the number.
fn in_folder(folder: &Path, name: &str) -> Option<PathBuf> {
    let built = name.strip_suffix(".1").unwrap_or(name);
    let found = [name, built].map(|name| folder.join(name)).into_iter().find(|path| path.is_file())?;
    Some(found.canonicalize().unwrap_or(found))
}

fn named_by_variable(path: &Path, own: &Path) -> Result<Libraries, Failure> {
    let wrong = |why: &str| {
        Failure::new(format!("{VARIABLE}={}: {why}", path.display()))
            .exit_with(NOT_FOUND)
            .advise("Name the library file or its folder, or unset the variable")
    };
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("/")) };
    let mut folders = vec![folder.to_path_buf()];
    folders.extend(candidates(own));
    if path.is_dir() {
        in_folder(path, VERBS).ok_or_else(|| wrong("there is no libibverbs.so.1 in this folder"))?;
        return search(&folders).ok_or_else(|| wrong("there is no libibverbs.so.1 in this folder"));
    }
    if !path.is_file() {
        return Err(wrong("there is no such file"));
    }
    let verbs = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let rest = |name| folders.iter().find_map(|folder| in_folder(folder, name));
    Ok(Libraries { verbs, connections: rest(CONNECTIONS), shim: rest(SHIM) })
}

fn not_found(own: &Path) -> Failure {
    let failure =
        Failure::new(format!("ferroce's {VERBS} is not next to this command, in {}", own.display()));
    let release = if cfg!(debug_assertions) { "" } else { " --release" };
    let advice = match own.parent().is_some_and(|above| above.ends_with("target")) {
        true => format!("Build it: cargo build{release}"),
        false => format!("Install it: cargo xtask install; or name it: {VARIABLE}=/path/to/{VERBS}"),
    };
    failure.exit_with(NOT_FOUND).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str, files: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ferroce-library-{name}-{}", std::process::id()));
        for file in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of ours");
            std::fs::write(path, "").expect("a file of ours");
        }
        folder
    }

    #[test]
    fn a_source_tree_and_an_installation_are_found() {
        let tree = folder("tree", &["libibverbs.so", "libferroce_shim.so"]);
        let found = search(&candidates(&tree)).expect("cargo's names");
        assert!(found.verbs.ends_with("libibverbs.so"));
        assert_eq!((found.shim.is_some(), found.connections), (true, None));

        let prefix =
            folder("prefix", &["bin/ferroce", "lib/ferroce/libibverbs.so.1", "lib/ferroce/librdmacm.so.1"]);
        let found = search(&candidates(&prefix.join("bin"))).expect("installed names");
        assert!(found.verbs.ends_with("lib/ferroce/libibverbs.so.1"));
        assert!(found.connections.is_some());
        assert_eq!(search(&candidates(&prefix.join("share/doc"))), None);
        for made in [tree, prefix] {
            std::fs::remove_dir_all(made).expect("our own folder");
        }
    }

    #[test]
    fn the_variable_names_a_file_or_a_folder() {
        let tree = folder("named", &["libibverbs.so.1", "other.so"]);
        let own = Path::new("/nowhere");
        assert!(named_by_variable(&tree, own).expect("a folder").verbs.ends_with("libibverbs.so.1"));
        assert!(named_by_variable(&tree.join("other.so"), own).expect("a file").verbs.ends_with("other.so"));
        let failure = named_by_variable(&tree.join("none.so"), own).expect_err("no file");
        assert!(failure.what().contains("no such file"), "{failure:?}");
        std::fs::remove_dir_all(tree).expect("our own folder");
    }
}
