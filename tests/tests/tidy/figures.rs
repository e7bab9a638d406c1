//! The commits that figures in the docs are of: each is in the history or marked as lost, and tables older
//! than the code that they measure are listed.

use crate::source::{Source, root, sources};
use std::collections::BTreeSet;
use std::process::{Command, Output};

/// Commits of before the history was rewritten. The docs say so beside each.
const LOST: [&str; 7] = ["4c9cfc1", "82134f0", "af5b335", "b492fb2", "d1f86d4", "d64b92a", "fa67887"];

/// What stands beside each of them.
const MARK: &str = " (not in this history)";

/// Words before a commit whose figures a section gives, in lower case. A bracket opens the commit of one row
/// of a table. Others, as in "at `..`" or "the programs of `..`", are mostly of figures to compare with.
const CLAIMS: [&str; 8] = [
    "figures of ",
    "figures are of ",
    "run of ",
    "runs of ",
    "the same of ",
    "code is that of ",
    ", programs of ",
    "(",
];

/// A word before a commit whose figures a section gives if a verdict stands behind it in the same sentence.
const JUDGED: &str = " at ";

/// Headers of tables that say what rows mean, or which data there is, and have no figures.
const MEANINGS: [&str; 6] = [
    "| row | meaning | target |",
    "| row | meaning |",
    "| row | target | |",
    "| data | rows | Parquet | batch of a rank |",
    "| `decode.{X,T,B}` | meaning |",
    "| subject (`peers.{X,T,B}.` before it) | what it does |",
];

/// What nearly all benchmarks measure.
const READ_PATH: [&str; 4] = ["proto/src", "dataset/src", "cache-server/src", "client/src"];

/// What they measure with: the object store, the slow network, the readers.
const HARNESS: &str = "tests/src/harness";

/// Sections of docs/benchmarks.md, and what they measure beside the read path.
const MEASURED: [(&str, &[&str]); 14] = [
    ("make demo", &["tests/src/demo", "tests/src/demo.rs", "trainer/src", "client/cli"]),
    ("make bench-order", &["tests/src/bench/order", "tests/src/bench/order.rs", "trainer/src"]),
    (
        "make bench-store",
        &["tests/src/bench/disk", "tests/src/bench/disk.rs", "tests/shim", "trainer/src", "client/cli"],
    ),
    ("make bench-cluster", &["tests/src/bench/cluster", "tests/src/bench/cluster.rs"]),
    (
        "make bench-content",
        &["tests/src/bench/cluster/content", "tests/src/bench/cluster/content.rs", "client/cli"],
    ),
    ("make bench-epoch", &["tests/src/bench/epoch.rs", "client/cli"]),
    ("make bench-warm", &["tests/src/bench/warm", "tests/src/bench/warm.rs"]),
    ("make bench-raw", &["tests/src/bench/raw", "tests/src/bench/raw.rs", "client/cli"]),
    (
        "make bench-python",
        &["tests/src/bench/python", "tests/src/bench/python.rs", "python/src", "python/forebay"],
    ),
    ("make bench-real", &["tests/src/bench/real", "tests/src/bench/real.rs", "trainer/src", "client/cli"]),
    (
        "make bench-peers",
        &["tests/src/bench/peers", "tests/src/bench/peers.rs", "tests/peers", "python/src", "python/forebay"],
    ),
    ("make bench-tls", &["tests/src/bench/tls.rs", "tls/src", "client/cli"]),
    ("make bench-train", &["tests/src/bench/train", "tests/src/bench/train.rs", "trainer", "client/cli"]),
    ("make mutate", &["tests/mutations", "tests/tests", "trainer/src", "python", "client/cli"]),
];

/// Sections whose figures know nothing of the read path and of the harness, and what they measure.
const MEASURED_ALONE: [(&str, &[&str]); 2] = [
    ("make parity", &["tests/parity", "tests/src/bin/forebay-parity.rs", "trainer/c10d"]),
    ("DDP's own figures", &["tests/src/bin/forebay-ddp-figures.rs", "trainer/c10d"]),
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
        let changed = changed_code(&commit, &code(&section)?);
        if changed.is_empty() {
            return None;
        }
        let range = format!("{commit}..HEAD");
        let paths: Vec<&str> = changed.iter().map(String::as_str).collect();
        let changes = git(&[&["rev-list", "--count", &range, "--"], &paths[..]].concat());
        let changes = String::from_utf8_lossy(&changes.stdout).trim().to_owned();
        Some(format!("{section}, {commit}: {changes} later commits change what it measures, or how"))
    };
    tables(&text).into_iter().filter_map(age).collect()
}

/// The files of `code` that a commit had otherwise. Unit tests, comments and stubs do not count: no figure
/// depends on them.
fn changed_code(commit: &str, code: &[&str]) -> Vec<String> {
    let range = format!("{commit}..HEAD");
    let names = git(&[&["diff", "--no-renames", "--name-only", &range, "--"], code].concat());
    let before = |path: &str| {
        let file = git(&["show", &format!("{commit}:{path}")]);
        file.status.success().then(|| String::from_utf8_lossy(&file.stdout).into_owned())
    };
    let now = |path: &str| std::fs::read_to_string(root().join(path)).ok();
    let is_changed =
        |path: &&str| !has_only_tests(path) && before(path).map(code_of) != now(path).map(code_of);
    String::from_utf8_lossy(&names.stdout).lines().filter(is_changed).map(str::to_owned).collect()
}

