//! Short files, functions on one screen, comments that need no scrolling; and how much code there is.

use crate::rules::{self, Offenders};
use crate::source::sources;
use crate::tokens::{Token, tokens};

/// Code lines of a file at most, its tests apart.
const FILE_LINES: usize = 400;

/// Lines of a function at most.
const FUNCTION_LINES: usize = 70;

/// Columns of a line with a comment at most.
const COLUMNS: usize = 110;

/// Code lines of the product that are aimed at.
pub const PRODUCT_LINES: usize = 25_600;

#[test]
fn files_are_short() {
    let lines = |source: &crate::source::Source| (source.path.clone(), source.code().count());
    let found = sources("", &[".rs"]).iter().map(lines).filter(|(_, lines)| *lines > FILE_LINES).collect();
    rules::check("file-lines", &format!("files of more than {FILE_LINES} code lines"), &found);
}

#[test]
fn functions_fit_on_a_screen() {
    let mut found = Offenders::new();
    for source in sources("", &[".rs"]) {
        let long = functions(&tokens(&source.text)).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES);
        found.extend(long.map(|(name, lines)| (format!("{} {name}", source.path), lines)));
    }
    rules::check("function-lines", &format!("functions of more than {FUNCTION_LINES} lines"), &found);
}

#[test]
fn comments_are_not_wide() {
    let mut found = Offenders::new();
    for source in sources("", &[".rs", ".proto"]) {
        let wide = |line: &str| line.contains("//") && line.chars().count() > COLUMNS;
        let times = source.text.lines().filter(|line| wide(line) && !line.contains("://")).count();
        found.extend((times > 0).then_some((source.path, times)));
    }
    rules::check("comment-width", &format!("lines with comments beyond column {COLUMNS}"), &found);
}

/// Code lines of the product: without tests, comments and empty lines.
pub fn product_lines() -> usize {
    sources("", &[".rs"])
        .iter()
        .filter(|source| source.is_product())
        .map(|source| source.code().count())
        .sum()
}

/// Functions with bodies, and their lines from `fn` to the closing brace.
fn functions(tokens: &[Token<'_>]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let names = tokens.windows(2).enumerate().filter(|(_, w)| w[0].text == "fn" && w[1].is_word());
    for (at, window) in names {
        let mut depth = 0usize;
        for token in &tokens[at..] {
            match token.text {
                ";" if depth == 0 => break,
                "{" | "[" | "(" => depth += 1,
                "}" | "]" | ")" => depth -= 1,
                _ => {}
            }
            if token.text == "}" && depth == 0 {
                found.push((window[1].text.to_owned(), token.line - window[0].line + 1));
                break;
            }
        }
    }
    found
}
