//! From words to an expression, by recursive descent: `or` binds weakest, then `and`, then `not`.

use super::expression::{Expression, Fault, Name, Op};
use super::lex::{Kind, Token, lex};
use super::literal::{Literal, Number, date, timestamp};

use forebay_proto::manifest::FILTER_BYTES_MAX;

/// Parentheses and `not` within each other at most.
const DEPTH_MAX: u32 = 50;

/// Comparisons at most; each value of an `in` is one.
const TERMS_MAX: usize = 500;

/// Words that are no columns unless they stand in backticks.
pub(super) const KEYWORDS: [&str; 10] =
    ["and", "or", "not", "in", "between", "is", "null", "like", "true", "false"];

/// The expression that a filter is.
pub(super) fn parse(text: &str) -> Result<Expression, Fault> {
    if text.len() > FILTER_BYTES_MAX {
        return Err((1, format!("it has {} bytes: use {FILTER_BYTES_MAX} at most", text.len())));
    }
    let mut parser = Parser { tokens: lex(text)?, at: 0, depth: 0, terms: 0 };
    if parser.peek() == &Kind::End {
        return Err((1, "it is empty: write a condition, as in price > 3".into()));
    }
    let root = parser.any()?;
    match parser.peek() {
        Kind::End => Ok(root),
        _ => Err(parser.expected("`and`, `or` or the end")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
    terms: usize,
}

impl Parser {
    fn peek(&self) -> &Kind {
        &self.tokens[self.at].kind
    }

    fn place(&self) -> usize {
        self.tokens[self.at].at
    }

    /// The word, which is not seen again unless it is the end.
    fn next(&mut self) -> Kind {
        let kind = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        kind
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Kind::Word(found) if found.eq_ignore_ascii_case(word))
    }

    /// Takes the keyword if it is next.
    fn word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        if is {
            self.next();
        }
        is
    }

    /// Takes the symbol if it is next.
    fn symbol(&mut self, symbol: &str) -> bool {
        let is = matches!(self.peek(), Kind::Symbol(found) if *found == symbol);
        if is {
            self.next();
        }
        is
    }

    fn expected(&self, what: &str) -> Fault {
        let found = match self.peek() {
            Kind::End => "it ends".to_owned(),
            Kind::Word(found) | Kind::Number(found) => format!("`{found}` stands"),
            Kind::Name(name) => format!("the column `{name}` stands"),
            Kind::Text(text) => format!("the text '{}' stands", text.chars().take(40).collect::<String>()),
            Kind::Symbol(found) => format!("`{found}` stands"),
        };
        (self.place(), format!("{found} where {what} is expected"))
    }

    /// Within one more parenthesis or `not`.
    fn deeper(&mut self, inner: fn(&mut Self) -> Result<Expression, Fault>) -> Result<Expression, Fault> {
        if self.depth == DEPTH_MAX {
            return Err((self.place(), format!("it is nested too deep: use {DEPTH_MAX} levels at most")));
        }
        self.depth += 1;
        let inside = inner(self);
        self.depth -= 1;
        inside
    }

    fn term(&mut self, term: Expression) -> Result<Expression, Fault> {
        self.terms += 1;
        match self.terms > TERMS_MAX {
            true => Err((self.place(), format!("it has too many comparisons: use {TERMS_MAX} at most"))),
            false => Ok(term),
        }
    }

    fn any(&mut self) -> Result<Expression, Fault> {
        let mut parts = vec![self.all()?];
        while self.word("or") {
            parts.push(self.all()?);
        }
        Ok(Expression::Or(parts))
    }

    fn all(&mut self) -> Result<Expression, Fault> {
        let mut parts = vec![self.negation()?];
        while self.word("and") {
            parts.push(self.negation()?);
        }
        Ok(Expression::And(parts))
    }

    fn negation(&mut self) -> Result<Expression, Fault> {
        if self.word("not") {
            return Ok(Expression::Not(Box::new(self.deeper(Self::negation)?)));
        }
        if self.symbol("(") {
            let inside = self.deeper(Self::any)?;
            return match self.symbol(")") {
                true => Ok(inside),
                false => Err(self.expected("`)`, `and` or `or`")),
            };
        }
        self.condition()
    }

    fn condition(&mut self) -> Result<Expression, Fault> {
        if self.is_literal() {
            let literal = self.literal()?;
            let Some(op) = self.op() else { return Err(self.expected("a comparison such as `=` or `<`")) };
            let column = self.column()?;
            return self.term(Expression::Compare { column, op: op.mirrored(), literal });
        }
        let column = self.column()?;
        if let Some(op) = self.op() {
            return self.compare(column, op);
        }
        if self.word("is") {
            let negated = self.word("not");
            if !self.word("null") {
                return Err(self.expected("`null`"));
            }
            let is_null = self.term(Expression::IsNull(column))?;
            return Ok(if negated { negate(is_null) } else { is_null });
        }
        let negated = self.word("not");
        let condition = if self.word("in") {
            self.one_of(&column)?
        } else if self.word("between") {
            self.between(&column)?
        } else if self.word("like") {
            self.like(column)?
        } else if negated {
            return Err(self.expected("`in`, `between` or `like`"));
        } else if matches!(self.peek(), Kind::Symbol("(")) {
            return Err((self.place(), format!("`{}` is a function: a filter has none", column.text)));
        } else {
            self.term(Expression::IsTrue(column))?
        };
        Ok(if negated { negate(condition) } else { condition })
    }

    fn compare(&mut self, column: Name, op: Op) -> Result<Expression, Fault> {
        if self.is_word("null") {
            let why = format!("nothing equals null: write `{0} is null` or `{0} is not null`", column.text);
            return Err((self.place(), why));
        }
        if !self.is_literal() && matches!(self.peek(), Kind::Word(_) | Kind::Name(_)) {
            let why = "two columns are compared: a filter compares a column with a value, and a text stands in quotes";
            return Err((self.place(), why.into()));
        }
        let literal = self.literal()?;
        self.term(Expression::Compare { column, op, literal })
    }

    /// After `in`.
    fn one_of(&mut self, column: &Name) -> Result<Expression, Fault> {
        if !self.symbol("(") {
            return Err(self.expected("`(`"));
        }
        let mut parts = Vec::new();
        loop {
            let literal = self.literal()?;
            parts.push(self.term(Expression::Compare { column: column.clone(), op: Op::Eq, literal })?);
            if self.symbol(")") {
                return Ok(Expression::Or(parts));
            }
            if !self.symbol(",") {
                return Err(self.expected("`,` or `)`"));
            }
        }
    }

    /// After `between`.
    fn between(&mut self, column: &Name) -> Result<Expression, Fault> {
        let (from, column) = (self.literal()?, column.clone());
        let least = self.term(Expression::Compare { column: column.clone(), op: Op::Ge, literal: from })?;
        if !self.word("and") {
            return Err(self.expected("`and`"));
        }
        let literal = self.literal()?;
        Ok(Expression::And(vec![least, self.term(Expression::Compare { column, op: Op::Le, literal })?]))
    }

    /// After `like`.
    fn like(&mut self, column: Name) -> Result<Expression, Fault> {
        let at = self.place();
        let Kind::Text(pattern) = self.next() else {
            self.at -= 1;
            return Err(self.expected("a text"));
        };
        match pattern.strip_suffix('%') {
            Some(prefix) if !prefix.contains(['%', '_', '\\']) => {
                let prefix = prefix.to_owned();
                self.term(Expression::StartsWith { column, prefix })
            }
            _ => Err((at, "`like` takes a beginning and one `%` at its end, as in 'abc%'".into())),
        }
    }

    fn column(&mut self) -> Result<Name, Fault> {
        let at = self.place();
        match self.peek().clone() {
            Kind::Name(text) => {
                self.next();
                Ok(Name { text, quoted: true, at })
            }
            Kind::Word(text) if !KEYWORDS.contains(&text.to_ascii_lowercase().as_str()) => {
                self.next();
                Ok(Name { text, quoted: false, at })
            }
            _ => Err(self.expected("a column")),
        }
    }

    fn op(&mut self) -> Option<Op> {
        let Kind::Symbol(symbol) = self.peek() else { return None };
        let op = match *symbol {
            "=" | "==" => Op::Eq,
            "!=" | "<>" => Op::Ne,
            "<" => Op::Lt,
            "<=" => Op::Le,
            ">" => Op::Gt,
            ">=" => Op::Ge,
            _ => return None,
        };
        self.next();
        Some(op)
    }

    fn is_literal(&self) -> bool {
        let is_text = matches!(self.tokens.get(self.at + 1), Some(Token { kind: Kind::Text(_), .. }));
        match self.peek() {
            Kind::Number(_) | Kind::Text(_) | Kind::Symbol("-" | "+") => true,
            // These may be columns too.
            Kind::Word(_) if self.is_word("date") || self.is_word("timestamp") => is_text,
            Kind::Word(_) => self.is_word("true") || self.is_word("false"),
            _ => false,
        }
    }

    fn literal(&mut self) -> Result<Literal, Fault> {
        if !self.is_literal() {
            return Err(self.expected("a value"));
        }
        let (at, is_date) = (self.place(), self.is_word("date"));
        let fault = |why| (at, why);
        match self.next() {
            Kind::Text(text) => Ok(Literal::Text(text)),
            Kind::Number(digits) => Number::parse(&digits, false).map(Literal::Number).map_err(fault),
            Kind::Symbol(sign) => match self.next() {
                Kind::Number(digits) => {
                    Number::parse(&digits, sign == "-").map(Literal::Number).map_err(fault)
                }
                _ => Err((at, format!("no number follows the `{sign}`"))),
            },
            Kind::Word(word) => match self.peek().clone() {
                Kind::Text(text) if !["true", "false"].contains(&word.to_ascii_lowercase().as_str()) => {
                    self.next();
                    let read = if is_date { date(&text).map(Literal::Date) } else { timestamp(&text) };
                    read.map_err(fault)
                }
                _ => Ok(Literal::Bool(word.eq_ignore_ascii_case("true"))),
            },
            Kind::Name(_) | Kind::End => Err(self.expected("a value")),
        }
    }
}

fn negate(condition: Expression) -> Expression {
    Expression::Not(Box::new(condition))
}

impl Op {
    /// The same with its sides exchanged.
    fn mirrored(self) -> Self {
        match self {
            Op::Lt => Op::Gt,
            Op::Le => Op::Ge,
            Op::Gt => Op::Lt,
            Op::Ge => Op::Le,
            same => same,
        }
    }
}
