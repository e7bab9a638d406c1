//! Plain English, and nothing left for later.

use crate::rules::{self, Offenders};
use crate::source::{Source, sources};

/// Words that make a reader parse a sentence twice, or that say nothing. Write the noun, and the subject
/// first.
const FORBIDDEN: [&str; 8] =
    ["anew", "whoever", "whomever", "so many", "what is", "by now", "so as to", "answers with"];

/// "Store" alone: it could be the object store, or the disk cache.
const BARE_STORES: [&str; 5] = ["the store", "a store", "our store", "its store", "another store"];

/// Where a store is PyTorch's, which ranks meet at. CHANGELOG.md has the words of its time.
const OTHER_STORES: [&str; 5] =
    ["trainer/c10d/", "trainer/c10d-nccl/", "trainer/src/rank/", "docs/trainer.md", "CHANGELOG.md"];

const PLACES: [&str; 7] = [".rs", ".proto", ".md", ".py", ".sh", ".toml", "Makefile"];

fn is_this(source: &Source) -> bool {
    source.path.starts_with("tests/tests/tidy/")
}

#[test]
fn english_is_plain() {
    let mut found = Offenders::new();
    for source in sources("", &PLACES).iter().filter(|source| !is_this(source)) {
        let text = joined(&source.text);
        let times = FORBIDDEN.iter().map(|words| occurrences(&text, words)).sum();
        found.extend((times > 0).then(|| (source.path.clone(), times)));
    }
    rules::check("words", &format!("texts with one of {FORBIDDEN:?}"), &found);
}

#[test]
fn a_store_is_an_object_store() {
    let mut wrong = Vec::new();
    for source in sources("", &[".rs", ".proto", ".md", ".py"]).iter().filter(|source| names_stores(source)) {
        let text = joined(source.without_tests());
        let bare = BARE_STORES.into_iter().filter(|words| occurrences(&text, words) > 0);
        let owned = occurrences(&text, "store's") > occurrences(&text, "object store's");
        wrong.extend(bare.chain(owned.then_some("store's")).map(|words| format!("{}: {words}", source.path)));
    }
    assert!(wrong.is_empty(), "say \"object store\" or \"disk cache\":\n{}", wrong.join("\n"));
}

/// Sources of the product and docs, but for those of [`OTHER_STORES`].
fn names_stores(source: &Source) -> bool {
    let path = &source.path;
    let is_ours = source.is_product()
        || ["proto/proto/", "python/forebay/"].iter().any(|folder| path.starts_with(folder))
        || path.ends_with(".md");
    is_ours && !OTHER_STORES.iter().any(|other| path.starts_with(other))
}

/// A text on one line, without what begins comments: a sentence may run over a line's end.
fn joined(text: &str) -> String {
    let text = text.to_lowercase();
    let lines = text.lines().map(|line| line.trim_start_matches([' ', '/', '!', '#', '*']));
    lines.collect::<Vec<_>>().join(" ")
}

/// How often whole words occur in a text.
fn occurrences(text: &str, words: &str) -> usize {
    let is_end = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    let is_whole = |at: &usize| {
        is_end(text[..*at].chars().next_back()) && is_end(text[at + words.len()..].chars().next())
    };
    text.match_indices(words).map(|(at, _)| at).filter(is_whole).count()
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that a plain search for them finds no rule.
    let words = [["to", "do!("], ["unimple", "mented!("], ["FIX", "ME"], ["XX", "X"], ["TO", "DO"]]
        .map(|w| w.concat());
    let mut wrong = Vec::new();
    for source in sources("", &[".cpp", ".h"]).iter().chain(&sources("", &PLACES)).filter(|s| !is_this(s)) {
        for (number, line) in source.lines() {
            let found = words.iter().filter(|word| line.contains(word.as_str()));
            wrong.extend(found.map(|word| format!("{}:{number}: {word}", source.path)));
        }
    }
    assert!(wrong.is_empty(), "left for later:\n{}", wrong.join("\n"));
}
