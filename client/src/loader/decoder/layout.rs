//! Where a message's columns lie in its body, read from its IPC header and checked against schema and body
//! length.
//!
//! A column is *plain* in a message when its rows are fixed-width values without nulls: then they are one
//! stretch of the body, row after row, and can go straight to their place. So can strings and binaries
//! without nulls, once their offsets have come: they are *variable*. All others are *odd* and must become
//! Arrow arrays first. A column may be plain in one message and odd in the next.

use crate::loader::byte_column::offset_bytes;
use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, SchemaRef, UnionMode};
use arrow_ipc::{MessageHeader, MetadataVersion};
use bytes::Bytes;
use forebay_dataset::stream::gather::plain_width;
use forebay_proto::{Error, Result};
use std::ops::Range;

/// Where a column lies in a message's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ColumnLayout {
    /// Rows of `width` bytes each, from byte `start` of the body on.
    Plain { start: usize, width: usize },
    /// One offset more than there are rows, of `width` bytes each, and behind them the values. All its
    /// buffers lie in `all`.
    Variable { offsets: Range<usize>, width: usize, values: Range<usize>, all: Range<usize> },
    /// The stretch of the body that holds all its buffers.
    Odd(Range<usize>),
}

/// A message's rows and columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageLayout {
    pub rows: u32,
    pub columns: Vec<ColumnLayout>,
}

/// Whether a header is a Schema message; if so, whether it names the columns of `schema`.
pub(crate) fn is_schema(header: &[u8], schema: &SchemaRef) -> Result<bool> {
    let message = arrow_ipc::root_as_message(header).map_err(|e| corrupt(&e.to_string()))?;
    if message.header_type() != MessageHeader::Schema {
        return Ok(false);
    }
    let sent =
        arrow_ipc::convert::try_schema_from_flatbuffer_bytes(header).map_err(|e| corrupt(&e.to_string()))?;
    let same = |(a, b): (&std::sync::Arc<Field>, &std::sync::Arc<Field>)| {
        a.name() == b.name() && a.data_type().equals_datatype(b.data_type())
    };
    match sent.fields().len() == schema.fields().len() && sent.fields().iter().zip(schema.fields()).all(same)
    {
        true => Ok(true),
        false => Err(Error::corrupt(format!(
            "the stream has columns [{}], the dataset's manifest says [{}]",
            names(sent.fields()),
            names(schema.fields())
        ))),
    }
}

fn names(fields: &arrow::datatypes::Fields) -> String {
    fields.iter().map(|f| format!("{}: {}", f.name(), f.data_type())).collect::<Vec<_>>().join(", ")
}

/// Reads a RecordBatch header; `Corrupt` unless every buffer that it names lies within the body.
pub(crate) fn read(header: &[u8], body_bytes: usize, schema: &SchemaRef) -> Result<MessageLayout> {
    let message = arrow_ipc::root_as_message(header).map_err(|e| corrupt(&e.to_string()))?;
    let batch = message.header_as_record_batch().ok_or_else(|| corrupt("it holds no record batch"))?;
    if batch.compression().is_some() {
        return Err(corrupt("its body is compressed, which was not asked for"));
    }
    let rows = u32::try_from(batch.length()).map_err(|_| corrupt("its number of rows is out of range"))?;
    let nodes = batch.nodes().ok_or_else(|| corrupt("it has no field nodes"))?;
    let buffers = batch.buffers().ok_or_else(|| corrupt("it has no buffers"))?;
    let mut walk = HeaderWalk {
        nodes: Vec::with_capacity(nodes.len()),
        buffers: Vec::with_capacity(buffers.len()),
        variadic: batch.variadicBufferCounts().map(|v| v.iter().collect()).unwrap_or_default(),
        old: message.version() < MetadataVersion::V5,
        ..HeaderWalk::default()
    };
    walk.nodes.extend(nodes.iter().map(|n| (n.length(), n.null_count())));
    for b in buffers.iter() {
        let range = usize::try_from(b.offset()).ok().zip(usize::try_from(b.length()).ok());
        let range = range.and_then(|(start, bytes)| Some(start..start.checked_add(bytes)?));
        match range.filter(|r| r.end <= body_bytes) {
            Some(range) => walk.buffers.push(range),
            None => return Err(corrupt("a buffer lies outside its body")),
        }
    }
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        columns.push(walk.column(field, rows)?);
    }
    match (walk.node, walk.buffer) == (walk.nodes.len(), walk.buffers.len()) {
        true => Ok(MessageLayout { rows, columns }),
        false => Err(corrupt("it has more buffers than its columns need")),
    }
}

