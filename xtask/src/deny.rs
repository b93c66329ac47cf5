//! The step `deny`: licences, duplicate versions and sources of the dependencies, and whether docs list each with a reason.
//!
//! The rules are in deny.toml, which cargo-deny reads as well. Few machines have cargo-deny, and building it takes longer than the other
//! steps together, so this file applies the rules itself. Only the advisories need cargo-deny and its database.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::links::first_code;
use crate::process::Job;
use crate::step::{Context, Report};
use crate::tools::which;

const RULES: &str = "deny.toml";
const PAGE: &str = "docs/reference/dependencies.md";
/// Messages of cargo-deny when it cannot get its database.
const NO_DATABASE: [&str; 2] = ["failed to fetch advisory database", "failed to load advisory database"];

/// A package of the graph.
#[derive(Debug)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    license: &'a str,
    /// `None` for packages of this repository.
    source: Option<&'a str>,
}

pub(crate) fn check(ctx: &Context) -> Report {
    let read =
        |path: &str| std::fs::read_to_string(ctx.root.join(path)).map_err(|error| format!("{path}: {error}"));
    let parts = || Ok::<_, String>((metadata(ctx)?, read(RULES)?, read(PAGE)?));
    let (metadata, rules, page) = match parts() {
        Ok(parts) => parts,
        Err(error) => return Report::fail(error),
    };
    let packages = packages(&metadata);
    let mut report = Report::default();
    report.failures.extend(wrong_licenses(&packages, &list(&rules, "licenses", "allow")));
    report.failures.extend(duplicates(&packages, &list(&rules, "bans", "skip")));
    report.failures.extend(foreign_sources(&packages, &list(&rules, "sources", "allow-registry")));
    report.failures.extend(unlisted(&packages, &declared(&metadata), &page));
    report.passed = usize::from(report.failures.is_empty());
    report.merge(cargo_deny(ctx));
    report
}

/// All packages for the platform of deny.toml, with every feature and the tests.
fn metadata(ctx: &Context) -> Result<Value, String> {
    let words =
        "metadata --format-version 1 --locked --all-features --filter-platform x86_64-unknown-linux-gnu";
    let ask = |network: &[&str]| Job::cargo(words.split(' ')).args(network).answer(ctx);
    // Offline first: the build has downloaded the dependencies. A fresh machine needs the index once.
    let answer = ask(&["--offline"]).or_else(|_| ask(&[]))?;
    serde_json::from_str(&answer).map_err(|error| format!("cargo metadata: {error}"))
}

fn packages(metadata: &Value) -> Vec<Package<'_>> {
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let used: BTreeSet<&str> = nodes.filter_map(|node| node["id"].as_str()).collect();
    let all = metadata["packages"].as_array().into_iter().flatten();
    all.filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)))
        .map(|package| Package {
            name: package["name"].as_str().unwrap_or_default(),
            version: package["version"].as_str().unwrap_or_default(),
            license: package["license"].as_str().unwrap_or_default(),
            source: package["source"].as_str(),
        })
        .collect()
}

/// Names of the foreign packages that manifests of this repository declare, on any platform.
fn declared(metadata: &Value) -> BTreeSet<&str> {
    let all = metadata["packages"].as_array().into_iter().flatten();
    all.filter(|package| package["source"].is_null())
        .flat_map(|package| package["dependencies"].as_array().into_iter().flatten())
        .filter(|dependency| dependency["path"].is_null())
        .filter_map(|dependency| dependency["name"].as_str())
        .collect()
}

/// The first quoted text of each line of a list.
fn list<'a>(toml: &'a str, section: &str, key: &str) -> Vec<&'a str> {
    let (heading, start) = (format!("[{section}]"), format!("{key} = ["));
    let section = toml.lines().skip_while(|line| *line != heading).skip(1);
    let lines = section.take_while(|line| !line.starts_with('[')).skip_while(|line| *line != start).skip(1);
    lines.take_while(|line| *line != "]").filter_map(|line| line.split('"').nth(1)).collect()
}

fn wrong_licenses(packages: &[Package<'_>], allowed: &[&str]) -> Vec<String> {
    let wrong = packages.iter().filter(|package| !is_allowed(package.license, allowed));
    wrong
        .map(|package| {
            format!(
                "{} {}: {RULES} does not allow the licence `{}`",
                package.name, package.version, package.license
            )
        })
        .collect()
}

/// Whether an SPDX expression can be met with the allowed licences alone. `AND` binds closer than `OR`; old manifests write `/` for `OR`.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    alternatives(&mut words, allowed) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn alternatives(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = conjunction(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= conjunction(words, allowed);
    }
    met
}

fn conjunction(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut met = license(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= license(words, allowed);
    }
    met
}

fn license(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        return alternatives(words, allowed) & words.next_if_eq(&")").is_some();
    }
    let mut name = words.next().unwrap_or_default().to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next().unwrap_or_default());
    }
    allowed.contains(&name.as_str())
}

/// Packages with several versions besides the skipped ones, `name@version`, and skipped ones that do not exist.
fn duplicates(packages: &[Package<'_>], skips: &[&str]) -> Vec<String> {
    let matches = |package: &Package<'_>, skip: &str| {
        skip.split_once('@').is_some_and(|(name, version)| {
            name == package.name && format!("{}.", package.version).starts_with(&format!("{version}."))
        })
    };
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages.iter().filter(|package| !skips.iter().any(|skip| matches(package, skip))) {
        versions.entry(package.name).or_default().push(package.version);
    }
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let unused = skips.iter().filter(|skip| !packages.iter().any(|package| matches(package, skip)));
    several
        .map(|(name, versions)| format!("{name}: several versions, {}", versions.join(" and ")))
        .chain(unused.map(|skip| format!("{RULES}: no package {skip}; drop it from `skip`")))
        .collect()
}

