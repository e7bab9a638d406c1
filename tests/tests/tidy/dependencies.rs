//! Dependencies by `deny.toml`: licences, sources and bans of the packages that cargo builds.

use crate::source::root;
use std::collections::BTreeSet;
use std::process::Command;
use toml::{Table, Value as Setting};

#[test]
fn dependencies_are_those_that_deny_toml_allows() {
    let rules = std::fs::read_to_string(root().join("deny.toml")).expect("read deny.toml");
    let rules: Table = rules.parse().expect("deny.toml is TOML");
    let packages = packages(&rules);
    let mut wrong = licences(&rules, &packages);
    wrong.extend(origins(&rules));
    wrong.extend(bans(&rules, &packages));
    assert!(wrong.is_empty(), "dependencies that deny.toml does not allow:\n{}", wrong.join("\n"));
}

/// A package that is built.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// The packages built for the targets, but for this workspace. `cargo tree` knows them: it leaves out the
/// packages of optional features that nothing switches on, and so needs none that was not fetched.
fn packages(rules: &Table) -> Vec<Package> {
    let mut built = BTreeSet::new();
    for target in strings(&rules["graph"]["targets"]) {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root()).args([
            "tree",
            "--workspace",
            "--offline",
            "--locked",
            "--target",
            target,
        ]);
        command.args(["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}\t{l}\t"]);
        let output = command.output().expect("start cargo");
        assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        built.extend(String::from_utf8_lossy(&output.stdout).lines().filter_map(package));
    }
    assert!(built.len() > 100, "cargo tree names {} packages only", built.len());
    built.into_iter().collect()
}

/// A line `NAME vVERSION (WHERE)<tab>LICENCE<tab>`. Packages of this workspace are at a path, and left out.
fn package(line: &str) -> Option<Package> {
    let mut fields = line.split('\t');
    let (package, licence) = (fields.next()?, fields.next()?);
    let (name, rest) = package.split_once(" v")?;
    let (version, place) = rest.split_once(' ').unwrap_or((rest, ""));
    let found = Package { name: name.into(), version: version.into(), licence: licence.into() };
    (!place.starts_with("(/")).then_some(found)
}

fn licences(rules: &Table, packages: &[Package]) -> Vec<String> {
    let allowed: Vec<&str> = strings(&rules["licenses"]["allow"]).collect();
    let wrong = packages.iter().filter(|package| !is_allowed(&package.licence, &allowed));
    wrong.map(|package| format!("{}: licence '{}'", package.name, package.licence)).collect()
}

/// Packages in Cargo.lock from anywhere but one registry: a git repository, or a second registry.
fn origins(rules: &Table) -> Vec<String> {
    for kind in ["unknown-registry", "unknown-git"] {
        assert_eq!(rules["sources"][kind].as_str(), Some("deny"), "deny.toml: sources.{kind}");
    }
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("read Cargo.lock");
    let sources: BTreeSet<&str> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    let is_wrong = |source: &&&str| sources.len() != 1 || !source.starts_with("\"registry+");
    sources.iter().filter(is_wrong).map(|source| format!("Cargo.lock: packages from {source}")).collect()
}

fn bans(rules: &Table, packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    for ban in rules["bans"]["deny"].as_array().expect("bans.deny") {
        let banned = ban["crate"].as_str().expect("a crate's name");
        let only_several = ban.get("deny-multiple-versions").and_then(Setting::as_bool).unwrap_or_default();
        let found: BTreeSet<&str> =
            packages.iter().filter(|p| p.name == banned).map(|p| p.version.as_str()).collect();
        match only_several {
            true if found.len() > 1 => wrong.push(format!("{banned}: versions {found:?}")),
            false if !found.is_empty() => wrong.push(format!("{banned}: {}", ban["reason"])),
            _ => {}
        }
    }
    wrong
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
