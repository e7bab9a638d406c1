//! Gather against `take` of the concatenated sources.

use super::*;
use arrow::array::*;
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{Field, Schema};
use proptest::prelude::*;
use std::sync::Arc;

fn source(rows: usize, salt: usize, nulls: bool) -> RecordBatch {
    let null = |i: usize| nulls && (i * 7 + salt).is_multiple_of(5);
    let ints = (0..rows).map(|i| (i * 31 + salt) as i64);
    let bytes = UInt8Array::from_iter_values((0..rows * 6).map(|i| (i * 13 + salt) as u8));
    let list = FixedSizeListArray::new(
        Arc::new(Field::new("item", DataType::UInt8, true)),
        6,
        Arc::new(bytes.clone()),
        nulls.then(|| (0..rows).map(|i| !null(i)).collect()),
    );
    let nested = FixedSizeListArray::new(
        Arc::new(Field::new("item", list.data_type().clone(), true)),
        1,
        Arc::new(list.clone()),
        None,
    );
    let schema = Schema::new(vec![
        Field::new("i", DataType::Int64, true),
        Field::new("b", DataType::Boolean, true),
        Field::new("s", DataType::Utf8, true),
        Field::new("l", list.data_type().clone(), true),
        Field::new("n", nested.data_type().clone(), true),
        Field::new("f", DataType::FixedSizeBinary(3), true),
        Field::new("d", DataType::Decimal128(20, 3), true),
        Field::new("z", DataType::Null, true),
    ]);
    let fixed = FixedSizeBinaryArray::new(
        3,
        Buffer::from_vec((0..rows * 3).map(|i| (i + salt) as u8).collect::<Vec<u8>>()),
        None,
    );
    let columns: Vec<ArrayRef> = vec![
        Arc::new(ints.clone().enumerate().map(|(i, v)| (!null(i)).then_some(v)).collect::<Int64Array>()),
        Arc::new((0..rows).map(|i| (!null(i)).then_some(i % 3 == 0)).collect::<BooleanArray>()),
        Arc::new((0..rows).map(|i| (!null(i)).then(|| format!("{i}-{salt}"))).collect::<StringArray>()),
        Arc::new(list),
        Arc::new(nested),
        Arc::new(fixed),
        Arc::new(ints.map(i128::from).collect::<Decimal128Array>().with_precision_and_scale(20, 3).unwrap()),
        Arc::new(NullArray::new(rows)),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

proptest! {
    #[test]
    fn equals_take(
        sizes in prop::collection::vec((1usize..40, any::<bool>(), 0usize..4), 1..5),
        raw in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..80),
        pack in prop::collection::vec(any::<bool>(), 5),
    ) {
        let sources: Vec<RecordBatch> = sizes
            .iter()
            .enumerate()
            .map(|(salt, &(n, nulls, skip))| source(n + skip, salt, nulls).slice(skip, n))
            .collect();
        let picks: Vec<Pick> = raw.iter().map(|(s, r)| {
            let s = s.index(sources.len());
            (s, r.index(sources[s].num_rows()))
        }).collect();
        let schema = sources[0].schema();
        let wanted = PackedSchema::new(schema.clone());
        let packed = |(batch, pack): (&RecordBatch, &bool)| match pack {
            true => SegmentBatch::pack(batch.clone()).unwrap(),
            false => batch.clone().into(),
        };
        let batches: Vec<SegmentBatch> = sources.iter().zip(&pack).map(packed).collect();
        let batches: Vec<&SegmentBatch> = batches.iter().collect();
        let starts: Vec<usize> =
            sources.iter().scan(0, |t, b| { *t += b.num_rows(); Some(*t - b.num_rows()) }).collect();
        let whole = concat_batches(&schema, &sources).unwrap();
        let places = UInt64Array::from_iter_values(picks.iter().map(|&(s, r)| (starts[s] + r) as u64));
        let taken = take_record_batch(&whole, &places).unwrap();
        for form in [Form::Columns, Form::Packed] {
            let got = gather(&wanted, &batches, &picks, form, &Pool::new(1 << 20).into()).unwrap();
            prop_assert_eq!(&got.columns().unwrap(), &taken);
        }
    }

    #[test]
    fn rows_side_by_side_are_lent(
        (all, nulls, pack) in (20_000usize..30_000, any::<bool>(), any::<bool>()),
        (first, last) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let made = source(all, 1, nulls);
        let batch = if pack { SegmentBatch::pack(made.clone()).unwrap() } else { made.clone().into() };
        let (first, last) = (first.index(all), last.index(all));
        let rows = first.min(last)..first.max(last) + 1;
        let picks: Vec<Pick> = rows.clone().map(|row| (0, row)).collect();
        let wanted = PackedSchema::new(made.schema());
        let pool = MessagePool::from(Pool::new(1 << 20)).lending();
        for form in [Form::Columns, Form::Packed] {
            let got = gather(&wanted, &[&batch], &picks, form, &pool).unwrap();
            prop_assert_eq!(got.columns().unwrap(), made.slice(rows.start, rows.len()));
        }
    }
}

#[test]
fn what_is_lent_is_not_copied() {
    let values = Int64Array::from_iter_values(0..20_000);
    let lies_at = values.values()[5..].as_ptr();
    let made = RecordBatch::try_from_iter([("id", Arc::new(values) as ArrayRef)]).unwrap();
    let (wanted, batch) = (PackedSchema::new(made.schema()), SegmentBatch::from(made));
    let pool = MessagePool::from(Pool::new(1 << 20));
    let address = |picks: Vec<Pick>, pool: &MessagePool| {
        let columns = gather(&wanted, &[&batch], &picks, Form::Columns, pool).unwrap().columns().unwrap();
        columns.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().as_ptr()
    };
    let side_by_side: Vec<Pick> = (5..15_000).map(|row| (0, row)).collect();
    assert_eq!(address(side_by_side.clone(), &pool.lending()), lies_at);
    assert_ne!(address(side_by_side.clone(), &pool), lies_at, "this pool does not lend");
    assert_ne!(address(side_by_side[..100].to_vec(), &pool.lending()), lies_at, "it is not worth it");
    let twice = side_by_side.iter().chain(&side_by_side).copied().collect();
    assert_ne!(address(twice, &pool.lending()), lies_at, "they do not lie side by side");
}

#[test]
fn picks_outside_are_refused() {
    let s = source(3, 0, false);
    for pick in [(0, 3), (1, 0)] {
        let wanted = PackedSchema::new(s.schema());
        assert!(gather(&wanted, &[&s.clone().into()], &[pick], Form::Columns, &Pool::new(0).into()).is_err());
    }
}

proptest! {
    #[test]
    fn concatenated_strings_are_arrows(
        pieces in prop::collection::vec((prop::collection::vec(prop::option::of("[a-z]{0,9}"), 0..20), 0usize..4), 1..5),
    ) {
        let piece = |(values, skip): &(Vec<Option<String>>, usize)| {
            let array = StringArray::from(values.clone());
            array.slice((*skip).min(array.len()), array.len().saturating_sub(*skip))
        };
        let strings: Vec<StringArray> = pieces.iter().map(piece).collect();
        let strings: Vec<&dyn Array> = strings.iter().map(|a| a as &dyn Array).collect();
        let binaries: Vec<ArrayRef> =
            strings.iter().map(|a| arrow::compute::cast(*a, &DataType::LargeBinary).unwrap()).collect();
        let binaries: Vec<&dyn Array> = binaries.iter().map(AsRef::as_ref).collect();
        for arrays in [strings, binaries] {
            let got = concat(&arrays, &Pool::new(0)).unwrap();
            prop_assert_eq!(&got, &arrow::compute::concat(&arrays).unwrap());
        }
    }
}
