//! Bytes that an array really holds, however much of its buffers others share.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::datatypes::DataType;

/// Bytes of the values of a slice, lists with the elements that they have and no others. Arrow's own count
/// takes the elements of the whole buffer for those of every slice of it.
pub fn slice_bytes(array: &dyn Array) -> usize {
    let own = match array.data_type() {
        DataType::List(_) => {
            listed::<i32>(array.as_list::<i32>().value_offsets(), array.as_list::<i32>().values())
        }
        DataType::LargeList(_) => {
            listed::<i64>(array.as_list::<i64>().value_offsets(), array.as_list::<i64>().values())
        }
        DataType::Map(..) => {
            let entries: ArrayRef = std::sync::Arc::new(array.as_map().entries().clone());
            listed::<i32>(array.as_map().value_offsets(), &entries)
        }
        DataType::FixedSizeList(..) => slice_bytes(array.as_fixed_size_list().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|c| slice_bytes(c)).sum(),
        t if t.is_primitive() => array.len() * t.primitive_width().unwrap_or(0),
        _ => {
            return array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size());
        }
    };
    own + array.nulls().map_or(0, |nulls| nulls.len().div_ceil(8))
}

/// Offsets, and the elements between the first and the last.
fn listed<O: OffsetSizeTrait>(offsets: &[O], elements: &ArrayRef) -> usize {
    let at = |offset: Option<&O>| offset.map_or(0, |o| o.as_usize());
    let (first, last) = (at(offsets.first()), at(offsets.last()));
    let rows = offsets.len().saturating_sub(1);
    rows * size_of::<O>() + slice_bytes(&elements.slice(first, last - first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int32Array, ListArray, StringArray, StructArray};
    use arrow::datatypes::{Field, Int32Type};
    use std::sync::Arc;

    #[test]
    fn slices_are_their_part_of_the_whole() {
        let rows = (0..1000).map(|i| Some((0..i % 7).map(Some).collect::<Vec<_>>()));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(|i| "x".repeat(i % 5))));
        let field = |name: &str, a: &ArrayRef| Arc::new(Field::new(name, a.data_type().clone(), true));
        let both: ArrayRef = Arc::new(StructArray::from(vec![
            (field("l", &lists), lists.clone()),
            (field("t", &texts), texts.clone()),
        ]));
        let elements = lists.as_list::<i32>().values().len();
        // All are there, so each has a bit that says so.
        assert_eq!(slice_bytes(&lists), 1000 * 4 + elements * 4 + lists.nulls().map_or(0, |_| 125));
        for array in [&lists, &texts, &both] {
            let parts: usize = (0..125).map(|i| slice_bytes(&array.slice(8 * i, 8))).sum();
            // Each slice of strings has one offset more than rows.
            let more = parts - slice_bytes(array);
            assert!(more <= 125 * 4, "{}: {more}", array.data_type());
        }
        assert_eq!(slice_bytes(&Int32Array::from(vec![1; 10]).slice(3, 4)), 16);
    }
}
