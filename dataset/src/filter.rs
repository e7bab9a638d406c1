//! Row filters: `price > 3 and country = 'ch'`, as a user writes them, become predicates over a schema.
//!
//! The grammar (docs/datasets.md) is small and bounded in bytes, depth and terms, as nodes parse what
//! strangers send. Values are compared as numbers, instants and texts, exactly; a null makes a comparison
//! null, as in SQL, and rows whose predicate is null are left out. A predicate has a normal form, which is a
//! filter again: manifests and segment ids hold it.

mod bind;
mod evaluate;
mod expression;
mod lex;
mod literal;
mod outcomes;
mod parse;
mod predicate;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use outcomes::{Facts, Nulls, Outcomes};
pub(crate) use predicate::Predicate;

use arrow::datatypes::Schema;
use expression::{Expression, Fault};
use forebay_proto::{Error, Result};

/// A filter that was parsed.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    text: String,
    root: Expression,
}

impl Filter {
    /// Parses a filter; `Invalid` says where it is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let fault = |(at, why): Fault| explain(text, at, &why);
        let root = parse::parse(text).map_err(fault)?;
        Ok(Self { text: text.to_owned(), root })
    }

    /// The predicate over the columns of `schema`; `Invalid` if it has them not, or they cannot be compared
    /// so.
    pub(crate) fn bind(&self, schema: &Schema) -> Result<Predicate> {
        bind::bind(&self.root, schema).map_err(|(at, why)| explain(&self.text, at, &why))
    }

    /// The same as far as `schema` has the columns: the rest may be anything.
    pub(crate) fn bind_partly(&self, schema: &Schema) -> Predicate {
        bind::partly(&self.root, schema)
    }

    /// The columns that it names.
    pub(crate) fn names(&self) -> Vec<&str> {
        fn names<'a>(part: &'a Expression, all: &mut Vec<&'a str>) {
            match part {
                Expression::Compare { column, .. }
                | Expression::StartsWith { column, .. }
                | Expression::IsNull(column)
                | Expression::IsTrue(column) => all.push(&column.text),
                Expression::And(parts) | Expression::Or(parts) => {
                    parts.iter().for_each(|part| names(part, all));
                }
                Expression::Not(part) => names(part, all),
            }
        }
        let mut all = Vec::new();
        names(&self.root, &mut all);
        all
    }
}

/// Bytes of a filter that an error repeats.
const SHOWN: usize = 200;

fn explain(text: &str, at: usize, why: &str) -> Error {
    let shown: String = text.chars().take(SHOWN).collect();
    let more = if shown.len() < text.len() { ".." } else { "" };
    Error::invalid(format!("filter `{shown}{more}`: {why} (at character {at})"))
}