/// Makes arrays of the odd columns `projection`. `body` need only be filled where they lie.
pub(crate) fn odd_arrays(
    header: &Bytes,
    body: &Buffer,
    schema: &SchemaRef,
    projection: &[usize],
) -> Result<Vec<ArrayRef>> {
    let message = arrow_ipc::root_as_message(header).map_err(|e| corrupt(&e.to_string()))?;
    let batch = message.header_as_record_batch().ok_or_else(|| corrupt("it holds no record batch"))?;
    let (none, version) = (Default::default(), message.version());
    // The decoder checks most of what it reads, but asserts some of it.
    let read = std::panic::AssertUnwindSafe(|| {
        arrow_ipc::reader::read_record_batch(body, batch, schema.clone(), &none, Some(projection), &version)
    });
    match std::panic::catch_unwind(read) {
        Ok(Ok(batch)) => Ok(batch.columns().to_vec()),
        Ok(Err(e)) => Err(corrupt(&e.to_string())),
        Err(_) => Err(corrupt("its header does not fit the columns")),
    }
}

/// A position among a header's nodes and buffers.
#[derive(Default)]
struct HeaderWalk {
    nodes: Vec<(i64, i64)>,
    buffers: Vec<Range<usize>>,
    variadic: std::collections::VecDeque<i64>,
    /// The header is of a version before unions lost their validity.
    old: bool,
    node: usize,
    buffer: usize,
}

impl HeaderWalk {
    fn column(&mut self, field: &Field, rows: u32) -> Result<ColumnLayout> {
        let (first_node, first_buffer) = (self.node, self.buffer);
        let length = self.nodes.get(first_node).map(|n| n.0);
        if length != Some(i64::from(rows)) {
            return Err(corrupt(&format!("column {} has {length:?} rows of {rows}", field.name())));
        }
        self.pass(field.data_type())?;
        if let Some(width) = plain_width(field.data_type()) {
            let values = self.buffers[self.buffer - 1].clone();
            let no_nulls = self.nodes[first_node..self.node].iter().all(|n| n.1 == 0);
            let lengths_fit = self.lengths_fit(first_node, field.data_type(), i64::from(rows));
            if no_nulls && lengths_fit && values.len() / width >= rows as usize {
                return Ok(ColumnLayout::Plain { start: values.start, width });
            }
        }
        let used = self.buffers[first_buffer..self.buffer].iter().filter(|b| !b.is_empty());
        let start = used.clone().map(|b| b.start).min().unwrap_or(0);
        let all = start..used.map(|b| b.end).max().unwrap_or(start);
        if let Some(width) = offset_bytes(field.data_type())
            && let [_, offsets, values] = &self.buffers[first_buffer..self.buffer]
        {
            let end = offsets.start + (rows as usize + 1) * width;
            if self.nodes[first_node].1 == 0 && end <= offsets.end && offsets.end <= values.start {
                let (offsets, values) = (offsets.start..end, values.clone());
                return Ok(ColumnLayout::Variable { offsets, width, values, all });
            }
        }
        Ok(ColumnLayout::Odd(all))
    }

    /// Whether a fixed-width column's nodes have the lengths that its lists imply.
    fn lengths_fit(&self, node: usize, data_type: &DataType, rows: i64) -> bool {
        let here = self.nodes[node].0 == rows;
        match data_type {
            DataType::FixedSizeList(item, n) => {
                let items = rows.checked_mul(i64::from(*n));
                here && items.is_some_and(|items| self.lengths_fit(node + 1, item.data_type(), items))
            }
            _ => here,
        }
    }

    /// Passes a type's nodes and buffers, in the order of the IPC format.
    fn pass(&mut self, data_type: &DataType) -> Result<()> {
        use DataType::{
            Binary, BinaryView, FixedSizeList, LargeBinary, LargeList, LargeListView, LargeUtf8, List,
            ListView, Map, Null, RunEndEncoded, Struct, Union, Utf8, Utf8View,
        };
        self.node += 1;
        self.buffer += match data_type {
            Null | RunEndEncoded(..) => 0,
            FixedSizeList(..) | Struct(_) => 1,
            Utf8 | Binary | LargeUtf8 | LargeBinary | ListView(_) | LargeListView(_) => 3,
            Utf8View | BinaryView => {
                let count = self.variadic.pop_front().and_then(|n| usize::try_from(n).ok());
                count.filter(|n| *n < 1 << 20).ok_or_else(|| corrupt("it lacks a count of buffers"))? + 2
            }
            Union(_, mode) => 1 + usize::from(*mode == UnionMode::Dense) + usize::from(self.old),
            _ => 2,
        };
        match data_type {
            FixedSizeList(item, _)
            | List(item)
            | LargeList(item)
            | ListView(item)
            | LargeListView(item)
            | Map(item, _) => self.pass(item.data_type())?,
            Struct(fields) => fields.iter().try_for_each(|f| self.pass(f.data_type()))?,
            Union(fields, _) => fields.iter().try_for_each(|(_, f)| self.pass(f.data_type()))?,
            RunEndEncoded(ends, values) => {
                self.pass(ends.data_type())?;
                self.pass(values.data_type())?;
            }
            _ => {}
        }
        match self.node <= self.nodes.len() && self.buffer <= self.buffers.len() {
            true => Ok(()),
            false => Err(corrupt("it has fewer buffers than its columns need")),
        }
    }
}

