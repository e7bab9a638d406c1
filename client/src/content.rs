//! The content digest of a batch: what its rows hold, column by column, in a form that does not depend on how
//! Arrow lays them out. docs/order.md defines the bytes, so that others can compute them.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{ArrowNativeType, DataType};
use forebay_proto::digest::ContentDigest;
use forebay_proto::{Error, Result};
use std::ops::Range;

/// The digest of the rows of a batch that stand at `positions` of an epoch; those that `mask` leaves out do
/// not count.
///
/// # Errors
/// `Invalid` for a column of a type that no rule covers.
pub fn content_digest(
    batch: &RecordBatch,
    positions: &[u64],
    mask: Option<&BooleanBuffer>,
) -> Result<ContentDigest> {
    let columns = batch.columns().iter().map(|column| Values::new(column));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let (mut digest, mut bytes) = (ContentDigest::default(), Vec::new());
    for (row, position) in positions.iter().enumerate() {
        if mask.is_some_and(|mask| !mask.value(row)) {
            continue;
        }
        bytes.clear();
        bytes.extend_from_slice(&position.to_le_bytes());
        columns.iter().for_each(|column| column.push(row, &mut bytes));
        digest.add(&bytes);
    }
    Ok(digest)
}

/// A column whose values can be written one by one.
struct Values {
    nulls: Option<NullBuffer>,
    layout: Layout,
}

/// Where values lie.
enum Layout {
    /// Nothing but nulls.
    None,
    Bits(BooleanBuffer),
    /// Values of `width` bytes each.
    Fixed {
        bytes: Buffer,
        width: usize,
    },
    /// The bytes between two offsets.
    Bytes {
        offsets: Vec<usize>,
        bytes: Buffer,
    },
    /// The elements between two offsets.
    Lists {
        offsets: Vec<usize>,
        elements: Box<Values>,
    },
    /// `length` elements each.
    FixedLists {
        length: usize,
        elements: Box<Values>,
    },
    Structs(Vec<Values>),
}

impl Values {
    fn new(array: &dyn Array) -> Result<Self> {
        let kind = array.data_type();
        let layout = match kind {
            DataType::Null => Layout::None,
            DataType::Boolean => Layout::Bits(array.as_boolean().values().clone()),
            DataType::FixedSizeBinary(width) => {
                let values = array.as_fixed_size_binary();
                Layout::Fixed { bytes: values.value_data().into(), width: *width as usize }
            }
            DataType::Utf8 | DataType::Binary => bytes::<i32>(array),
            DataType::LargeUtf8 | DataType::LargeBinary => bytes::<i64>(array),
            DataType::List(_) => lists(array.as_list::<i32>().offsets(), array.as_list::<i32>().values())?,
            DataType::LargeList(_) => {
                lists(array.as_list::<i64>().offsets(), array.as_list::<i64>().values())?
            }
            DataType::Map(..) => {
                let entries: ArrayRef = std::sync::Arc::new(array.as_map().entries().clone());
                lists(array.as_map().offsets(), &entries)?
            }
            DataType::FixedSizeList(_, length) => Layout::FixedLists {
                length: *length as usize,
                elements: Box::new(Self::new(array.as_fixed_size_list().values())?),
            },
            DataType::Struct(_) => {
                let fields = array.as_struct().columns().iter().map(|field| Self::new(field));
                Layout::Structs(fields.collect::<Result<_>>()?)
            }
            // The same values, laid out plainly.
            DataType::Dictionary(_, plain) => return Self::as_type(array, plain),
            DataType::RunEndEncoded(_, plain) => return Self::as_type(array, plain.data_type()),
            DataType::Utf8View => return Self::as_type(array, &DataType::LargeUtf8),
            DataType::BinaryView => return Self::as_type(array, &DataType::LargeBinary),
            kind => match kind.primitive_width() {
                Some(width) => {
                    let data = array.to_data();
                    let (from, length) = (data.offset() * width, data.len() * width);
                    Layout::Fixed { bytes: data.buffers()[0].slice_with_length(from, length), width }
                }
                None => {
                    return Err(Error::invalid(format!("a column of type {kind} has no content digest")));
                }
            },
        };
        Ok(Self { nulls: array.logical_nulls(), layout })
    }

    fn as_type(array: &dyn Array, kind: &DataType) -> Result<Self> {
        let plain = cast(array, kind);
        Self::new(&plain.map_err(|e| Error::invalid(format!("a column has no content digest: {e}")))?)
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    /// A byte that says whether there is a value, and the value.
    fn push(&self, row: usize, out: &mut Vec<u8>) {
        let is_value = !self.is_null(row);
        out.push(u8::from(is_value));
        if is_value {
            self.push_value(row, out);
        }
    }

    fn push_value(&self, row: usize, out: &mut Vec<u8>) {
        match &self.layout {
            Layout::None => {}
            Layout::Bits(bits) => out.push(u8::from(bits.value(row))),
            Layout::Fixed { bytes, width } => out.extend_from_slice(&bytes[row * width..(row + 1) * width]),
            Layout::Bytes { offsets, bytes } => {
                let value = &bytes[offsets[row]..offsets[row + 1]];
                push_count(value.len(), out);
                out.extend_from_slice(value);
            }
            Layout::Lists { offsets, elements } => {
                let list = offsets[row]..offsets[row + 1];
                push_count(list.len(), out);
                elements.push_all(list, out);
            }
            Layout::FixedLists { length, elements } => {
                elements.push_all(row * length..(row + 1) * length, out);
            }
            Layout::Structs(fields) => fields.iter().for_each(|field| field.push(row, out)),
        }
    }

    /// The elements of a list: a byte that says whether each is a value; if so the values alone.
    fn push_all(&self, list: Range<usize>, out: &mut Vec<u8>) {
        let all_values = !list.clone().any(|row| self.is_null(row));
        out.push(u8::from(all_values));
        match &self.layout {
            Layout::Fixed { bytes, width } if all_values => {
                out.extend_from_slice(&bytes[list.start * width..list.end * width]);
            }
            _ if all_values => list.for_each(|row| self.push_value(row, out)),
            _ => list.for_each(|row| self.push(row, out)),
        }
    }
}

fn push_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(count as u64).to_le_bytes());
}

