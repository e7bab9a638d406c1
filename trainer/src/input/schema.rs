//! What a column of a dataset is: its type, and what it is to a model.

use std::fmt;

use anyhow::{Context, Result, anyhow};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, make_array};
use arrow::buffer::NullBuffer;
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
    /// How many of a row's tokens are text and not padding, `[B]`.
    Lengths,
    /// Which of its sequence's documents each token belongs to, `[B, T + 1]`; less than 0 for none.
    Documents,
    /// The answer that the model is to find, `[B]`.
    Label,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Features => "features",
            Self::Tokens => "tokens",
            Self::Lengths => "lengths",
            Self::Documents => "documents",
            Self::Label => "label",
        })
    }
}

/// Whether a column of this type holds one number a row, or a time, which counts as a number of days.
pub fn is_number(kind: &DataType) -> bool {
    kind.is_numeric() || kind.is_temporal() && !is_interval(kind) || *kind == DataType::Boolean
}

/// Months have no fixed length.
fn is_interval(kind: &DataType) -> bool {
    matches!(kind, DataType::Interval(_))
}

/// How many numbers a row of such a column holds.
pub fn numbers(kind: &DataType) -> Option<i64> {
    match kind {
        DataType::FixedSizeList(item, length) if is_number(item.data_type()) => Some(i64::from(*length)),
        kind => is_number(kind).then_some(1),
    }
}

/// The type of a column, or of a field of a struct column by its path, such as `image.bytes`. The error names
/// what there is.
pub fn kind_of<'a>(schema: &'a Schema, path: &str, uri: &str) -> Result<&'a DataType> {
    let mut fields = schema.fields();
    if let Some((_, field)) = fields.find(path) {
        return Ok(field.data_type());
    }
    let mut parent = String::new();
    for part in path.split('.') {
        let names = || fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        let field = fields.find(part).map(|(_, field)| field).with_context(|| match parent.as_str() {
            "" => format!("{uri} has no column `{path}`: there are {}", names()),
            parent => format!("{uri} has no column `{path}`: in `{parent}` there are {}", names()),
        })?;
        parent = if parent.is_empty() { part.to_owned() } else { format!("{parent}.{part}") };
        fields = match field.data_type() {
            kind if parent == path => return Ok(kind),
            DataType::Struct(fields) => fields,
            kind => {
                let kind = shape(kind);
                return Err(anyhow!("{uri} has no column `{path}`: `{parent}` is {kind}, not a struct"));
            }
        };
    }
    Err(anyhow!("{uri} has no column `{path}`"))
}

/// The dataset's column that holds what `path` names.
pub fn top_level<'p>(schema: &Schema, path: &'p str) -> &'p str {
    match schema.fields().find(path) {
        Some(_) => path,
        None => path.split_once('.').map_or(path, |(column, _)| column),
    }
}

/// The values of a column, or of a field of a struct column by its path. A null struct has nulls as fields.
pub fn values_of(batch: &RecordBatch, path: &str) -> Result<ArrayRef> {
    let missing = || format!("the batch has no column `{path}`");
    if let Some(column) = batch.column_by_name(path) {
        return Ok(column.clone());
    }
    let mut parts = path.split('.');
    let column = parts.next().and_then(|name| batch.column_by_name(name));
    let mut column = column.with_context(missing)?.clone();
    for part in parts {
        let parent = column.as_struct_opt().with_context(missing)?;
        let field = parent.column_by_name(part).with_context(missing)?;
        let nulls = NullBuffer::union(parent.nulls(), field.nulls());
        column = make_array(field.to_data().into_builder().nulls(nulls).build()?);
    }
    Ok(column)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{BinaryArray, Int64Array, StringArray, StructArray};
    use arrow::datatypes::{Field, Fields};

    fn images() -> RecordBatch {
        let fields = Fields::from(vec![
            Field::new("bytes", DataType::Binary, true),
            Field::new("path", DataType::Utf8, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(BinaryArray::from_opt_vec(vec![Some(b"a"), Some(b"b"), None])),
            Arc::new(StringArray::from(vec!["x", "y", "z"])),
        ];
        let image = StructArray::new(fields, columns, Some(vec![true, false, true].into()));
        let dotted: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        RecordBatch::try_from_iter([("image", Arc::new(image) as ArrayRef), ("a.b", dotted)]).unwrap()
    }

    #[test]
    fn a_path_names_a_field_of_a_struct() {
        let batch = images();
        let kind = |path: &str| kind_of(&batch.schema(), path, "s3://b/d").cloned();
        assert_eq!(kind("image.bytes").unwrap(), DataType::Binary);
        assert_eq!(kind("a.b").unwrap(), DataType::Int64);
        assert_eq!(
            (top_level(&batch.schema(), "image.path"), top_level(&batch.schema(), "a.b")),
            ("image", "a.b")
        );
        let error = |path: &str| kind(path).unwrap_err().to_string();
        assert_eq!(error("picture"), "s3://b/d has no column `picture`: there are image, a.b");
        assert_eq!(
            error("image.file"),
            "s3://b/d has no column `image.file`: in `image` there are bytes, path"
        );
        let deeper = "s3://b/d has no column `image.path.x`: `image.path` is Utf8, not a struct";
        assert_eq!(error("image.path.x"), deeper);
    }

    #[test]
    fn a_null_struct_has_nulls_as_fields_also_in_a_slice() {
        let batch = images();
        let nulls = |batch: &RecordBatch, path: &str| {
            let values = values_of(batch, path).unwrap();
            (0..values.len()).map(|row| values.is_null(row)).collect::<Vec<_>>()
        };
        assert_eq!(nulls(&batch, "image.bytes"), [false, true, true]);
        assert_eq!(nulls(&batch.slice(1, 2), "image.path"), [true, false]);
        assert_eq!(nulls(&batch, "a.b"), [false; 3]);
        assert!(values_of(&batch, "image.size").is_err());
    }
}
