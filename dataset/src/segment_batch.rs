//! The rows of a segment, or some of them: narrow columns may lie packed, row by row; all others are Arrow
//! arrays.

use crate::off_thread::blocking;
use crate::packed::{ColumnPlace, Form, PackedColumn, PackedSchema, RowBlock, RowLayout, RowSource};
use crate::schema;
use crate::slice_bytes::slice_bytes;
use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch, RecordBatchOptions,
};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use forebay_proto::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Rows with named columns.
#[derive(Debug, Clone)]
pub struct SegmentBatch {
    schema: SchemaRef,
    rows: usize,
    blocks: Vec<RowBlock>,
    /// Where each column lies.
    places: Vec<ColumnPlace>,
}

impl From<RecordBatch> for SegmentBatch {
    /// All columns as arrays.
    fn from(batch: RecordBatch) -> Self {
        let (schema, columns, rows) = batch.into_parts();
        Self {
            schema,
            rows,
            blocks: Vec::new(),
            places: columns.into_iter().map(ColumnPlace::Array).collect(),
        }
    }
}

impl SegmentBatch {
    /// A batch with its narrow columns packed, as far as its schema has any.
    pub fn pack(batch: RecordBatch) -> Result<Self> {
        let packed = PackedSchema::new(batch.schema());
        let unpacked = Self::from(batch);
        let Some(layout) = &packed.layout else { return Ok(unpacked) };
        let mut rows = MutableBuffer::from_len_zeroed(unpacked.rows * layout.width);
        unpacked.source(layout)?.copy(0, layout, rows.as_slice_mut());
        let arrays = unpacked.places.into_iter().enumerate();
        let others = arrays.filter(|(c, _)| !layout.has(*c)).filter_map(|(_, place)| place.into_array());
        Ok(Self::of_rows(&packed.schema, layout, rows.into(), others.collect(), unpacked.rows))
    }

    /// As [`SegmentBatch::pack`], off the async threads: megabytes are copied, and the columns freed.
    pub async fn pack_aside(batch: RecordBatch) -> Result<Self> {
        match PackedSchema::new(batch.schema()).layout {
            None => Ok(batch.into()),
            Some(_) => blocking(move || Self::pack(batch)).await,
        }
    }

    /// The batch that is stored or sent as `physical`.
    pub fn from_physical(packed: &PackedSchema, physical: RecordBatch) -> Result<Self> {
        let Some(layout) = &packed.layout else { return Ok(physical.into()) };
        let (_, columns, count) = physical.into_parts();
        let mut columns = columns.into_iter();
        let rows = columns.next().ok_or_else(|| Error::corrupt("the packed rows are missing"))?;
        let rows =
            rows.as_fixed_size_binary_opt().ok_or_else(|| Error::corrupt("there are no packed rows"))?;
        let bytes = rows.values().slice_with_length(0, count * layout.width);
        Ok(Self::of_rows(&packed.schema, layout, bytes, columns.collect(), count))
    }

    /// Packed rows, and the columns that they do not hold.
    pub(crate) fn of_rows(
        schema: &SchemaRef,
        layout: &RowLayout,
        bytes: Buffer,
        others: Vec<ArrayRef>,
        rows: usize,
    ) -> Self {
        let mut others = others.into_iter().map(ColumnPlace::Array);
        let mut narrow = layout.columns.iter().map(|column| ColumnPlace::Rows { block: 0, column: *column });
        let place = |c| if layout.has(c) { narrow.next() } else { others.next() };
        let places = (0..schema.fields().len()).filter_map(place).collect();
        let blocks = vec![RowBlock { bytes, width: layout.width }];
        Self { schema: schema.clone(), rows, blocks, places }
    }

    /// The columns' names and types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Whether there is a column of this name.
    pub fn has(&self, column: &str) -> bool {
        self.schema.index_of(column).is_ok()
    }

