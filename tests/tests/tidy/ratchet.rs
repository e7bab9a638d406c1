//! Rules that do not hold everywhere yet: today's offenders are listed in `allowed/RULE.txt`, and the lists
//! only shrink.
//!
//! A rule fails on an offender that is not listed, on one that offends more often than its line says, and on
//! a line whose offender has been mended. `TIDY_WRITE=1 cargo test --workspace --test tidy` writes the
//! lists as they are now.

use crate::source::root;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Offenders, and how often each offends.
pub type Offenders = BTreeMap<String, usize>;

/// Holds the offenders found against the list of a rule. `advice` says how to mend one.
pub fn check(rule: &str, advice: &str, found: &Offenders) {
    if std::env::var_os("TIDY_WRITE").is_some() {
        return write(rule, found);
    }
    let allowed = allowed(rule);
    let mut wrong = Vec::new();
    for (name, times) in found {
        match allowed.get(name) {
            None => wrong.push(format!("{name} ({times}): new")),
            Some(before) if times > before => wrong.push(format!("{name}: {times}, was {before}")),
            Some(_) => {}
        }
    }
    let mended = allowed.keys().filter(|name| !found.contains_key(*name));
    wrong.extend(mended.map(|name| format!("{name}: mended; take it off the list")));
    assert!(wrong.is_empty(), "{rule}: {advice} (list: {}):\n{}", path(rule).display(), wrong.join("\n"));
}

/// The lines of a rule's list.
pub fn allowed(rule: &str) -> Offenders {
    let text = std::fs::read_to_string(path(rule)).unwrap_or_default();
    let line = |line: &str| {
        let (times, name) = line.split_once(' ')?;
        Some((name.to_owned(), times.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn write(rule: &str, found: &Offenders) {
    let text: String = found.iter().map(|(name, times)| format!("{times} {name}\n")).collect();
    match text.is_empty() {
        true => std::fs::remove_file(path(rule)).unwrap_or_default(),
        false => std::fs::write(path(rule), text).expect("write a list"),
    }
}

fn path(rule: &str) -> PathBuf {
    root().join(format!("tests/tests/tidy/allowed/{rule}.txt"))
}
