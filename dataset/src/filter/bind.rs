//! From an expression to a predicate over a schema: names become columns, values take the columns' types.

use super::expression::{Expression, Fault, Name, Op};
use super::parse::KEYWORDS;
use super::predicate::{Node, Predicate, Value};
use super::value::{Compared, value};
use arrow::array::BooleanArray;
use arrow::datatypes::{DataType, Field, Schema};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Changes of a name that still make it a near one.
const NEAR: usize = 2;

/// The predicate, in normal form: parts of `and` and `or` are sorted and none is there twice.
pub(super) fn bind(expression: &Expression, schema: &Schema) -> Result<Predicate, Fault> {
    bound(expression, schema, false)
}

/// The same, where conditions that do not fit the schema may have any outcome.
pub(super) fn partly(expression: &Expression, schema: &Schema) -> Predicate {
    let nothing = Predicate { text: String::new(), columns: Vec::new(), root: Node::Unknown };
    bound(expression, schema, true).unwrap_or(nothing)
}

fn bound(expression: &Expression, schema: &Schema, is_partly: bool) -> Result<Predicate, Fault> {
    let mut binder = Binder { schema, columns: BTreeMap::new(), is_partly };
    binder.find(expression)?;
    let columns: Vec<usize> = binder.columns.keys().copied().collect();
    columns.iter().enumerate().for_each(|(place, column)| {
        binder.columns.insert(*column, place);
    });
    let normal = binder.part(expression)?;
    Ok(Predicate { text: normal.text(), columns, root: normal.node() })
}

struct Binder<'a> {
    schema: &'a Schema,
    /// Indices into the schema, and the places of these columns among all that the predicate looks at.
    columns: BTreeMap<usize, usize>,
    /// Whether conditions that do not fit are no fault.
    is_partly: bool,
}

/// A part in normal form.
enum Normal {
    Condition {
        text: String,
        node: Node,
    },
    Not(Box<Normal>),
    /// Sorted by their texts.
    Joined(Joint, BTreeMap<String, Normal>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Joint {
    And,
    Or,
}

impl Normal {
    fn text(&self) -> String {
        match self {
            Self::Condition { text, .. } => text.clone(),
            Self::Not(part) => format!("not ({})", part.text()),
            Self::Joined(joint, parts) => {
                let word = if *joint == Joint::And { " and " } else { " or " };
                parts.keys().map(String::as_str).collect::<Vec<_>>().join(word)
            }
        }
    }

    fn node(self) -> Node {
        match self {
            Self::Condition { node, .. } => node,
            Self::Not(part) => Node::Not(Box::new(part.node())),
            Self::Joined(joint, parts) => {
                let parts = parts.into_values().map(Self::node).collect();
                if joint == Joint::And { Node::And(parts) } else { Node::Or(parts) }
            }
        }
    }
}

impl Binder<'_> {
    /// Finds all columns.
    fn find(&mut self, expression: &Expression) -> Result<(), Fault> {
        match expression {
            Expression::Compare { column, .. }
            | Expression::StartsWith { column, .. }
            | Expression::IsNull(column)
            | Expression::IsTrue(column) => {
                match self.index(column) {
                    Ok(index) => drop(self.columns.insert(index, 0)),
                    Err(_) if self.is_partly => {}
                    Err(fault) => return Err(fault),
                }
                Ok(())
            }
            Expression::And(parts) | Expression::Or(parts) => {
                parts.iter().try_for_each(|part| self.find(part))
            }
            Expression::Not(part) => self.find(part),
        }
    }

    fn part(&self, expression: &Expression) -> Result<Normal, Fault> {
        match expression {
            Expression::And(parts) => self.joined(parts, Joint::And),
            Expression::Or(parts) => self.joined(parts, Joint::Or),
            Expression::Not(part) => Ok(match self.part(part)? {
                Normal::Not(twice) => *twice,
                part => Normal::Not(Box::new(part)),
            }),
            condition => match self.condition(condition) {
                Err(_) if self.is_partly => Ok(Normal::Condition { text: "?".into(), node: Node::Unknown }),
                bound => bound,
            },
        }
    }

    fn condition(&self, expression: &Expression) -> Result<Normal, Fault> {
        let condition = |node, text| Ok(Normal::Condition { text, node });
        match expression {
            Expression::And(_) | Expression::Or(_) | Expression::Not(_) => self.part(expression),
            Expression::IsNull(name) => {
                let (column, shown, _) = self.column(name)?;
                condition(Node::IsNull { column }, format!("{shown} is null"))
            }
            Expression::IsTrue(name) => {
                let (column, shown, field) = self.column(name)?;
                if field.data_type() != &DataType::Boolean {
                    let (text, found) = (&name.text, field.data_type());
                    let why = format!("'{text}' is {found}, no boolean: compare it, as in {text} = ..");
                    return Err((name.at, why));
                }
                let value = Value::Scalar(Arc::new(BooleanArray::from(vec![true])));
                condition(Node::Compare { column, op: Op::Eq, value }, format!("{shown} = true"))
            }
            Expression::StartsWith { column: name, prefix } => {
                let (column, shown, field) = self.column(name)?;
                if !matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8) {
                    return Err((name.at, format!("'{}' is {}, no text", name.text, field.data_type())));
                }
                let text = format!("{shown} like '{}%'", prefix.replace('\'', "''"));
                condition(Node::StartsWith { column, prefix: prefix.clone() }, text)
            }
            Expression::Compare { column: name, op, literal } => {
                let (column, shown, field) = self.column(name)?;
                let fault = |why| (name.at, format!("column '{}' {why}", name.text));
                let (value, text) = value(field.data_type(), *op, literal).map_err(fault)?;
                let node = match value {
                    Compared::With(op, value) => Node::Compare { column, op, value },
                    Compared::Always(outcome) => Node::Always { column, outcome },
                };
                condition(node, format!("{shown} {} {text}", op.symbol()))
            }
        }
    }

