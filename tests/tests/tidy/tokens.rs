//! Just enough of Rust's grammar: words, `::` and single characters, without comments, strings and
//! attributes' content.

/// A piece of code, and its line, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Cuts code into tokens.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest).unwrap_or_else(|| {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match first {
                c if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            if !first.is_whitespace() {
                found.push(Token { text: &rest[..length], line });
            }
            length
        });
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// The length of a comment, string or character at the beginning of `rest`.
fn skipped(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(rest.find("*/").map_or(rest.len(), |at| at + 2));
    }
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|p| {
        let after = rest.strip_prefix(p);
        let raw = p.ends_with('r');
        after.is_some_and(|after| {
            after.starts_with('"')
                || raw && after.trim_start_matches('#').starts_with('"') && after.starts_with('#')
        })
    });
    if let Some(prefix) = prefix {
        let after = &rest[prefix.len()..];
        if prefix.ends_with('r') {
            let hashes = after.len() - after.trim_start_matches('#').len();
            let end = format!("\"{}", "#".repeat(hashes));
            let start = prefix.len() + hashes + 1;
            return Some(rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len()));
        }
        return Some(prefix.len() + quoted(after, '"'));
    }
    let after = rest.strip_prefix('\'').or_else(|| rest.strip_prefix("b'"))?;
    let mut inside = after.chars();
    let is_character = match inside.next()? {
        '\\' => true,
        _ => inside.next() == Some('\''),
    };
    let prefix = rest.len() - after.len() - 1;
    is_character.then(|| prefix + quoted(&rest[prefix..], '\''))
}

/// The length of text in quotes, with its quotes; a backslash hides the character after it.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_hidden = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_hidden => is_hidden = false,
            '\\' => is_hidden = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn comments_and_strings_are_no_code() {
    let code = "a::b // c\n\"d \\\" e\" r#\"f\" g\"# 'h' '\\'' &'i j /* k */ br\"l\"";
    let found: Vec<&str> = tokens(code).iter().map(|token| token.text).collect();
    assert_eq!(found, ["a", "::", "b", "&", "'", "i", "j"]);
    assert_eq!(tokens(code).last().map(|token| token.line), Some(2));
}
