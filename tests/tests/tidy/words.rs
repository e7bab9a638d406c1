//! Plain English, and nothing left for later.

use crate::ratchet::{self, Offenders};
use crate::source::{Source, sources};

/// Words that make a reader parse a sentence twice, or that say nothing. Write the noun, and the subject
/// first.
const FORBIDDEN: [&str; 8] =
    ["anew", "whoever", "whomever", "so many", "what is", "by now", "so as to", "answers with"];

const PLACES: [&str; 7] = [".rs", ".proto", ".md", ".py", ".sh", ".toml", "Makefile"];

fn is_this(source: &Source) -> bool {
    source.path.starts_with("tests/tests/tidy/")
}

#[test]
fn english_is_plain() {
    let mut found = Offenders::new();
    for source in sources("", &PLACES).iter().filter(|source| !is_this(source)) {
        let text = source.text.to_lowercase();
        // A sentence may run over a line's end.
        let text = text
            .lines()
            .map(|line| line.trim_start_matches([' ', '/', '!', '#', '*']))
            .collect::<Vec<_>>()
            .join(" ");
        let times = FORBIDDEN.iter().map(|words| occurrences(&text, words)).sum();
        found.extend((times > 0).then(|| (source.path.clone(), times)));
    }
    ratchet::check("words", &format!("texts with one of {FORBIDDEN:?}"), &found);
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
