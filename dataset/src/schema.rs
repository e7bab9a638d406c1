//! The Arrow schema of a dataset: the same for all its objects and segments, whatever encodings they use.
//!
//! Dictionaries, run-end encodings and views become the plain types of their values, as they are choices of
//! how to store an object. Metadata is dropped, except the names and parameters of extension types.
//! [`union`] makes one schema of several, [`widen`] says which types fit into one.

pub(crate) mod merge;
pub(crate) mod union;
pub(crate) mod widen;

use arrow::array::{Array, ArrayRef, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};
use forebay_proto::{Error, Result};
use merge::{UNIFIED, ZONED};
use std::sync::Arc;

/// The encapsulated IPC Schema message of `schema`; equal schemas give equal bytes.
pub fn to_ipc(schema: &Schema) -> Result<Vec<u8>> {
    let options = IpcWriteOptions::default();
    let mut tracker = DictionaryTracker::new(false);
    let data =
        IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &options);
    let mut bytes = Vec::new();
    write_message(&mut bytes, data, &options).map_err(|e| Error::invalid(format!("schema: {e}")))?;
    Ok(bytes)
}

/// The schema in the bytes of [`to_ipc`], e.g. of `Manifest::schema`.
pub fn from_ipc(bytes: &[u8]) -> Result<SchemaRef> {
    let schema = try_schema_from_ipc_buffer(bytes);
    schema.map(Arc::new).map_err(|e| Error::corrupt(format!("malformed schema in the manifest: {e}")))
}

/// Indices of `columns` in `schema`, ascending; no columns = all.
///
/// # Errors
/// `Invalid` for an unknown or repeated one.
pub fn projection(schema: &Schema, columns: &[String]) -> Result<Vec<usize>> {
    if columns.is_empty() {
        return Ok((0..schema.fields().len()).collect());
    }
    let mut indices = Vec::with_capacity(columns.len());
    for column in columns {
        let index = schema.index_of(column).map_err(|_| {
            let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            Error::invalid(format!("no column '{column}': there are {}", names.join(", ")))
        })?;
        if indices.contains(&index) {
            return Err(Error::invalid(format!("column '{column}' is asked for twice")));
        }
        indices.push(index);
    }
    indices.sort_unstable();
    Ok(indices)
}

/// The plain form of an object's schema.
pub(crate) fn plain(schema: &Schema) -> Schema {
    Schema::new(schema.fields().iter().map(plain_field).collect::<Fields>())
}

fn plain_field(field: &FieldRef) -> FieldRef {
    let mut plain = Field::new(field.name(), plain_type(field.data_type()), field.is_nullable());
    for (key, value) in field.metadata() {
        if key.starts_with("ARROW:extension:") {
            plain.metadata_mut().insert(key.clone(), value.clone());
        }
    }
    Arc::new(plain)
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, value) => plain_type(value),
        DataType::RunEndEncoded(_, values) => plain_type(values.data_type()),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(f) | DataType::ListView(f) => DataType::List(plain_field(f)),
        DataType::LargeList(f) | DataType::LargeListView(f) => DataType::LargeList(plain_field(f)),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(plain_field(f), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        DataType::Map(f, sorted) => DataType::Map(plain_field(f), *sorted),
        other => other.clone(),
    }
}

/// `read` with the time zones that `written` names for the same columns. Parquet only knows that a timestamp
/// is in UTC; the parquet crate takes the zone from the writer's schema, but not where that has another unit
/// (seconds, which Parquet lacks). Both must be plain; where they do not fit each other, `read` stands.
pub(crate) fn with_zones(read: Schema, written: &Schema) -> Schema {
    let field = |f: &FieldRef| match written.column_with_name(f.name()) {
        Some((_, w)) => ZONED.field(f, w).unwrap_or_else(|| f.clone()),
        None => f.clone(),
    };
    Schema::new(read.fields().iter().map(field).collect::<Fields>())
}

/// `array` as `wanted`, which may differ from its type in names and nullability of nested fields only, unless
/// all of it is null.
pub fn retype(array: ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    let found = array.data_type();
    if found == wanted {
        return Ok(array);
    }
    match UNIFIED.data_type(found, wanted) {
        // Of types of one form it copies no values.
        Some(_) => cast(&array, wanted),
        // An object that lacks the column has nulls of any type.
        None if array.null_count() == array.len() || found == &DataType::Null => {
            Ok(new_null_array(wanted, array.len()))
        }
        None => Err(ArrowError::SchemaError(format!("decoded {found} where the manifest has {wanted}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: Vec<Field>) -> Schema {
        Schema::new(fields)
    }

    #[test]
    fn encodings_become_plain() {
        let dict = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8View));
        let item = Field::new_list_field(dict.clone(), true).with_metadata([("PARQUET:field_id", "7")]);
        let extension = Field::new("u", DataType::FixedSizeBinary(16), false)
            .with_metadata([("ARROW:extension:name", "arrow.uuid"), ("x", "y")]);
        let s = schema(vec![
            Field::new("d", dict, true),
            Field::new("l", DataType::List(item.into()), true),
            extension,
        ]);
        let p = plain(&s);
        assert_eq!(p.field(0).data_type(), &DataType::Utf8);
        assert_eq!(p.field(1).data_type(), &DataType::new_list(DataType::Utf8, true));
        assert_eq!(p.field(2).metadata().iter().count(), 1);
        assert_eq!(plain(&p), p);
        let bytes = to_ipc(&p).unwrap();
        assert_eq!(bytes, to_ipc(&p).unwrap());
        assert_eq!(from_ipc(&bytes).unwrap().as_ref(), &p);
        assert!(from_ipc(&bytes[..bytes.len() / 2]).is_err());
    }

    #[test]
    fn projections() {
        let s = schema(["a", "b", "c"].map(|n| Field::new(n, DataType::Int8, true)).to_vec());
        let p = |c: &[&str]| projection(&s, &c.iter().map(|c| c.to_string()).collect::<Vec<_>>());
        assert_eq!(p(&[]).unwrap(), [0, 1, 2]);
        assert_eq!(p(&["c", "a"]).unwrap(), [0, 2]);
        assert!(p(&["d"]).unwrap_err().message.contains("a, b, c"));
        assert!(p(&["a", "a"]).is_err());
    }
}
