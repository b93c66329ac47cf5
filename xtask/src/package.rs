//! The step `package`: every public package has the metadata of crates.io and can be packaged.
//!
//! A package is public unless its manifest has `publish = false`. `cargo package` resolves the public packages against each other,
//! so one that depends on an internal package fails. It does not build them; the check of includes replaces that.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::process::Job;
use crate::step::{Context, Report};

/// Fields of a manifest that crates.io shows.
const FIELDS: [&str; 7] =
    ["description", "license", "repository", "readme", "rust_version", "keywords", "categories"];
/// Files that every package contains besides its sources.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

pub(crate) fn check(ctx: &Context) -> Report {
    let packages = match public_packages(ctx) {
        Ok(packages) => packages,
        Err(error) => return Report::fail(error),
    };
    let mut report = Report::default();
    for package in &packages {
        let missing = missing_fields(package).into_iter().chain(missing_files(ctx, package));
        report.failures.extend(missing.map(|what| format!("package {}: {what}", name(package))));
    }
    let cargo_package = |network: &[&str]| {
        let selection = packages.iter().flat_map(|package| ["-p", name(package)]);
        let job = Job::cargo(["package", "--no-verify", "--allow-dirty", "--target-dir"]);
        job.arg(ctx.scratch().join("package")).args(network).args(selection).run(ctx)
    };
    // Offline first: the build has downloaded the dependencies. A fresh machine needs the index once.
    let offline = cargo_package(&["--offline"]);
    let ran = if offline.failure().is_none() { offline } else { cargo_package(&[]) };
    report.add(ran);
    report
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

fn public_packages(ctx: &Context) -> Result<Vec<Value>, String> {
    let answer = Job::cargo(["metadata", "--no-deps", "--format-version", "1"]).answer(ctx)?;
    let metadata: Value =
        serde_json::from_str(&answer).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    Ok(packages.into_iter().filter(|package| package["publish"].is_null()).collect())
}

fn missing_fields(package: &Value) -> Vec<String> {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty() || list.len() > 5,
        _ => false,
    };
    let missing = FIELDS.into_iter().filter(|field| is_empty(&package[field]));
    let mut missing: Vec<String> =
        missing.map(|field| format!("the manifest needs `{field}` (lists: 1 to 5)")).collect();
    if package["metadata"]["docs"]["rs"].is_null() {
        missing.push("the manifest needs [package.metadata.docs.rs]".into());
    }
    let unversioned = package["dependencies"].as_array().into_iter().flatten().filter(|dependency| {
        !dependency["path"].is_null() && dependency["req"] == "*" && dependency["kind"] != "dev"
    });
    missing.extend(
        unversioned.map(|dependency| format!("the dependency {} needs `version`", dependency["name"])),
    );
    missing
}

/// Required files that the package does not contain.
fn missing_files(ctx: &Context, package: &Value) -> Vec<String> {
    let listed = match Job::cargo(["package", "--list", "--allow-dirty", "-p", name(package)]).answer(ctx) {
        Ok(listed) => listed,
        Err(error) => return vec![error],
    };
    let listed: Vec<&Path> = listed.lines().map(Path::new).collect();
    let manifest = package["manifest_path"].as_str().unwrap_or_default();
    let root = Path::new(manifest).parent().unwrap_or(Path::new(""));
    let sources =
        listed.iter().filter(|path| path.starts_with("src") && path.extension().is_some_and(|e| e == "rs"));
    let included = sources.flat_map(|source| {
        let text = std::fs::read_to_string(root.join(source)).unwrap_or_default();
        includes(source, &text)
    });
    let needed = FILES.into_iter().map(PathBuf::from).chain(included);
    let missing = needed.filter(|file| !listed.contains(&file.as_path()));
    missing.map(|file| format!("does not contain {}", file.display())).collect()
}

/// The files that a source includes, relative to the package.
fn includes(source: &Path, text: &str) -> Vec<PathBuf> {
    let folder = source.parent().unwrap_or(Path::new(""));
    let calls =
        ["include_str!(\"", "include_bytes!(\""].into_iter().flat_map(|call| text.split(call).skip(1));
    calls.filter_map(|rest| rest.split('"').next()).map(|file| normal(&folder.join(file))).collect()
}

/// The path without `.` and `..`. A leading `..` that leaves the package stays.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if normal.file_name().is_some() => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fields_are_named() {
        let mut package = serde_json::json!({
            "name": "a", "description": "text", "license": "MIT", "repository": "text", "readme": "README.md",
            "rust_version": "1.91", "keywords": ["a"], "categories": ["b"],
            "metadata": { "docs": { "rs": { "all-features": true } } },
            "dependencies": [
                { "name": "b", "path": "/b", "req": "^0.1.0", "kind": null },
                { "name": "c", "path": "/c", "req": "*", "kind": "dev" },
            ],
        });
        assert_eq!(missing_fields(&package), Vec::<String>::new());
        package["keywords"] = serde_json::json!(["1", "2", "3", "4", "5", "6"]);
        package["readme"] = Value::Null;
        package["metadata"] = Value::Null;
        package["dependencies"][0]["req"] = "*".into();
        assert_eq!(missing_fields(&package).len(), 4, "{:?}", missing_fields(&package));
    }

    #[test]
    fn includes_are_found_where_they_lie() {
        let text =
            r#"const A: &str = include_str!("../a.txt"); const B: &[u8] = include_bytes!("../../../b.txt");"#;
        let found = includes(Path::new("src/x/mod.rs"), text);
        assert_eq!(found, [Path::new("src/a.txt"), Path::new("../b.txt")]);
    }
}