    /// These rows as a source of rows of their schema's layout, or of a part of it.
    pub(crate) fn source(&self, layout: &RowLayout) -> Result<RowSource<'_>> {
        match self.whole_rows(layout) {
            Some(block) => Ok(RowSource::Whole(&block.bytes)),
            None => RowSource::parts(layout, &self.places, &self.blocks),
        }
    }

    /// The packed rows, if they hold all narrow columns and are of this layout.
    pub(crate) fn whole_rows(&self, layout: &RowLayout) -> Option<&RowBlock> {
        let [block] = &self.blocks[..] else { return None };
        let is_there = |wanted: &PackedColumn| match &self.places[wanted.column] {
            ColumnPlace::Rows { column, .. } => {
                (column.offset, column.width, column.valid) == (wanted.offset, wanted.width, wanted.valid)
            }
            ColumnPlace::Array(_) => false,
        };
        (block.width == layout.width && layout.columns.iter().all(is_there)).then_some(block)
    }

    /// Whether a column lies in packed rows.
    pub(crate) fn is_packed(&self, column: usize) -> bool {
        matches!(self.places[column], ColumnPlace::Rows { .. })
    }

    /// A column as an array. Packed values are copied.
    pub(crate) fn array(&self, column: usize) -> Result<ArrayRef> {
        match &self.places[column] {
            ColumnPlace::Array(array) => Ok(array.clone()),
            ColumnPlace::Rows { .. } => Ok(self.columns_of(&[column], 0..self.rows)?.remove(0)),
        }
    }

    /// Rows as Arrow columns. Packed values are copied, those of arrays shared.
    pub fn to_record_batch(&self, rows: Range<usize>) -> Result<RecordBatch> {
        let all: Vec<usize> = (0..self.places.len()).collect();
        let count = rows.len();
        record_batch(self.schema.clone(), self.columns_of(&all, rows)?, count)
    }

    /// A column as it lies in memory; `None` if there is none of this name, or its values lie in packed rows.
    pub fn array_named(&self, name: &str) -> Option<&ArrayRef> {
        match self.places.get(self.schema.index_of(name).ok()?)? {
            ColumnPlace::Array(array) => Some(array),
            ColumnPlace::Rows { .. } => None,
        }
    }

    /// All rows as Arrow columns.
    pub fn columns(&self) -> Result<RecordBatch> {
        self.to_record_batch(0..self.rows)
    }

    fn columns_of(&self, wanted: &[usize], rows: Range<usize>) -> Result<Vec<ArrayRef>> {
        let schema = Arc::new(self.schema.project(wanted).map_err(|e| unfit(&e))?);
        let places = wanted.iter().map(|c| self.places[*c].clone()).collect();
        let part = Self { schema, rows: self.rows, blocks: self.blocks.clone(), places };
        let layout = RowLayout::over(&part.schema, |c| matches!(part.places[c], ColumnPlace::Rows { .. }));
        let mut packed = match layout.columns.is_empty() {
            true => Vec::new(),
            false => layout.unpack(&part.schema, &part.rows_of(&layout, rows.clone())?)?,
        }
        .into_iter();
        let array = |place: &ColumnPlace| match place {
            ColumnPlace::Array(array) => Some(array.slice(rows.start, rows.len())),
            ColumnPlace::Rows { .. } => packed.next(),
        };
        Ok(part.places.iter().filter_map(array).collect())
    }

    /// Rows packed as `layout` says, which may be of a part of the columns.
    fn rows_of(&self, layout: &RowLayout, rows: Range<usize>) -> Result<Buffer> {
        if let Some(block) = self.whole_rows(layout) {
            return Ok(block.bytes.slice_with_length(rows.start * layout.width, rows.len() * layout.width));
        }
        let mut out = MutableBuffer::from_len_zeroed(rows.len() * layout.width);
        self.source(layout)?.copy(rows.start, layout, out.as_slice_mut());
        Ok(out.into())
    }

    /// As it is stored and sent. Nothing is copied that lies as it has to already.
    pub fn to_physical(&self, packed: &PackedSchema) -> Result<RecordBatch> {
        let Some(layout) = &packed.layout else { return self.columns() };
        let bytes = self.rows_of(layout, 0..self.rows)?;
        let width = i32::try_from(layout.width).map_err(|_| Error::invalid("a row is too wide"))?;
        let rows = FixedSizeBinaryArray::try_new(width, bytes, None).map_err(|e| unfit(&e))?;
        let mut columns: Vec<ArrayRef> = vec![Arc::new(rows)];
        for column in (0..self.places.len()).filter(|c| !layout.has(*c)) {
            columns.push(self.array(column)?);
        }
        record_batch(packed.physical.clone(), columns, self.rows)
    }

    /// As a message of this form holds it.
    pub(crate) fn to_form(&self, packed: &PackedSchema, form: Form) -> Result<RecordBatch> {
        match form {
            Form::Columns => self.columns(),
            Form::Packed => self.to_physical(packed),
        }
    }

    /// The wanted columns out of parts that hold them all. `Corrupt` if one does not fit.
    pub fn compose(wanted: &SchemaRef, parts: &[&Self], rows: usize) -> Result<Self> {
        let (mut blocks, mut first) = (Vec::new(), Vec::with_capacity(parts.len()));
        for part in parts {
            first.push(blocks.len());
            blocks.extend(part.blocks.iter().cloned());
        }
        let mut places = Vec::with_capacity(wanted.fields().len());
        for field in wanted.fields() {
            let found = parts
                .iter()
                .zip(&first)
                .find_map(|(p, f)| Some((p, f, p.schema.index_of(field.name()).ok()?)));
            let (part, first, column) = found.ok_or_else(|| {
                Error::corrupt(format!("column `{}` vanished while it was read", field.name()))
            })?;
            places.push(match &part.places[column] {
                ColumnPlace::Rows { block, column: place }
                    if part.schema.field(column).data_type() == field.data_type()
                        && (field.is_nullable() || place.valid.is_none()) =>
                {
                    ColumnPlace::Rows { block: first + block, column: *place }
                }
                // A segment may have been filled for another dataset that holds its object, whose first
                // object named the parts of lists and maps differently.
                _ => ColumnPlace::Array(
                    schema::retype(part.array(column)?, field.data_type()).map_err(|e| unfit(&e))?,
                ),
            });
        }
        let schema: SchemaRef = Arc::new(Schema::new(wanted.fields().clone()));
        let fits = |(place, field): (&ColumnPlace, &arrow::datatypes::FieldRef)| match place {
            ColumnPlace::Array(array) => {
                array.len() == rows && (field.is_nullable() || array.null_count() == 0)
            }
            ColumnPlace::Rows { .. } => true,
        };
        if let Some((_, field)) = places.iter().zip(wanted.fields()).find(|(p, f)| !fits((p, f))) {
            return Err(Error::corrupt(format!(
                "column `{}` does not fit the dataset's schema",
                field.name()
            )));
        }
        Ok(Self { schema, rows, blocks, places })
    }

    /// Bytes of memory that the buffers keep, each piece of memory once: all columns of a segment from
    /// another node lie in one.
    pub fn memory_bytes(&self) -> usize {
        fn collect(data: &ArrayData, pieces: &mut HashMap<usize, usize>) {
            let own = data.buffers().iter().chain(data.nulls().map(|nulls| nulls.buffer()));
            pieces.extend(own.map(piece));
            data.child_data().iter().for_each(|child| collect(child, pieces));
        }
        let mut pieces: HashMap<usize, usize> = self.blocks.iter().map(|block| piece(&block.bytes)).collect();
        for place in &self.places {
            if let ColumnPlace::Array(array) = place {
                collect(&array.to_data(), &mut pieces);
            }
        }
        pieces.values().sum()
    }

    /// Bytes of the values themselves, whatever memory their buffers keep.
    pub fn value_bytes(&self) -> usize {
        let arrays = self.places.iter().filter_map(|place| match place {
            ColumnPlace::Array(array) => Some(slice_bytes(array)),
            ColumnPlace::Rows { .. } => None,
        });
        let narrow: usize = self.places.iter().map(ColumnPlace::packed_width).sum();
        arrays.sum::<usize>() + narrow * self.rows
    }
}

/// A buffer's piece of memory, and its size.
fn piece(buffer: &Buffer) -> (usize, usize) {
    (buffer.data_ptr().as_ptr() as usize, buffer.capacity())
}

/// A batch of columns that may be none.
pub(crate) fn record_batch(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options).map_err(|e| unfit(&e))
}

fn unfit(e: &ArrowError) -> Error {
    Error::corrupt(format!("the stored columns do not fit the dataset's schema: {e}"))
}