/// Whether a file is of unit tests or types alone. What lies in `tests/` at the top measures.
fn has_only_tests(path: &str) -> bool {
    let is_test = |part: &str| matches!(part, "tests" | "tests.rs");
    path.ends_with(".pyi") || !path.starts_with("tests/") && path.split('/').any(is_test)
}

/// The lines of a file without the unit tests at its end, and without comments of Rust. Indented as they are:
/// that has a meaning in Python.
fn code_of(text: String) -> Vec<String> {
    let file = Source { path: String::new(), text };
    let is_code = |line: &&str| !line.is_empty() && *line != "#[cfg(test)]";
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    file.without_tests().lines().filter(is_code).filter(|line| !is_comment(line)).map(str::to_owned).collect()
}

/// What the figures of a section depend on; none of a section that is not known.
fn code(section: &str) -> Option<Vec<&'static str>> {
    let of = |known: &[(&str, &'static [&'static str])]| {
        known.iter().find(|(name, _)| *name == section).map(|(_, code)| code.to_vec())
    };
    let with_path = |code: Vec<&'static str>| [&READ_PATH[..], &[HARNESS], &code].concat();
    of(&MEASURED).map(with_path).or_else(|| of(&MEASURED_ALONE))
}

/// The sections of a text: title and text.
fn sections(text: &str) -> impl Iterator<Item = (String, &str)> {
    text.split("\n## ").skip(1).map(|section| {
        let (title, text) = section.split_once('\n').unwrap_or((section, ""));
        (title.replace('`', ""), text)
    })
}

/// The sections of tables, and the commits that these are of.
fn tables(text: &str) -> Vec<(String, String)> {
    let mut tables = Vec::new();
    for (title, text) in sections(text) {
        let mut found = claimed(text, claims_figures);
        if found.is_empty() {
            found = claimed(text, is_all_there_is);
        }
        tables.extend(found.into_iter().map(|commit| (title.clone(), commit)));
    }
    tables
}

/// The commits of which a text claims that figures are, by the words around them.
fn claimed(text: &str, claims: fn(&str, &str) -> bool) -> BTreeSet<String> {
    let text = joined(text);
    let claimed = commits(&text).into_iter().filter(|(commit, after)| {
        claims(&text[..text.len() - after.len() - commit.len() - 2].to_lowercase(), after)
    });
    claimed.map(|(commit, _)| commit.to_owned()).collect()
}

/// The headers of a section's tables of figures that name no commit: neither in the table nor in the
/// paragraph right before it, which tables that follow each other share. One that the section's first
/// paragraph names, and no other, is that of all its tables.
fn nameless(section: &str) -> Vec<&str> {
    let names = |text: &str| claimed(text, claims_figures);
    let blocks = || section.trim_start().split("\n\n").map(paragraph_and_table);
    let is_of_all = blocks().next().is_some_and(|(first, _)| names(first).len() == 1);
    let (mut nameless, mut before) = (Vec::new(), "");
    for (paragraph, table) in blocks() {
        if !paragraph.trim().is_empty() {
            before = paragraph;
        }
        let header = table.lines().next().unwrap_or_default();
        let has_figures = table.contains("|---") && !MEANINGS.contains(&header);
        if has_figures && !is_of_all && names(before).is_empty() && names(table).is_empty() {
            nameless.push(header);
        }
    }
    nameless
}

/// The lines of a block before its table, and those of the table.
fn paragraph_and_table(block: &str) -> (&str, &str) {
    let start = if block.starts_with('|') { Some(0) } else { block.find("\n|").map(|at| at + 1) };
    block.split_at(start.unwrap_or(block.len()))
}

/// Whether the words around a commit claim that figures are of it.
fn claims_figures(before: &str, after: &str) -> bool {
    // The sentence goes on up to a full stop that is no decimal point.
    let rest = after.split(". ").next().unwrap_or_default();
    let is_judged = rest.contains("PASS") || rest.contains("FAIL");
    CLAIMS.iter().any(|words| before.ends_with(words))
        || is_judged && before.ends_with(JUDGED) && !begins(before)
}

/// "At `..`": figures to compare with, or where a section has no others its own.
fn is_all_there_is(before: &str, _: &str) -> bool {
    begins(before)
}