fn bytes<O: arrow::array::OffsetSizeTrait>(array: &dyn Array) -> Layout {
    let data = array.to_data();
    let offsets = data.buffer::<O>(0)[..=data.len()].iter().map(|o| o.as_usize()).collect();
    Layout::Bytes { offsets, bytes: data.buffers()[1].clone() }
}

fn lists<O: ArrowNativeType>(offsets: &[O], elements: &ArrayRef) -> Result<Layout> {
    let offsets = offsets.iter().map(|o| o.as_usize()).collect();
    Ok(Layout::Lists { offsets, elements: Box::new(Values::new(elements)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{
        BooleanArray, DictionaryArray, FixedSizeListArray, Float32Array, Int16Array, ListArray, StringArray,
        StringViewArray, StructArray,
    };
    use arrow::datatypes::{Field, Fields, Int8Type, Int32Type};

    fn bytes_of(column: ArrayRef, row: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        Values::new(&column).unwrap().push(row, &mut bytes);
        bytes
    }

    #[test]
    fn canonical_bytes_are_those_of_the_page() {
        let float: ArrayRef = Arc::new(Float32Array::from(vec![None, Some(1.5)]));
        assert_eq!(bytes_of(float.clone(), 0), [0]);
        assert_eq!(bytes_of(float, 1), [1, 0, 0, 0xc0, 0x3f]);
        assert_eq!(bytes_of(Arc::new(BooleanArray::from(vec![false, true])), 1), [1, 1]);
        let text = [1, 2, 0, 0, 0, 0, 0, 0, 0, b'h', b'i'];
        assert_eq!(bytes_of(Arc::new(StringArray::from(vec!["", "hi"]).slice(1, 1)), 0), text);
        assert_eq!(bytes_of(Arc::new(StringViewArray::from(vec!["hi"])), 0), text);
        let words: DictionaryArray<Int8Type> = ["a", "hi", "a"].into_iter().collect();
        assert_eq!(bytes_of(Arc::new(words), 1), text);
        let lists = [Some(vec![Some(7)]), Some(vec![Some(1), None]), None, Some(vec![])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        assert_eq!(bytes_of(lists.clone(), 0), [1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 7, 0, 0, 0]);
        assert_eq!(bytes_of(lists.slice(1, 3), 0), [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]);
        assert_eq!(bytes_of(lists.clone(), 2), [0]);
        assert_eq!(bytes_of(lists, 3), [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let item = Arc::new(Field::new("item", DataType::Int16, true));
        let pairs = FixedSizeListArray::new(item, 2, Arc::new(Int16Array::from(vec![1, 2, 3, 4])), None);
        assert_eq!(bytes_of(Arc::new(pairs.clone()), 1), [1, 1, 3, 0, 4, 0]);
        let fields = Fields::from(vec![Field::new("p", pairs.data_type().clone(), true)]);
        let structs = StructArray::new(fields, vec![Arc::new(pairs)], Some(vec![true, false].into()));
        assert_eq!(bytes_of(Arc::new(structs.clone()), 0), [1, 1, 1, 1, 0, 2, 0]);
        assert_eq!(bytes_of(Arc::new(structs), 1), [0]);
    }

    #[test]
    fn a_digest_tells_values_and_places_apart_and_merges() {
        let batch = |values: Vec<i16>| {
            RecordBatch::try_from_iter([("x", Arc::new(Int16Array::from(values)) as ArrayRef)]).unwrap()
        };
        let of = |values: &[i16], positions: &[u64]| {
            content_digest(&batch(values.to_vec()), positions, None).unwrap()
        };
        let whole = of(&[5, 6, 7], &[0, 1, 2]);
        let mut parts = of(&[7, 5], &[2, 0]);
        parts.merge(of(&[6], &[1]));
        assert_eq!(whole, parts);
        assert_ne!(whole, of(&[5, 7, 6], &[0, 1, 2]), "swapped");
        assert_ne!(whole, of(&[5, 6, 8], &[0, 1, 2]), "another value");
        let padded = content_digest(
            &batch(vec![5, 6, 7, 5]),
            &[0, 1, 2, 3],
            Some(&vec![true, true, true, false].into()),
        );
        assert_eq!(whole, padded.unwrap());
    }
}
