//! Packed rows against the columns that they were made of.

use super::layout::NARROW_BYTES;
use super::*;
use crate::segment_batch::SegmentBatch;
use arrow::array::*;
use arrow::buffer::MutableBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use proptest::prelude::*;
use std::sync::Arc;

/// Rows with columns of every width, some of them with nulls, and two that are not narrow.
fn table(rows: usize, nulls: bool) -> RecordBatch {
    let null = |i: usize, salt: usize| nulls && (i * 7 + salt).is_multiple_of(5);
    let some = |i: usize, salt: usize| (!null(i, salt)).then_some(i * 31 + salt);
    let fixed = (0..rows).map(|i| some(i, 1).map(|v| [v as u8, 7, 9])).collect::<Vec<_>>();
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 3).unwrap();
    let decimal = (0..rows).map(|i| some(i, 2).map(|v| v as i128)).collect::<Decimal128Array>();
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        (
            "name",
            Arc::new((0..rows).map(|i| some(i, 0).map(|v| v.to_string())).collect::<StringArray>()),
            true,
        ),
        ("byte", Arc::new((0..rows).map(|i| some(i, 3).map(|v| v as i8)).collect::<Int8Array>()), true),
        ("id", Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i as i64))), false),
        ("half", Arc::new((0..rows).map(|i| some(i, 4).map(|v| v as u16)).collect::<UInt16Array>()), true),
        ("fixed", Arc::new(fixed), true),
        ("flag", Arc::new((0..rows).map(|i| some(i, 5).map(|v| v % 2 == 0)).collect::<BooleanArray>()), true),
        ("x", Arc::new((0..rows).map(|i| some(i, 6).map(|v| v as f32)).collect::<Float32Array>()), true),
        ("decimal", Arc::new(decimal.with_precision_and_scale(30, 2).unwrap()), true),
        ("day", Arc::new(Date32Array::from_iter_values((0..rows).map(|i| i as i32))), false),
    ];
    let field = |(name, array, nullable): &(&str, ArrayRef, bool)| {
        Field::new(*name, array.data_type().clone(), *nullable)
    };
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array, _)| array).collect()).unwrap()
}

#[test]
fn a_row_is_as_documented() {
    let packed = PackedSchema::new(table(0, false).schema());
    let layout = packed.layout.clone().unwrap();
    let places: Vec<_> = layout.columns.iter().map(|c| (c.column, c.offset, c.width, c.valid)).collect();
    // 38 bytes of values, then the bits of the five columns that may be null.
    let bit = |n: usize| Some(38 * 8 + n);
    let wanted = [
        (1, 0, 1, bit(0)),
        (2, 1, 8, None),
        (3, 9, 2, bit(1)),
        (4, 11, 3, bit(2)),
        (6, 14, 4, bit(3)),
        (7, 18, 16, bit(4)),
        (8, 34, 4, None),
    ];
    assert_eq!((&places[..], layout.width), (&wanted[..], 39));
    assert_eq!(layout.tile_bytes(), 64 * 39);
    let names: Vec<&String> = packed.physical.fields().iter().map(|f| f.name()).collect();
    assert_eq!(names, ["packed rows", "name", "flag"]);

    let rows = SegmentBatch::pack(table(3, true)).unwrap().to_physical(&packed).unwrap();
    let row = rows.column(0).as_fixed_size_binary().value(1).to_vec();
    // 1 * 7 + 3 is a multiple of 5, and so is 2 * 7 + 1: the value of a null is zero.
    let mut wanted = vec![0];
    wanted.extend(1i64.to_le_bytes());
    wanted.extend(35u16.to_le_bytes());
    wanted.extend([32, 7, 9]);
    wanted.extend(37f32.to_le_bytes());
    wanted.extend(33i128.to_le_bytes());
    wanted.extend(1i32.to_le_bytes());
    wanted.push(0b11110);
    assert_eq!(row, wanted);
    let null = rows.column(0).as_fixed_size_binary().value(2).to_vec();
    assert_eq!(null[11..14], [0, 0, 0]);
    assert_eq!(null[38] & 0b100, 0);
}

#[test]
fn few_narrow_columns_are_not_packed() {
    let of = |fields: Vec<Field>| PackedSchema::new(Arc::new(Schema::new(fields)));
    let narrow = |name: &str| Field::new(name, DataType::Int32, true);
    assert_eq!(of(vec![narrow("a"), Field::new("s", DataType::Utf8, true)]).layout, None);
    assert_eq!(of(vec![]).layout, None);
    assert_eq!(of(vec![narrow("a"), narrow("b")]).layout.unwrap().width, 9);
    let wide = |name: &str| Field::new(name, DataType::FixedSizeBinary(NARROW_BYTES as i32 + 1), true);
    assert_eq!(of(vec![wide("a"), wide("b")]).layout, None);
    assert_eq!(of((0..2000).map(|i| narrow(&i.to_string())).collect()).layout, None, "8 KiB a row");
}

