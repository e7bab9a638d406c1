//! Documentation that says something: every file what it is for, and no item only its own name.

use crate::rules::{self, Offenders};
use crate::source::{Source, sources};

/// Words that carry no meaning of their own.
const EMPTY: [&str; 32] = [
    "a", "an", "the", "its", "of", "this", "it", "is", "which", "that", "in", "are", "where", "their", "for",
    "all", "to", "has", "with", "and", "at", "on", "by", "new", "one", "makes", "gets", "returns", "sets",
    "what", "from", "be",
];

#[test]
fn every_file_says_what_it_is_for() {
    let says_nothing = |source: &Source| !source.is_tests() && !source.text.starts_with("//! ");
    let wrong: Vec<_> = sources("", &[".rs"]).into_iter().filter(says_nothing).map(|s| s.path).collect();
    assert!(wrong.is_empty(), "files without a `//!` at their top:\n{}", wrong.join("\n"));
}

#[test]
fn no_docstring_only_restates_its_name() {
    let mut found = Offenders::new();
    for source in sources("", &[".rs"]).iter().filter(|source| source.is_product()) {
        let times = restatements(source.without_tests());
        found.extend((times > 0).then(|| (source.path.clone(), times)));
    }
    rules::check("docstrings", "public items whose docs only restate their names", &found);
}

/// Public items with a doc of one line, all of whose words are in the item's name or say nothing.
fn restatements(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut times = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some(doc) = line.strip_prefix("/// ") else { continue };
        let starts = at == 0 || !lines[at - 1].starts_with("///");
        let item = lines[at + 1..].iter().find(|line| !line.starts_with("#["));
        let item = item.and_then(|item| item.strip_prefix("pub ")).filter(|_| starts);
        times += usize::from(item.is_some_and(|item| restates(doc, item)));
    }
    times
}

fn restates(doc: &str, item: &str) -> bool {
    let item = item.trim_start_matches("const ").trim_start_matches("async ").trim_start_matches("fn ");
    let item = ["struct ", "enum ", "trait ", "mod ", "type ", "static "]
        .iter()
        .fold(item, |item, keyword| item.trim_start_matches(keyword));
    let name = item.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    // `SegmentSet` is `segment_set`.
    let name: String = name
        .chars()
        .flat_map(|c| [if c.is_uppercase() { '_' } else { ' ' }, c.to_ascii_lowercase()])
        .filter(|c| *c != ' ')
        .collect();
    let names: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).map(stem).collect();
    let doc = doc.to_lowercase();
    let mut words = doc.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.all(|word| EMPTY.contains(&word) || names.contains(&stem(word)))
}

fn stem(word: &str) -> &str {
    word.strip_suffix("ies").or_else(|| word.strip_suffix('s')).unwrap_or(word)
}

#[test]
fn restatements_are_seen() {
    assert!(restates("The columns.", "columns: Vec<String>,"));
    assert!(restates("Where it is.", "place: usize,"));
    assert!(restates("A segment set.", "struct SegmentSet {"));
    assert!(!restates("By ascending index into the schema.", "columns: Vec<usize>,"));
    assert!(!restates("Rows that belong to the dataset.", "rows: u64,"));
}