    fn joined(&self, parts: &[Expression], joint: Joint) -> Result<Normal, Fault> {
        let mut joined = BTreeMap::new();
        for part in parts {
            match self.part(part)? {
                Normal::Joined(inner, parts) if inner == joint => joined.extend(parts),
                other @ Normal::Joined(..) => drop(joined.insert(format!("({})", other.text()), other)),
                other => drop(joined.insert(other.text(), other)),
            }
        }
        match joined.len() {
            1 => Ok(joined.into_values().next().unwrap_or(Normal::Joined(joint, BTreeMap::new()))),
            _ => Ok(Normal::Joined(joint, joined)),
        }
    }

    /// Place, normal name and field of a column that was found.
    fn column(&self, name: &Name) -> Result<(usize, String, &Field), Fault> {
        let index = self.index(name)?;
        let place = self.columns.get(&index).copied().unwrap_or_default();
        let field = self.schema.field(index);
        let mut letters = name.text.chars();
        let is_word = letters.next().is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
            && letters.all(|c| c == '_' || c.is_ascii_alphanumeric());
        let is_plain = is_word
            && !KEYWORDS.contains(&name.text.to_ascii_lowercase().as_str())
            && self.alike(&name.text).len() == 1;
        let shown = if is_plain { name.text.clone() } else { format!("`{}`", name.text.replace('`', "``")) };
        Ok((place, shown, field))
    }

    /// Columns whose names differ from `name` in case at most.
    fn alike(&self, name: &str) -> Vec<&str> {
        let (name, fields) = (name.to_lowercase(), self.schema.fields().iter().map(|f| f.name().as_str()));
        fields.filter(|field| field.to_lowercase() == name).collect()
    }

    fn index(&self, name: &Name) -> Result<usize, Fault> {
        let alike = self.alike(&name.text);
        if let (false, [first, second, ..]) = (name.quoted, &alike[..]) {
            return Err((
                name.at,
                format!(
                    "columns '{first}' and '{second}' differ in case only: write `{first}` or `{second}`"
                ),
            ));
        }
        let index = self.schema.index_of(&name.text).map_err(|_| self.missing(name))?;
        Ok(index)
    }

    fn missing(&self, name: &Name) -> Fault {
        let text = &name.text;
        let nested = text.split_once('.').filter(|(outer, _)| {
            self.schema.column_with_name(outer).is_some_and(|(_, f)| f.data_type().is_nested())
        });
        if let Some((outer, _)) = nested {
            return (
                name.at,
                format!("'{text}' lies in column '{outer}': a filter reads whole columns only"),
            );
        }
        let names = || self.schema.fields().iter().map(|f| f.name().as_str());
        let distance = |found: &str| strsim::damerau_levenshtein(&found.to_lowercase(), &text.to_lowercase());
        let mut near: Vec<_> = names()
            .filter(|found| found.len() < 100 && text.len() < 100)
            .map(|found| (distance(found), found))
            .filter(|(distance, _)| *distance <= NEAR)
            .collect();
        near.sort_unstable();
        let hint = match near.first() {
            Some((_, near)) => format!("did you mean '{near}'?"),
            None => format!("there are {}", cut_list(names())),
        };
        (name.at, format!("no column '{text}': {hint}"))
    }
}

fn cut_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let more = if names.len() > 20 { ", .." } else { "" };
    format!("{}{more}", names.iter().take(20).copied().collect::<Vec<_>>().join(", "))
}

impl Op {
    fn symbol(self) -> &'static str {
        match self {
            Op::Eq => "=",
            Op::Ne => "!=",
            Op::Lt => "<",
            Op::Le => "<=",
            Op::Gt => ">",
            Op::Ge => ">=",
        }
    }
}
