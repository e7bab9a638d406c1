//! Dependencies by `deny.toml`: licences, sources and bans of the packages that cargo builds.

use crate::source::root;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use toml::{Table, Value as Setting};

#[test]
fn dependencies_are_those_that_deny_toml_allows() {
    let rules = std::fs::read_to_string(root().join("deny.toml")).expect("read deny.toml");
    let rules: Table = rules.parse().expect("deny.toml is TOML");
    let packages = packages(&rules);
    let mut wrong = licences(&rules, &packages);
    wrong.extend(origins(&rules, &packages));
    wrong.extend(bans(&rules, &packages));
    assert!(wrong.is_empty(), "dependencies that deny.toml does not allow:\n{}", wrong.join("\n"));
}

/// The packages built for the targets, without those of this workspace. `cargo metadata` also lists packages
/// of optional features that nothing switches on, so `cargo tree` says which are built.
fn packages(rules: &Table) -> Vec<Value> {
    let mut built = BTreeSet::new();
    for target in strings(&rules["graph"]["targets"]) {
        let tree =
            ["tree", "--workspace", "-e", "all", "--prefix", "none", "--format", "{p}", "--target", target];
        let tree = cargo(&tree);
        let tree = String::from_utf8_lossy(&tree);
        built.extend(tree.lines().filter_map(|line| Some(line.split_once(" v")?.0.to_owned())));
    }
    let metadata = cargo(&["metadata", "--format-version", "1"]);
    let metadata: Value = serde_json::from_slice(&metadata).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages.iter().filter(|p| !p["source"].is_null() && built.contains(name(p))).cloned().collect()
}

/// What a cargo command prints, without asking the network and with the lock file as it is.
fn cargo(arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(arguments).args(["--offline", "--locked"]);
    let output = command.output().expect("start cargo");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn licences(rules: &Table, packages: &[Value]) -> Vec<String> {
    let allowed: Vec<&str> = strings(&rules["licenses"]["allow"]).collect();
    let is_wrong =
        |package: &&Value| !package["license"].as_str().is_some_and(|text| is_allowed(text, &allowed));
    packages.iter().filter(is_wrong).map(|p| format!("{}: licence {}", name(p), p["license"])).collect()
}

/// Packages from anywhere but cargo's registry: a git repository, or a second registry.
fn origins(rules: &Table, packages: &[Value]) -> Vec<String> {
    for kind in ["unknown-registry", "unknown-git"] {
        assert_eq!(rules["sources"][kind].as_str(), Some("deny"), "deny.toml: sources.{kind}");
    }
    let source = |package: &Value| package["source"].as_str().unwrap_or_default().to_owned();
    let registries: BTreeSet<String> =
        packages.iter().map(source).filter(|source| source.starts_with("registry+")).collect();
    let is_wrong = |package: &&Value| registries.len() != 1 || !registries.contains(&source(package));
    packages.iter().filter(is_wrong).map(|p| format!("{}: from {}", name(p), p["source"])).collect()
}

fn bans(rules: &Table, packages: &[Value]) -> Vec<String> {
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for package in packages {
        *versions.entry(name(package)).or_default() += 1;
    }
    let mut wrong = Vec::new();
    for ban in rules["bans"]["deny"].as_array().expect("bans.deny") {
        let banned = ban["crate"].as_str().expect("a crate's name");
        let only_several = ban.get("deny-multiple-versions").and_then(Setting::as_bool).unwrap_or_default();
        let found = versions.get(banned).copied().unwrap_or_default();
        match only_several {
            true if found > 1 => wrong.push(format!("{banned}: {found} versions")),
            false if found > 0 => wrong.push(format!("{banned}: {}", ban["reason"])),
            _ => {}
        }
    }
    wrong
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a package's name")
}

fn strings(list: &Setting) -> impl Iterator<Item = &str> {
    list.as_array().expect("a list").iter().filter_map(Setting::as_str)
}

/// Whether an SPDX expression can be met with the allowed licences. `/` is how old packages wrote OR.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any_of(&mut words, allowed)
}

type Words<'a, 'b> = &'b mut std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: Words<'_, '_>, allowed: &[&str]) -> bool {
    let mut is_met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        is_met |= all_of(words, allowed);
    }
    is_met
}

fn all_of(words: Words<'_, '_>, allowed: &[&str]) -> bool {
    let mut is_met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_met &= one(words, allowed);
    }
    is_met
}

fn one(words: Words<'_, '_>, allowed: &[&str]) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let is_met = any_of(words, allowed);
        return words.next() == Some(")") && is_met;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(&format!("{word} WITH {exception}").as_str()),
        None => allowed.contains(&word),
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
    for good in
        ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "ISC AND (MIT OR GPL-3.0)", "Apache-2.0 WITH LLVM-exception"]
    {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT AND (GPL-3.0 OR BSD)", "Apache-2.0"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}
