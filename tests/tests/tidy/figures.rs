//! The commits that figures in the docs are of: each is in the history or marked as lost, and tables older
//! than the code that they measure are listed.

use crate::source::{root, sources};
use std::collections::BTreeSet;
use std::process::{Command, Output};

/// Commits of before the history was rewritten. The docs say so beside each.
const LOST: [&str; 9] =
    ["400265d", "4c9cfc1", "82134f0", "af5b335", "b492fb2", "d1f86d4", "d64b92a", "e1b0ee5", "fa67887"];

/// What stands beside each of them.
const MARK: &str = " (not in this history)";

/// Words before the commit of a table. Others, as in "at `..`", are of figures to compare with.
const TABLE: [&str; 3] = ["igures of ", "igures are of ", "run of "];

/// What nearly all benchmarks measure.
const READ_PATH: [&str; 4] = ["proto/src", "dataset/src", "cache-server/src", "client/src"];

/// Sections of docs/benchmarks.md, and what they measure beside the read path.
const MEASURED: [(&str, &[&str]); 10] = [
    ("make demo", &["tests/src/bin", "trainer/src"]),
    ("make bench-order", &["tests/src/bench/order", "tests/src/bench/order.rs", "trainer/src"]),
    ("make bench-store", &["tests/src/bench/disk", "tests/src/bench/disk.rs"]),
    ("make bench-cluster", &["tests/src/bench/cluster", "tests/src/bench/cluster.rs"]),
    ("make bench-epoch", &["tests/src/bench/epoch.rs"]),
    ("make bench-warm", &["tests/src/bench/warm", "tests/src/bench/warm.rs"]),
    ("make bench-raw", &["tests/src/bench/raw", "tests/src/bench/raw.rs"]),
    ("make bench-python", &["tests/src/bench/python", "tests/src/bench/python.rs", "python/src"]),
    ("make bench-real", &["tests/src/bench/real", "tests/src/bench/real.rs", "trainer/src"]),
    ("make bench-train", &["tests/src/bench/train", "tests/src/bench/train.rs", "trainer"]),
];

#[test]
fn commits_of_figures_are_in_the_history_or_marked_as_lost() {
    let (docs, history) = (sources("", &[".md"]), has_history());
    let mut wrong = Vec::new();
    for source in &docs {
        let text = joined(&source.text);
        for (commit, after) in commits(&text) {
            let (is_lost, is_marked) = (LOST.contains(&commit), after.starts_with(MARK));
            if is_lost != is_marked {
                let what =
                    if is_lost { "is lost: say so with" } else { "is not known to be lost: leave out" };
                wrong.push(format!("{}: `{commit}` {what} \"{}\"", source.path, MARK.trim()));
            } else if history && !is_lost && !is_in_history(commit) {
                wrong.push(format!("{}: `{commit}` is not in the history", source.path));
            }
        }
    }
    let named: BTreeSet<_> = docs.iter().flat_map(|source| named(&source.text)).collect();
    let gone = LOST.iter().filter(|lost| !named.contains(**lost));
    wrong.extend(gone.map(|lost| format!("`{lost}`: nothing names it; take it off the list")));
    assert!(wrong.is_empty(), "commits that figures are of:\n{}", wrong.join("\n"));
}

/// Tables whose commit is lost, or older than a change of the code that they measure.
pub fn stale() -> Vec<String> {
    if !has_history() {
        return vec!["not known: the history is not here".into()];
    }
    let text = std::fs::read_to_string(root().join("docs/benchmarks.md")).expect("read the benchmarks");
    let age = |(section, commit): (String, String)| {
        if LOST.contains(&commit.as_str()) {
            return Some(format!("{section}, {commit}: lost"));
        }
        let measured = MEASURED.iter().find(|(name, _)| *name == section).map_or(&[][..], |(_, code)| code);
        let range = format!("{commit}..HEAD");
        let changes = git(&[&["rev-list", "--count", &range, "--"], &READ_PATH[..], measured].concat());
        let changes = String::from_utf8_lossy(&changes.stdout).trim().to_owned();
        (changes != "0")
            .then(|| format!("{section}, {commit}: {changes} later commits change what it measures"))
    };
    tables(&text).into_iter().filter_map(age).collect()
}

/// The sections of tables, and the commits that these are of.
fn tables(text: &str) -> Vec<(String, String)> {
    let mut tables = Vec::new();
    for section in text.split("\n## ").skip(1) {
        let (title, text) = section.split_once('\n').unwrap_or((section, ""));
        let text = joined(text);
        let of = |(commit, after): (&str, &str)| {
            let before = &text[..text.len() - after.len() - commit.len() - 2];
            TABLE.iter().any(|words| before.ends_with(words)).then(|| commit.to_owned())
        };
        let commits: BTreeSet<String> = commits(&text).into_iter().filter_map(of).collect();
        tables.extend(commits.into_iter().map(|commit| (title.replace('`', ""), commit)));
    }
    tables
}

/// On one line, as sentences go on over the ends of lines.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The names of commits in backticks, and the text after each.
fn commits(text: &str) -> Vec<(&str, &str)> {
    let mut commits = Vec::new();
    let is_commit = |name: &str| {
        let is_hex = name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        name.len() == 7 && is_hex && name.bytes().any(|b| b.is_ascii_digit())
    };
    for (start, _) in text.match_indices('`') {
        if let Some((name, after)) = text[start + 1..].split_once('`')
            && is_commit(name)
        {
            commits.push((name, after));
        }
    }
    commits
}

fn named(text: &str) -> Vec<String> {
    commits(text).into_iter().map(|(commit, _)| commit.to_owned()).collect()
}

/// Whether all commits are here: not in a tarball or a shallow clone.
fn has_history() -> bool {
    git(&["rev-parse", "--is-shallow-repository"]).stdout == b"false\n"
}

fn is_in_history(commit: &str) -> bool {
    git(&["merge-base", "--is-ancestor", commit, "HEAD"]).status.success()
}

fn git(args: &[&str]) -> Output {
    Command::new("git").current_dir(root()).args(args).output().expect("run git")
}

#[test]
fn tables_and_their_commits_are_seen() {
    let text = "# B\n\n## `make demo`\nFigures of\n`0123abc`, at `1234567` too. `abcdefa` `x`.\n## C\nOne run of `89abcd0` (not in this history).\n";
    let seen: Vec<_> = tables(text);
    let wanted = [("make demo", "0123abc"), ("C", "89abcd0")].map(|(s, c)| (s.to_owned(), c.to_owned()));
    assert_eq!(seen, wanted);
    assert_eq!(named(text), ["0123abc", "1234567", "89abcd0"]);
    assert!(!is_in_history("0000000"));
}
