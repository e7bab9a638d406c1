//! tests/mutations: each sabotage can still be done to the code as it is, and the tests that have to notice
//! it are there. `make mutate` does them, which takes an hour; a patch that no longer applies would be found
//! only then.

use crate::source::{Source, root, sources};
use std::path::PathBuf;
use std::process::Command;

fn patches() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("tests/mutations")).expect("read tests/mutations");
    let mut patches: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    patches.sort();
    patches
}

#[test]
fn every_sabotage_applies() {
    let patches = patches();
    let stale: Vec<String> = patches
        .iter()
        .filter_map(|patch| {
            let mut check = Command::new("git");
            check.args(["apply", "--check"]).arg(patch).current_dir(root());
            let checked = check.output().expect("run git");
            (!checked.status.success()).then(|| String::from_utf8_lossy(&checked.stderr).into_owned())
        })
        .collect();
    assert!(patches.len() >= 15, "{} sabotages only", patches.len());
    assert!(stale.is_empty(), "{} no longer apply:\n{}", stale.len(), stale.concat());
}

/// A sabotage names them as `scripts/mutate.py` says: the kind is a library, whose unit tests are meant, or a
/// test target.
#[test]
fn the_tests_that_have_to_notice_exist() {
    let (all, mut gone) = (sources("", &[".rs"]), Vec::new());
    for patch in patches() {
        let text = std::fs::read_to_string(&patch).expect("read a sabotage");
        for named in text.lines().filter_map(|line| line.strip_prefix("Noticed by: ")) {
            let (kind, name) = named.split_once(' ').unwrap_or((named, ""));
            let folder = match kind.strip_prefix("forebay_") {
                Some("server") => "cache-server/src".to_owned(),
                Some(library) => format!("{library}/src"),
                None => format!("tests/tests/{kind}"),
            };
            if !all.iter().any(|source| source.path.starts_with(&folder) && has_test(source, name)) {
                gone.push(format!("{}: {named}", patch.display()));
            }
        }
    }
    assert!(gone.is_empty(), "tests of sabotages that are not there:\n{}", gone.join("\n"));
}

/// Whether a file has the modules of a name and the function, or module, whose name begins as its last part.
fn has_test(source: &Source, name: &str) -> bool {
    let is_in = |module: &str| {
        let in_path = |end: &str| source.path.contains(&format!("/{module}{end}"));
        in_path("/") || in_path(".rs") || source.text.contains(&format!("mod {module} {{"))
    };
    let (modules, last) = name.rsplit_once("::").unwrap_or(("", name));
    let has_modules = modules.split("::").filter(|module| !module.is_empty()).all(is_in);
    has_modules && !last.is_empty() && (is_in(last) || source.text.contains(&format!("fn {last}")))
}

#[test]
fn a_test_that_is_gone_is_seen() {
    let text = "mod tests {\n    #[test]\n    fn a_miss_is_a_miss() {}\n}\n".to_owned();
    let source = Source { path: "cache-server/src/disk/map.rs".into(), text };
    for there in ["disk::map::tests::a_miss", "a_miss_is_a_miss", "disk::map"] {
        assert!(has_test(&source, there), "{there}");
    }
    for gone in ["disk::map::tests::a_hit", "disk::other::a_miss", "a_hit", ""] {
        assert!(!has_test(&source, gone), "{gone}");
    }
}
