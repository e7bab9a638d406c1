//! The words of a filter.

use super::expression::Fault;
use winnow::ascii::digit1;
use winnow::combinator::{alt, delimited, opt, repeat};
use winnow::prelude::*;
use winnow::stream::AsChar;
use winnow::token::{literal, none_of, one_of, take_while};

/// A word, and where it begins, in characters from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub at: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A keyword or the name of a column.
    Word(String),
    /// The name of a column, in backticks.
    Name(String),
    /// In single or double quotes.
    Text(String),
    /// Without a sign.
    Number(String),
    Symbol(&'static str),
    End,
}

/// Longer ones first where one begins as another does.
const SYMBOLS: [&str; 13] = ["==", "!=", "<>", "<=", ">=", "=", "<", ">", "(", ")", ",", "-", "+"];

/// The words of `text`, and the end of it.
pub(super) fn lex(text: &str) -> Result<Vec<Token>, Fault> {
    let (mut rest, mut tokens) = (text.trim_start(), Vec::new());
    let at = |rest: &str| text[..text.len() - rest.len()].chars().count() + 1;
    while !rest.is_empty() {
        let start = at(rest);
        let kind = token.parse_next(&mut rest).map_err(|_| {
            let first = rest.chars().next().unwrap_or_default();
            match first {
                '\'' | '"' | '`' => (start, format!("the {first} is not closed")),
                _ => (start, format!("`{first}` has no meaning here")),
            }
        })?;
        tokens.push(Token { at: start, kind });
        rest = rest.trim_start();
    }
    tokens.push(Token { at: at(rest), kind: Kind::End });
    Ok(tokens)
}

fn token(rest: &mut &str) -> ModalResult<Kind> {
    alt((
        quoted('\'').map(Kind::Text),
        quoted('"').map(Kind::Text),
        quoted('`').map(Kind::Name),
        number.map(|digits: &str| Kind::Number(digits.to_owned())),
        word.map(|word: &str| Kind::Word(word.to_owned())),
        symbol.map(Kind::Symbol),
    ))
    .parse_next(rest)
}

/// Within `mark`, which stands for itself where it is doubled.
fn quoted<'a>(
    mark: char,
) -> impl Parser<&'a str, String, winnow::error::ErrMode<winnow::error::ContextError>> {
    let inside = move |rest: &mut &'a str| -> ModalResult<String> {
        repeat(0.., alt((none_of(mark), (mark, mark).value(mark)))).parse_next(rest)
    };
    delimited(mark, inside, mark)
}

fn number<'a>(rest: &mut &'a str) -> ModalResult<&'a str> {
    let exponent = (one_of(['e', 'E']), opt(one_of(['+', '-'])), digit1);
    let digits = alt(((digit1, opt(('.', opt(digit1)))).void(), ('.', digit1).void()));
    (digits, opt(exponent)).take().parse_next(rest)
}

fn word<'a>(rest: &mut &'a str) -> ModalResult<&'a str> {
    let first = |c: char| c == '_' || c.is_alphabetic();
    let next = |c: char| c == '_' || c == '.' || c.is_alphanumeric() || c.is_dec_digit();
    (one_of(first), take_while(0.., next)).take().parse_next(rest)
}

fn symbol(rest: &mut &str) -> ModalResult<&'static str> {
    for symbol in SYMBOLS {
        if opt(literal(symbol)).parse_next(rest)?.is_some() {
            return Ok(symbol);
        }
    }
    winnow::combinator::fail.parse_next(rest)
}
