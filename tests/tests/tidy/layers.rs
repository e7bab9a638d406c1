//! Who may know what: dependencies run one way, modules are private by default, and some words belong to few
//! files.

use crate::modules::{CRATES, Path, modules};
use crate::rules::{self, Offenders};
use crate::source::{root, sources};
use std::collections::BTreeSet;

/// The crates, and which words their sources must not contain: other crates that stand above or beside them,
/// and what would be I/O in the contract.
const FORBIDDEN: [(&str, &[&str]); 10] = [
    (
        "proto/src",
        &[
            "forebay_dataset",
            "forebay_client",
            "forebay_server",
            "std::fs",
            "std::net",
            "std::process",
            "tokio",
            "object_store",
        ],
    ),
    ("tls/src", &["forebay_dataset", "forebay_client", "forebay_server", "forebay_tests", "tonic", "hyper"]),
    ("dataset/src", &["forebay_client", "forebay_server", "forebay_tests", "tonic"]),
    ("cache-server/src", &["forebay_client", "forebay_tests", "forebay_train"]),
    ("client", &["forebay_server", "forebay_tests", "forebay_train", "etcd_client"]),
    (
        "images/src",
        &[
            "forebay_dataset",
            "forebay_client",
            "forebay_server",
            "forebay_train",
            "forebay_c10d",
            "tch::",
            "tokio",
        ],
    ),
    ("trainer/src", &["forebay_server", "forebay_dataset", "forebay_tests", "tonic"]),
    ("python/src", &["forebay_server", "forebay_train", "forebay_tests", "tonic"]),
    ("trainer/c10d/src", &["forebay_proto", "forebay_client", "forebay_dataset", "forebay_server", "tokio"]),
    ("tests/src", &["forebay_server"]),
];

/// Words that only some files of a folder may contain.
const KNOWERS: [(&str, &str, &[&str]); 5] = [
    ("cache-server/src", "etcd_client", &["cluster/membership/"]),
    ("cache-server/src", "tonic", &["service.rs", "service/", "server.rs", "cluster/peers/client.rs"]),
    ("cache-server/src", "memmap2", &["disk/map.rs"]),
    ("dataset/src", "object_store", &["source.rs", "source/"]),
    ("dataset/src", "memmap2", &["shared/", "pool/memory.rs"]),
];

#[test]
fn dependencies_run_one_way() {
    let mut wrong = Vec::new();
    for (folder, forbidden) in FORBIDDEN {
        for source in
            sources(folder, &[".rs"]).iter().filter(|source| !source.path[folder.len()..].contains("tests"))
        {
            for (number, line) in source.code() {
                let found = forbidden.iter().filter(|word| line.contains(**word));
                wrong.extend(found.map(|word| format!("{}:{number}: {word}", source.path)));
            }
        }
        // What no source names, no manifest should either.
        let manifest = root().join(folder.trim_end_matches("/src")).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("read a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for word in forbidden.iter().filter(|word| word.starts_with("forebay_")) {
            let name = word.replace('_', "-");
            wrong.extend(dependencies.contains(&name).then(|| format!("{folder}: depends on {name}")));
        }
    }
    assert!(wrong.is_empty(), "crates that know what they must not:\n{}", wrong.join("\n"));
}

#[test]
fn only_those_who_may_know_do() {
    let mut wrong = Vec::new();
    for (folder, word, knowers) in KNOWERS {
        let mut known = false;
        for source in
            sources(folder, &[".rs"]).iter().filter(|source| !source.path[folder.len()..].contains("tests"))
        {
            let name = source.path.trim_start_matches(folder).trim_start_matches('/');
            let may = knowers
                .iter()
                .any(|knower| name == *knower || knower.ends_with('/') && name.starts_with(knower));
            let mut lines = source.code().filter(|(_, line)| line.contains(word)).peekable();
            known |= may && lines.peek().is_some();
            if !may {
                wrong.extend(lines.map(|(number, line)| format!("{}:{number}: {line}", source.path)));
            }
        }
        assert!(known, "nobody in {folder} knows {word} any more: correct the rule");
    }
    assert!(wrong.is_empty(), "files that know what is others' business:\n{}", wrong.join("\n"));
}

#[test]
fn modules_are_private_unless_used_outside() {
    let used = paths_between_crates();
    let mut found = Offenders::new();
    for (folder, name) in CRATES {
        for (path, module) in modules(folder) {
            for child in &module.public {
                let full = [&[name.to_owned()], &path[..], std::slice::from_ref(child)].concat();
                let is_used = used.iter().any(|path| path.starts_with(&full));
                found.extend((!is_used).then(|| (full.join("::"), 1)));
            }
        }
    }
    rules::check("public-modules", "modules that are `pub`, but that no other crate uses", &found);
}

/// Paths into the crates from their programs, tests and benchmarks, and from other crates.
fn paths_between_crates() -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    for source in sources("", &[".rs"]) {
        let all = crate::modules::of(&source);
        found.extend(all.into_values().flat_map(|module| module.paths));
    }
    found.retain(|path| CRATES.iter().any(|(_, name)| path[0] == *name));
    found
}