fn foreign_sources(packages: &[Package<'_>], registries: &[&str]) -> Vec<String> {
    let is_known =
        |source: &str| source.strip_prefix("registry+").is_some_and(|address| registries.contains(&address));
    let foreign = packages.iter().filter(|package| package.source.is_some_and(|source| !is_known(source)));
    foreign
        .map(|package| {
            let Package { name, version, source, .. } = package;
            format!("{name} {version}: {RULES} does not allow the source {}", source.unwrap_or_default())
        })
        .collect()
}

/// Differences between the page and the packages: a row with a reason for each declared one, the name of each other.
fn unlisted(packages: &[Package<'_>], declared: &BTreeSet<&str>, page: &str) -> Vec<String> {
    let rows: BTreeSet<String> = page.lines().filter_map(first_code).collect();
    let rest = page.split("## Brought by them").nth(1).unwrap_or_default();
    let rest = rest.split("\n\n").nth(1).unwrap_or_default();
    let named: BTreeSet<String> = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let declared: BTreeSet<String> = declared.iter().map(|name| (*name).to_owned()).collect();
    let foreign = packages.iter().filter(|package| package.source.is_some());
    let others = foreign.map(|package| package.name.to_owned()).filter(|name| !declared.contains(name));
    let others: BTreeSet<String> = others.collect();
    let mut found = Vec::new();
    for (expected, listed, what) in
        [(&declared, &rows, "row"), (&others, &named, "name below \"Brought by them\"")]
    {
        found.extend(expected.difference(listed).map(|name| format!("{PAGE}: no {what} for {name}")));
        found.extend(
            listed.difference(expected).map(|name| format!("{PAGE}: a {what} for {name}, which is not used")),
        );
    }
    found
}

/// The findings of cargo-deny, if it is installed.
fn cargo_deny(ctx: &Context) -> Report {
    if which("cargo-deny").is_none() {
        return Report::skip(
            "cargo-deny is missing, so advisories are not checked; install it: `cargo install --locked cargo-deny`",
        );
    }
    let mut report = Report::of(Job::cargo(["deny", "check", "licenses", "bans", "sources"]).run(ctx));
    let advisories = Job::cargo(["deny", "check", "advisories"]).limit_s(120).run(ctx);
    let has_none = |line: &String| NO_DATABASE.iter().any(|words| line.contains(words));
    if !advisories.success() && advisories.lines.iter().any(has_none) {
        report.output.extend(advisories.lines);
        report
            .skips
            .push("cargo-deny cannot reach the advisory database, so advisories are not checked".into());
    } else {
        report.add(advisories);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &'static str, version: &'static str) -> Package<'static> {
        Package { name, version, license: "MIT", source: Some("registry+https://a") }
    }

    #[test]
    fn lists_are_read_by_section() {
        let toml = "[a]\nallow = [\n    \"x\",\n]\nskip = [\n    { crate = \"y@1\", reason = \"z\" },\n]\n[b]\nallow = [\n]\n";
        assert_eq!(list(toml, "a", "allow"), ["x"]);
        assert_eq!(list(toml, "a", "skip"), ["y@1"]);
        assert_eq!(list(toml, "b", "allow"), [""; 0]);
        assert_eq!(list(toml, "b", "skip"), [""; 0]);
    }

    #[test]
    fn an_expression_needs_one_allowed_alternative() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for good in ["MIT", "MIT/Apache-2.0", "LGPL-2.1 OR MIT", "(GPL-3.0 OR MIT) AND Unicode-3.0"] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR X) AND Y",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT",
            "MIT X",
        ] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn second_versions_are_named_and_stale_exceptions_too() {
        let packages = [package("a", "1.2.3"), package("a", "2.0.0"), package("b", "1.0.0")];
        assert_eq!(duplicates(&packages, &[]), ["a: several versions, 1.2.3 and 2.0.0"]);
        assert_eq!(duplicates(&packages, &["a@1"]), [""; 0]);
        assert_eq!(
            duplicates(&packages, &["a@1.2", "b@10"]),
            ["deny.toml: no package b@10; drop it from `skip`"]
        );
    }

    #[test]
    fn sources_and_licences_are_checked() {
        let packages =
            [package("a", "1.0.0"), Package { source: None, license: "X", ..package("own", "0.1.0") }];
        assert_eq!(foreign_sources(&packages, &["https://a"]), [""; 0]);
        assert_eq!(foreign_sources(&packages, &["https://b"]).len(), 1);
        assert_eq!(
            wrong_licenses(&packages, &["MIT"]),
            ["own 0.1.0: deny.toml does not allow the licence `X`"]
        );
    }

    #[test]
    fn the_page_must_list_every_package_and_no_other() {
        let page = "| package | why |\n|---|---|\n| `a` | x |\n\n## Brought by them\n\n`b`, `c`.\n\n`d` is not one.\n";
        let packages = [package("a", "1.0.0"), package("b", "1.0.0"), package("c", "1.0.0")];
        assert_eq!(unlisted(&packages, &["a"].into(), page), [""; 0]);
        let found = unlisted(&packages[..2], &["a", "e"].into(), page);
        let stale = format!("{PAGE}: a name below \"Brought by them\" for c, which is not used");
        assert_eq!(found, [format!("{PAGE}: no row for e"), stale]);
    }
}