/// Whether the words end in the "at" that a sentence begins with.
fn begins(before: &str) -> bool {
    let Some(before) = before.strip_suffix("at ") else { return false };
    before.is_empty() || [". ", "| ", ": ", "** "].iter().any(|end| before.ends_with(end))
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
fn each_table_names_its_commit_and_what_it_measures() {
    let text = std::fs::read_to_string(root().join("docs/benchmarks.md")).expect("read the benchmarks");
    let tables = tables(&text);
    let mut wrong = Vec::new();
    for (section, text) in sections(&text) {
        let names = tables.iter().any(|(of, _)| *of == section);
        let headers = nameless(text).into_iter();
        wrong.extend(headers.map(|header| format!("{section}: of which commit are the figures of {header}")));
        if names && code(&section).is_none() {
            wrong.push(format!("{section}: MEASURED does not say which code it measures"));
        }
    }
    let all = MEASURED.iter().chain(&MEASURED_ALONE).flat_map(|(_, code)| *code);
    let all = all.chain(&READ_PATH).chain([&HARNESS]);
    let gone = all.filter(|path| !root().join(path).exists());
    wrong.extend(gone.map(|path| format!("{path}: is no file or folder")));
    assert!(wrong.is_empty(), "tables of docs/benchmarks.md:\n{}", wrong.join("\n"));
}

#[test]
fn a_table_that_names_no_commit_is_seen() {
    let table = "| figure | value |\n|---|---|\n| x | 1 |";
    let of = |paragraphs: &[&str]| nameless(&paragraphs.join("\n\n")).len();
    assert_eq!(of(&["A benchmark.", table, "Figures of `1234abc`:", table, table]), 1);
    assert_eq!(of(&["A benchmark.", "Figures of `1234abc`:", table, "On another machine:", table]), 1);
    assert_eq!(of(&["A benchmark.", "The rest:", "| figure | run of `1234abc` |\n|---|---|"]), 0);
    let of_all = "A benchmark. Figures of\n`1234abc`.";
    assert_eq!(of(&[of_all, table, "By two ranks:", table, &format!("By three:\n{table}")]), 0);
    let of_two = "Figures of `1234abc`, those of two ranks are of a run of `abcd123`.";
    assert_eq!(of(&[of_two, table, "By two ranks:", table]), 1);
    assert_eq!(of(&["A benchmark.", "| row | meaning |\n|---|---|\n| x | what it counts |"]), 0);
}

#[test]
fn a_table_is_as_old_as_what_measures_it() {
    let depends = |section| code(section).is_some_and(|code| code.contains(&HARNESS));
    assert!(depends("make bench-cluster") && depends("make bench-store"));
    assert!(!depends("make parity") && !depends("no such section"));
}

#[test]
fn unit_tests_and_comments_make_no_table_old() {
    let paths = ["proto/src/plan/tests.rs", "client/src/loader/tests/world.rs", "python/tests/test_ray.py"];
    for path in paths.into_iter().chain(["python/forebay/_forebay.pyi"]) {
        assert!(has_only_tests(path), "{path}");
    }
    for path in ["tests/src/harness/s3.rs", "tests/tests/tidy/figures.rs", "proto/src/ring.rs"] {
        assert!(!has_only_tests(path), "{path}");
    }
    let (code, tests) = ("fn a() {}\n", "\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n");
    let sound = code_of(code.to_owned());
    assert_eq!(code_of(format!("{code}{tests}")), sound);
    assert_eq!(code_of(format!("/// What it is.\n{code}")), sound);
    assert_ne!(code_of(format!("fn c() {{}}\n{tests}")), sound);
    assert_ne!(code_of(format!("  {code}")), sound);
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

#[test]
fn each_form_of_a_claim_is_seen_and_comparisons_are_not() {
    let seen = |sentence: &str| {
        let found = tables(&format!("# B\n\n## `make bench-x`\nOne run of `0000001`. {sentence}\n"));
        found.into_iter().any(|(_, commit)| commit == "1234abc")
    };
    for claim in [
        "Figures of `1234abc`, medians:",
        "The figures are of `1234abc`: one quiet run.",
        "Run of `1234abc`, n = 5, on two cores.",
        "**Beside others**: runs of `1234abc`, shape by shape.",
        "On a noisy machine, n = 5, programs of `1234abc`: 0.60.",
        "One run, n = 5. The code is that of `1234abc` but for a bound:",
        "| `row` | 4 | 2.25, in order: **FAIL** (`1234abc`, below) |",
        "The row is 0.488 (0.465 to 0.585) at `1234abc`, 0.5 wanted: **FAIL**.",
        "The part was run again at `1234abc`: 20 kills: PASS.",
    ] {
        assert!(seen(claim), "no claim: {claim}");
    }
    for comparison in [
        "At `1234abc`, on a slower machine, the row was 0.50: PASS.",
        "It was 15.7 ms with the programs of `1234abc`.",
        "In the same rounds the programs of `1234abc`, of before, are read. The row is 0.9: PASS.",
        "Since `1234abc` pages come when they are used.",
        "The row was 0.44 at `1234abc`. Now it is 0.5: PASS.",
        "| at `1234abc`, on a slower machine | 1.90: FAIL |",
    ] {
        assert!(!seen(comparison), "a claim: {comparison}");
    }
    let alone =
        tables("# B\n\n## `make mutate`\nAt `1234abc` (39 minutes) all were noticed, 23 at `0000001`.\n");
    assert_eq!(alone, [("make mutate".to_owned(), "1234abc".to_owned())], "where a section has no others");
}