fn corrupt(why: &str) -> Error {
    Error::corrupt(format!("a record batch message cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        Array, FixedSizeListArray, Int64Array, RecordBatch, StringArray, StringViewArray, UInt8Array,
    };
    use forebay_dataset::stream::wire;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn batch(nulls: bool) -> RecordBatch {
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        let values = UInt8Array::from_iter((0..30u8).map(|i| (!nulls || i != 7).then_some(i)));
        let long = "a string that is too long for a view to hold";
        let columns: [(&str, ArrayRef); 4] = [
            ("image", Arc::new(FixedSizeListArray::new(item, 3, Arc::new(values), None))),
            ("view", Arc::new(StringViewArray::from_iter_values((0..10).map(|i| format!("{long} {i}"))))),
            ("id", Arc::new(Int64Array::from_iter((0..10).map(|i| (!nulls || i != 3).then_some(i))))),
            ("name", Arc::new(StringArray::from_iter((0..10).map(|i| (i > 4).then(|| i.to_string()))))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()
    }

    #[test]
    fn plain_exactly_without_nulls() {
        for (nulls, plain) in [(false, [true, false, true, false]), (true, [false; 4])] {
            let batch = batch(nulls);
            let (header, body) = wire::encode(&batch).unwrap();
            let body = body.concat();
            let layout = read(&header, body.len(), &batch.schema()).unwrap();
            assert_eq!(layout.rows, 10);
            let found: Vec<bool> =
                layout.columns.iter().map(|c| matches!(c, ColumnLayout::Plain { .. })).collect();
            assert_eq!(found, plain);
            if let ColumnLayout::Plain { start, width } = layout.columns[0] {
                assert_eq!((&body[start..start + 30], width), (&(0..30).collect::<Vec<u8>>()[..], 3));
            }
            let odd: Vec<usize> = (0..4).filter(|i| !plain[*i]).collect();
            let arrays = odd_arrays(&header, &Buffer::from(&body[..]), &batch.schema(), &odd).unwrap();
            for (array, column) in arrays.iter().zip(&odd) {
                assert_eq!(array.as_ref(), batch.column(*column).as_ref());
            }
        }
    }

    #[test]
    fn schemas_are_told_apart() {
        let schema = batch(false).schema();
        assert!(is_schema(&wire::schema_header(&schema), &schema).unwrap());
        let (header, _) = wire::encode(&batch(false)).unwrap();
        assert!(!is_schema(&header, &schema).unwrap());
        let fewer = Arc::new(schema.project(&[0, 1]).unwrap());
        let e = is_schema(&wire::schema_header(&fewer), &schema).unwrap_err();
        assert!(e.message.contains("id: Int64"), "{e}");
    }

    proptest! {
        #[test]
        fn damaged_headers_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            body_bytes in 0usize..2000,
            nulls in any::<bool>(),
        ) {
            let batch = batch(nulls);
            let (header, body) = wire::encode(&batch).unwrap();
            let (mut header, mut body) = (header.to_vec(), body.concat());
            for (at, byte) in changes {
                let at = at.index(header.len());
                header[at] = byte;
            }
            body.resize(body_bytes, 0);
            if let Ok(layout) = read(&header, body.len(), &batch.schema()) {
                for column in &layout.columns {
                    match column {
                        ColumnLayout::Plain { start, width } => {
                            prop_assert!(start + width * layout.rows as usize <= body.len());
                        }
                        ColumnLayout::Variable { offsets, values, .. } => {
                            prop_assert!(offsets.end <= values.start && values.end <= body.len());
                        }
                        ColumnLayout::Odd(range) => prop_assert!(range.end <= body.len()),
                    }
                }
                let arrays = odd_arrays(&header.into(), &Buffer::from(&body[..]), &batch.schema(), &[0, 1, 2, 3]);
                for array in arrays.unwrap_or_default() {
                    prop_assert_eq!(array.len(), layout.rows as usize);
                }
            }
        }
    }
}