proptest! {
    #[test]
    fn packed_and_split_again_is_the_same(
        rows in 0usize..200, nulls in any::<bool>(), skip in 0usize..40, part in any::<prop::sample::Index>(),
    ) {
        let whole = table(rows + skip, nulls).slice(skip, rows);
        let packed = SegmentBatch::pack(whole.clone()).unwrap();
        prop_assert_eq!(packed.num_rows(), rows);
        prop_assert_eq!(&packed.to_record_batch(0..rows).unwrap(), &whole);
        let from = part.index(rows + 1);
        prop_assert_eq!(packed.to_record_batch(from..rows).unwrap(), whole.slice(from, rows - from));
        let schema = PackedSchema::new(whole.schema());
        let sent = packed.to_physical(&schema).unwrap();
        let back = SegmentBatch::from_physical(&schema, sent).unwrap();
        prop_assert_eq!(back.to_record_batch(0..rows).unwrap(), whole);
    }

    #[test]
    fn rows_may_be_split_piece_by_piece_in_any_order(
        rows in 1usize..200, nulls in any::<bool>(), cut in any::<prop::sample::Index>(),
    ) {
        let whole = table(rows, nulls);
        let schema = PackedSchema::new(whole.schema());
        let layout = schema.layout.as_ref().unwrap();
        let sent = SegmentBatch::pack(whole.clone()).unwrap().to_physical(&schema).unwrap();
        let packed = sent.column(0).as_fixed_size_binary().value_data();
        let (first, second) = packed.split_at(cut.index(rows + 1) * layout.width);
        let mut values = MutableBuffer::from_len_zeroed(layout.split_bytes(rows));
        // Whatever lay there before.
        values.as_slice_mut().fill(0xa5);
        layout.split(rows, values.as_slice_mut()).write(first.len() / layout.width, second);
        layout.split(rows, values.as_slice_mut()).write(0, first);
        let narrow = layout.arrays(&whole.schema(), rows, &values.into()).unwrap();
        let columns = schema.columns(narrow, sent.columns()[1..].to_vec());
        prop_assert_eq!(RecordBatch::try_new(whole.schema(), columns).unwrap(), whole);
    }

    #[test]
    fn neighbours_of_equal_width_are_split_together_as_alone(
        rows in 0usize..150, widths in prop::collection::vec(prop::sample::select(vec![1, 4, 8]), 2..14),
    ) {
        let column = |(c, width): (usize, &i32)| {
            let value = |row: usize| (row * 1_000 + c * 37) as i64;
            let array: ArrayRef = match width {
                1 => Arc::new((0..rows).map(|row| value(row) as i8).collect::<Int8Array>()),
                4 => Arc::new((0..rows).map(|row| value(row) as f32).collect::<Float32Array>()),
                _ => Arc::new((0..rows).map(value).collect::<Int64Array>()),
            };
            (c.to_string(), array)
        };
        let whole = RecordBatch::try_from_iter(widths.iter().enumerate().map(column)).unwrap();
        let packed = SegmentBatch::pack(whole.clone()).unwrap();
        prop_assert_eq!(packed.to_record_batch(0..rows).unwrap(), whole);
    }

    #[test]
    fn columns_of_several_packed_files_make_one_batch(
        rows in 1usize..60, nulls in any::<bool>(), owner in prop::collection::vec(0usize..3, 9),
        wanted in prop::collection::btree_set(0usize..9, 1..9),
    ) {
        let whole = table(rows, nulls);
        let columns_of = |file: usize| (0..9).filter(|c| owner[*c] == file).collect::<Vec<_>>();
        let parts: Vec<SegmentBatch> = (0..3).map(columns_of).filter(|c| !c.is_empty())
            .map(|c| SegmentBatch::pack(whole.project(&c).unwrap()).unwrap()).collect();
        let wanted = whole.project(&wanted.into_iter().collect::<Vec<_>>()).unwrap();
        let parts: Vec<&SegmentBatch> = parts.iter().collect();
        let made = SegmentBatch::compose(&wanted.schema(), &parts, rows).unwrap();
        prop_assert_eq!(&made.to_record_batch(0..rows).unwrap(), &wanted);
        let packed = PackedSchema::new(wanted.schema());
        let sent = made.to_physical(&packed).unwrap();
        let back = SegmentBatch::from_physical(&packed, sent).unwrap();
        prop_assert_eq!(back.to_record_batch(0..rows).unwrap(), wanted);
    }
}

#[test]
fn a_missing_or_unfit_column_is_corrupt() {
    let part = SegmentBatch::pack(table(10, true)).unwrap();
    let of = |field: Field| SegmentBatch::compose(&Arc::new(Schema::new(vec![field])), &[&part], 10);
    for (field, why) in [
        (Field::new("none", DataType::Int8, true), "vanished"),
        (Field::new("byte", DataType::Int64, true), "Int64"),
        (Field::new("byte", DataType::Int8, false), "`byte` does not fit"),
    ] {
        let e = of(field).unwrap_err();
        assert!(e.kind == forebay_proto::Kind::Corrupt && e.message.contains(why), "{e}");
    }
    let id = of(Field::new("id", DataType::Int64, true)).unwrap();
    assert_eq!(id.to_record_batch(0..10).unwrap().column(0).null_count(), 0);
}
