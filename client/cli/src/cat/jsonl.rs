//! Batches as JSON, one object a line.
//!
//! Nulls are written out. Instants with a time zone are written in UTC, whatever the zone: the zone names'
//! database is not built in. Binary is hexadecimal, decimals are numbers with all their digits, NaN and
//! infinities are null (JSON has none).

use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchWriter};
use arrow_json::WriterBuilder;
use arrow_json::writer::{LineDelimited, Writer};
use std::io::Write;
use std::sync::Arc;

/// Writes batches as lines.
pub(super) struct Lines<W: Write>(Writer<W, LineDelimited>);

impl<W: Write> Lines<W> {
    pub(super) fn new(out: W) -> Self {
        Self(WriterBuilder::new().with_explicit_nulls(true).build(out))
    }
}

impl<W: Write> RecordBatchWriter for Lines<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        self.0.write(&in_utc(batch)?)
    }

    fn close(mut self) -> Result<(), ArrowError> {
        self.0.finish()
    }
}

/// The same instants, with every time zone named `+00:00`.
fn in_utc(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = batch.schema();
    if schema.fields().iter().all(|f| utc(f.data_type()) == *f.data_type()) {
        return Ok(batch.clone());
    }
    let fields: Vec<FieldRef> = schema.fields().iter().map(utc_field).collect();
    let columns = batch.columns().iter().zip(&fields).map(|(c, field)| cast(c, field.data_type()));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

fn utc_field(f: &FieldRef) -> FieldRef {
    Arc::new(Field::new(f.name(), utc(f.data_type()), f.is_nullable()))
}

fn utc(t: &DataType) -> DataType {
    match t {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some("+00:00".into())),
        DataType::List(f) => DataType::List(inner(f)),
        DataType::LargeList(f) => DataType::LargeList(inner(f)),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(inner(f), *n),
        DataType::Map(f, sorted) => DataType::Map(inner(f), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::Dictionary(k, v) => DataType::Dictionary(k.clone(), Box::new(utc(v))),
        other => other.clone(),
    }
}

/// The field itself where nothing changes, so that types without a time zone stay equal.
fn inner(f: &FieldRef) -> FieldRef {
    if utc(f.data_type()) == *f.data_type() { f.clone() } else { utc_field(f) }
}

#[cfg(test)]
mod tests;
