//! tests/mutations: each sabotage can still be done to the code as it is. `make mutate` does them, which
//! takes an hour; a patch that no longer applies would be found only then.

use crate::source::root;
use std::process::Command;

#[test]
fn every_sabotage_applies() {
    let folder = root().join("tests/mutations");
    let files = std::fs::read_dir(&folder).expect("read tests/mutations");
    let mut patches: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    patches.sort();
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
