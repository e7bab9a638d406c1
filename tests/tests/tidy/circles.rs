//! No import circle: each module of a crate can be understood, moved and tested without those that use it.

use crate::modules::{CRATES, Modules, Path, home, modules};
use crate::rules::{self, Offenders};
use std::collections::{BTreeMap, BTreeSet};

/// Circles that are allowed: the module at their top, and the reason. Five at most. The modules of the circle
/// all lie in the one at its top.
const ALLOWED: [(&str, &str); 2] = [
    ("forebay_train::model", "the trait and its enum in the parent, one file for each kind of model"),
    (
        "forebay_c10d::ffi",
        "the one module with unsafe declarations; its parts share the error and the handles of the parent",
    ),
];

#[test]
fn no_modules_import_each_other() {
    assert!(ALLOWED.len() <= 5, "five circles may be allowed at most");
    rules::check("circles", "modules that import each other in a circle", &offenders());
}

/// Modules in circles that are not allowed, each with the size of its circle.
pub fn offenders() -> Offenders {
    let mut found = Offenders::new();
    for circle in not_allowed() {
        let size = circle.len();
        found.extend(circle.into_iter().map(|module| (module, size)));
    }
    found
}

/// Circles beyond those that are allowed.
pub fn not_allowed() -> Vec<Vec<String>> {
    let circles = CRATES.iter().flat_map(|(folder, name)| circles(name, &modules(folder)));
    let is_in = |module: &String, top: &str| {
        module.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let is_allowed =
        |circle: &Vec<String>| ALLOWED.iter().any(|(top, _)| circle.iter().all(|module| is_in(module, top)));
    circles.filter(|circle| !is_allowed(circle)).collect()
}

/// Sets of modules of which each leads to every other.
fn circles(name: &str, all: &Modules) -> Vec<Vec<String>> {
    let mut edges: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for (from, module) in all {
        let homes = module.paths.iter().filter_map(|path| home(all, from, path));
        let homes = homes.filter(|to| to != from).filter_map(|to| all.get_key_value(&to));
        edges.entry(from).or_default().extend(homes.map(|(to, _)| to));
    }
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        edges.keys().map(|from| (*from, reached(&edges, from))).collect();
    let mut found = Vec::new();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for (from, to) in &reached {
        if to.contains(from) && !seen.contains(from) {
            let circle: Vec<&Path> =
                to.iter().copied().filter(|other| reached[other].contains(from)).collect();
            seen.extend(&circle);
            let full = |path: &&Path| [&[name.to_owned()], &path[..]].concat().join("::");
            found.push(circle.iter().map(full).collect());
        }
    }
    found
}

/// The modules that `from` leads to.
fn reached<'a>(edges: &BTreeMap<&'a Path, BTreeSet<&'a Path>>, from: &'a Path) -> BTreeSet<&'a Path> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&Path> = edges[from].iter().copied().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(edges.get(module).into_iter().flatten().copied());
        }
    }
    found
}
