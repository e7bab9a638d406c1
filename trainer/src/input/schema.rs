//! What a column of a dataset is: its type, and what it is to a model.

use std::fmt;

use anyhow::{Context, Result};
use arrow::datatypes::{DataType, Schema};

/// What a tensor is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Pixels, `[B, 784]` or `[B, C, H, W]` of bytes.
    Image,
    /// Numbers of a table, `[B, F]`.
    Features,
    /// Text in numbers, `[B, T + 1]`.
    Tokens,
    /// The answer that the model is to find, `[B]`.
    Label,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Features => "features",
            Self::Tokens => "tokens",
            Self::Label => "label",
        })
    }
}

/// Whether a column of this type holds one number a row.
pub fn is_number(kind: &DataType) -> bool {
    kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean
}

/// How many numbers a row of such a column holds.
pub fn numbers(kind: &DataType) -> Option<i64> {
    match kind {
        DataType::FixedSizeList(item, length) if is_number(item.data_type()) => Some(i64::from(*length)),
        kind => is_number(kind).then_some(1),
    }
}

/// The type of a column; the error names the columns that there are.
pub fn kind_of<'a>(schema: &'a Schema, name: &str, uri: &str) -> Result<&'a DataType> {
    let names = || schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
    let found = schema.field_with_name(name).ok();
    let field = found.with_context(|| format!("{uri} has no column `{name}`: there are {}", names()))?;
    Ok(field.data_type())
}

/// A column's type as a reader of shapes says it: `UInt8[784]`.
pub fn shape(kind: &DataType) -> String {
    match kind {
        DataType::FixedSizeList(item, size) => format!("{}[{size}]", shape(item.data_type())),
        DataType::List(item) | DataType::LargeList(item) => {
            format!("{}[of varying length]", shape(item.data_type()))
        }
        other => other.to_string(),
    }
}
