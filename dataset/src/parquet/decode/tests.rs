//! The fast route for lists against the general one.

use super::*;
use crate::parquet::chunks::FetchedRange;
use crate::parquet::footer::Footer;
use arrow::array::{
    Array, BinaryArray, FixedSizeListArray, Float32Array, Int16Array, Int64Array, LargeBinaryArray,
    LargeListArray, LargeStringArray, ListArray, PrimitiveArray, StringArray, StructArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt8Array, UInt32Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{ArrowPrimitiveType, Field, Schema, TimeUnit};
use bytes::Bytes;
use forebay_proto::Kind;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{Int96, Int96Type};
use parquet::file::FOOTER_SIZE;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::iter::repeat_n;

fn list<T: ArrowPrimitiveType>(values: PrimitiveArray<T>, length: i32, nullable: bool) -> ArrayRef {
    let field = Arc::new(Field::new("item", T::DATA_TYPE, nullable));
    Arc::new(FixedSizeListArray::new(field, length, Arc::new(values), None))
}

fn task(columns: &[ArrayRef], group_rows: usize, properties: WriterPropertiesBuilder) -> (DecodeTask, Bytes) {
    let fields =
        columns.iter().enumerate().map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), columns.to_vec()).unwrap();
    let properties = properties.set_max_row_group_row_count(Some(group_rows)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema.clone(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let bytes = Bytes::from(bytes);
    (task_of(&bytes), bytes)
}

/// All columns of an object, as they are.
fn task_of(bytes: &Bytes) -> DecodeTask {
    let n = bytes.len();
    let length = u32::from_le_bytes(bytes[n - 8..n - 4].try_into().unwrap()) as usize;
    let footer = Footer::parse(&bytes[n - FOOTER_SIZE - length..n - FOOTER_SIZE], n as u64, None).unwrap();
    let rows = footer.row_groups().iter().map(|group| group.num_rows() as u64).sum();
    DecodeTask {
        uri: "file:///x".into(),
        selection: None,
        columns: (0..footer.schema.fields().len()).map(ColumnOrigin::Own).collect(),
        schema: footer.schema.clone(),
        part: RowGroups { range: 0..footer.row_groups().len(), footer: Arc::new(footer), rows },
        limit: DecodeLimit::Announced(u64::MAX),
        decoded: AtomicU64::new(0),
    }
}

/// The whole object as chunks.
fn chunks_of(bytes: &Bytes) -> Chunks {
    let ranges = Arc::new([FetchedRange { start: 0, bytes: bytes.clone() }]);
    Chunks { size: bytes.len() as u64, ranges }
}

fn decode(task: &DecodeTask, bytes: &Bytes) -> Result<RecordBatch> {
    let chunks = chunks_of(bytes);
    let mut decoded = vec![None; task.columns.len()];
    for hand in task.deal(2) {
        for (place, column) in hand.iter().zip(columns(task, &chunks, &hand)?) {
            decoded[*place] = Some(column);
        }
    }
    assemble(task, decoded.into_iter().flatten().collect())
}

fn variants() -> Vec<WriterPropertiesBuilder> {
    let b = WriterProperties::builder;
    vec![
        b(),
        b().set_dictionary_enabled(false).set_compression(Compression::ZSTD(Default::default())),
        b().set_writer_version(WriterVersion::PARQUET_2_0).set_compression(Compression::SNAPPY),
        b().set_writer_version(WriterVersion::PARQUET_2_0)
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN),
        b().set_data_page_row_count_limit(3).set_write_batch_size(2),
        b().set_data_page_size_limit(100).set_write_batch_size(5).set_dictionary_enabled(false),
    ]
}

/// Both routes yield the columns' values, and the fast one is taken in the variants that `fast` says.
fn both(columns: &[ArrayRef], fast: impl Fn(usize) -> bool) {
    for (i, properties) in variants().into_iter().enumerate() {
        for group_rows in [1000, 7] {
            let (t, bytes) = task(columns, group_rows, properties.clone());
            let chunks = chunks_of(&bytes);
            for c in 0..columns.len() {
                let read = whole::read(&t.part, &chunks, c, t.schema.field(c)).unwrap();
                assert_eq!(read.is_some(), fast(i), "column {c}, variant {i}");
            }
            let a = decode(&t, &bytes).unwrap();
            for (c, want) in columns.iter().enumerate() {
                let field = t.schema.field(c);
                let general = t.general(&chunks, c, field, &t.part.footer.arrow).unwrap();
                let b = retype(general, field.data_type()).unwrap();
                assert_eq!(a.column(c), &b, "column {c}, variant {i}");
                assert_eq!(a.column(c).as_ref(), want.as_ref(), "column {c}, variant {i}");
            }
        }
    }
}

#[test]
fn full_lists_are_read_the_fast_way() {
    let n = 50;
    let columns = [
        list(UInt8Array::from_iter_values((0..n * 31).map(|i| (i * 7 % 256) as u8)), 31, true),
        list(Float32Array::from_iter_values((0..n * 3).map(|i| i as f32 / 3.0)), 3, false),
        list(Int64Array::from_iter_values((0..n).map(|i| i * -77777777777)), 1, true),
        list(Int16Array::from_iter_values((0..n * 8).map(|i| i as i16 - 300)), 8, false),
        list(UInt32Array::from_iter_values((0..n * 2).map(|i| u32::MAX - i as u32)), 2, true),
    ];
    both(&columns, |_| true);
}

#[test]
fn lists_with_nulls_are_left_to_the_general_reader() {
    let element = UInt8Array::from_iter((0..400).map(|i| (i != 17).then_some(i as u8)));
    both(&[list(element, 8, true)], |_| false);

    let field = Arc::new(Field::new("item", arrow::datatypes::DataType::UInt8, false));
    let values = Arc::new(UInt8Array::from_iter_values((0..400).map(|i| i as u8)));
    let nulls = NullBuffer::from((0..50).map(|i| i != 33).collect::<Vec<_>>());
    let lists: ArrayRef = Arc::new(FixedSizeListArray::new(field, 8, values, Some(nulls)));
    both(&[lists], |_| false);
}

#[test]
fn numbers_are_read_the_fast_way() {
    let n = 1500;
    let columns: [ArrayRef; 5] = [
        Arc::new(UInt8Array::from_iter_values((0..n).map(|i| (i * 7 % 256) as u8))),
        Arc::new(Float32Array::from_iter_values((0..n).map(|i| i as f32 / 3.0))),
        Arc::new(Int64Array::from_iter_values((0..n as i64).map(|i| i % 5 * -77777777777))),
        Arc::new(Int16Array::from_iter_values((0..n).map(|i| i as i16 - 300))),
        Arc::new(UInt32Array::from_iter_values((0..n).map(|i| u32::MAX - i as u32 / 100))),
    ];
    both(&columns, |_| true);
    let nulls: ArrayRef = Arc::new(Int64Array::from_iter((0..n as i64).map(|i| (i != 1234).then_some(i))));
    both(&[nulls], |_| false);
}

/// A dictionary that grew too large: the pages that follow hold the values themselves.
#[test]
fn a_column_may_change_from_a_dictionary_to_plain_values() {
    let properties = || {
        let small = WriterProperties::builder().set_dictionary_page_size_limit(500);
        small.set_data_page_row_count_limit(100).set_write_batch_size(50)
    };
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values((0..2000).map(|i| i * i)));
    let (t, bytes) = task(std::slice::from_ref(&column), 2000, properties());
    let encodings: Vec<_> = t.part.metadata()[0].column(0).encodings().collect();
    assert!(encodings.contains(&Encoding::PLAIN) && encodings.contains(&Encoding::RLE_DICTIONARY));
    let read = whole::read(&t.part, &chunks_of(&bytes), 0, t.schema.field(0)).unwrap();
    assert_eq!(read.unwrap().as_ref(), column.as_ref());
}

#[test]
fn strings_without_a_dictionary_are_read_the_fast_way() {
    let n = 300;
    let text = |i: usize| "\u{e4}b".repeat(i % 7);
    let columns: [ArrayRef; 4] = [
        Arc::new(BinaryArray::from_iter_values((0..n).map(|i| vec![i as u8; i % 11]))),
        Arc::new(LargeBinaryArray::from_iter_values((0..n).map(|i| vec![i as u8; i % 11]))),
        Arc::new(StringArray::from_iter_values((0..n).map(text))),
        Arc::new(LargeStringArray::from_iter_values((0..n).map(text))),
    ];
    both(&columns, |variant| matches!(variant, 1 | 3 | 5));
    let nulls: ArrayRef = Arc::new(StringArray::from_iter((0..n).map(|i| (i != 250).then(|| text(i)))));
    both(&[nulls], |_| false);
}

/// Bytes that are no text in a column of strings.
#[test]
fn text_that_is_none_is_an_error_of_the_general_reader() {
    let column: ArrayRef = Arc::new(StringArray::from_iter_values(["abcdefgh"; 20]));
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    let (t, bytes) = task(&[column], 20, plain);
    let at = bytes.windows(8).position(|part| part == b"abcdefgh").unwrap();
    let mut damaged = bytes.to_vec();
    damaged[at] = 0xff;
    let e = decode(&t, &damaged.into()).unwrap_err();
    assert!(e.kind == forebay_proto::Kind::Corrupt && e.message.contains("do not decode"), "{e}");
}

#[test]
fn buffers_are_no_larger_than_their_values() {
    let (t, bytes) = task(
        &[list(UInt8Array::from_iter_values((0..31 * 50).map(|i| i as u8)), 31, false)],
        7,
        WriterProperties::builder(),
    );
    let batch = decode(&t, &bytes).unwrap();
    assert!(batch.column(0).get_buffer_memory_size() <= 31 * 50 + 64);
}

#[test]
fn columns_are_dealt_evenly_and_each_once() {
    let mib = |n: usize| list(UInt8Array::from_iter_values((0..n << 20).map(|i| i as u8)), 1 << 20, false);
    // 1, 6, 2 and 5 MiB a row.
    let (t, _) = task(&[mib(1), mib(1)], 7, WriterProperties::builder());
    assert_eq!(t.deal(8), [[0, 1]], "too little to share");
    let wide = |n: i32| list(UInt8Array::from_iter_values((0..n << 20).map(|i| i as u8)), n << 20, false);
    let (t, _) = task(&[wide(1), wide(6), wide(2), wide(5)], 7, WriterProperties::builder());
    assert_eq!(t.deal(2), [vec![1, 0], vec![3, 2]]);
    assert_eq!(t.deal(100).concat().len(), 4);
    assert_eq!(t.deal(0), [[1, 3, 2, 0]]);
}

#[test]
fn more_than_was_announced_is_not_held() {
    let column = list(Int64Array::from_iter_values(0..10_000), 1, false);
    let (mut t, bytes) = task(&[column.clone(), column], 7, WriterProperties::builder());
    t.limit = DecodeLimit::Announced(100_000);
    let e = decode(&t, &bytes).unwrap_err();
    assert!(e.kind == Kind::Corrupt && e.message.contains("footer announces"), "{e}");
    t.decoded = AtomicU64::new(0);
    t.limit = DecodeLimit::Memory(100_000);
    let e = decode(&t, &bytes).unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("100000 bytes are left by segment_memory"), "{e}");
}

#[test]
fn numbers_within_columns_are_counted_by_their_widths() {
    let item = || Arc::new(Field::new("item", DataType::Int64, true));
    let ones = || Arc::new(Int64Array::from(vec![1; 6400]));
    let lists = ListArray::new(item(), OffsetBuffer::from_lengths(repeat_n(64, 100)), ones(), None);
    let lists: ArrayRef = Arc::new(lists);
    let large = LargeListArray::new(item(), OffsetBuffer::from_lengths(repeat_n(64, 100)), ones(), None);
    let shorts: ArrayRef = Arc::new(Int16Array::from(vec![7; 100]));
    let field = |name: &str, column: &ArrayRef| Arc::new(Field::new(name, column.data_type().clone(), true));
    let both =
        StructArray::from(vec![(field("a", &shorts), shorts.clone()), (field("b", &lists), lists.clone())]);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["seven"; 100]));
    let (t, bytes) = task(&[lists, Arc::new(large), Arc::new(both), texts], 100, WriterProperties::builder());
    let group = &t.part.metadata()[0];
    let bytes_of = |column| column_bytes(&t.part.footer, group, column);
    assert_eq!(bytes_of(0), 100 * 4 + 6400 * 8);
    assert_eq!(bytes_of(1), 100 * 8 + 6400 * 8);
    assert_eq!(bytes_of(2), 100 * 2 + 100 * 4 + 6400 * 8);
    assert_eq!(bytes_of(3), 100 * 8 + 500, "8 bytes a row, and the texts");
    let stored: i64 = group.columns().iter().map(|chunk| chunk.uncompressed_size()).sum();
    assert!(stored < 10_000, "{stored}");
    decode(&t, &bytes).unwrap();
}

#[test]
fn pages_that_claim_far_more_than_the_footer_are_refused() {
    let zeros: ArrayRef = Arc::new(Int64Array::from_iter_values((0..4_000_000).map(|_| 0)));
    let packed = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(Compression::ZSTD(Default::default()));
    let (task, bytes) = task(&[zeros], 4_000_000, packed);
    let (chunks, chunk) = (chunks_of(&bytes), task.part.metadata()[0].column(0));
    page_headers::check(&chunks, chunk).unwrap();
    let lies = chunk.clone().into_builder().set_total_uncompressed_size(100).build().unwrap();
    let e = page_headers::check(&chunks, &lies).unwrap_err().to_string();
    assert!(e.contains("where the footer says 100"), "{e}");
}

#[test]
fn pages_that_claim_more_values_than_the_footer_are_refused() {
    for compression in [Compression::UNCOMPRESSED, Compression::ZSTD(Default::default())] {
        let eight = list(Int64Array::from_iter_values(0..8), 8, false);
        let properties = WriterProperties::builder().set_compression(compression);
        let (task, bytes) = task(&[eight], 1, properties);
        let (chunks, chunk) = (chunks_of(&bytes), task.part.metadata()[0].column(0));
        page_headers::check(&chunks, chunk).unwrap();
        let lies = chunk.clone().into_builder().set_num_values(1).build().unwrap();
        let e = page_headers::check(&chunks, &lies).unwrap_err().to_string();
        assert!(e.contains("8 values, where the footer says 1"), "{e}");
    }
}

/// An object with a column of 96-bit timestamps, of seconds and nanoseconds within them, and its levels.
fn int96(schema: &str, moments: &[(i64, i64)], levels: [&[i16]; 2]) -> Bytes {
    let value = |(seconds, nanos): &(i64, i64)| {
        let (day, within) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) * 1_000_000_000 + nanos);
        let mut value = Int96::new();
        value.set_data(within as u32, (within >> 32) as u32, (day + 2_440_588) as u32);
        value
    };
    let values: Vec<Int96> = moments.iter().map(value).collect();
    let (schema, properties) = (Arc::new(parse_message_type(schema).unwrap()), WriterProperties::builder());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let [definition, repetition] = levels.map(|levels| (!levels.is_empty()).then_some(levels));
    column.typed::<Int96Type>().write_batch(&values, definition, repetition).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    bytes.into()
}

/// 9999-12-31T23:59:59.999999, 0001-01-01, and the beginning of 2024.
const LAST: (i64, i64) = (253_402_300_799, 999_999_000);
const FIRST: (i64, i64) = (-62_135_596_800, 0);
const LATELY: (i64, i64) = (1_704_067_200, 5000);

#[test]
fn timestamps_of_96_bits_are_what_was_written_or_an_error() {
    let flat = "message m { optional int96 t; }";
    let read = |moments: &[(i64, i64)], levels: &[i16], wanted: DataType| {
        let bytes = int96(flat, moments, [levels, &[]]);
        let mut t = task_of(&bytes);
        if &wanted != t.schema.field(0).data_type() {
            t.columns = vec![ColumnOrigin::Adapted(0)];
        }
        t.schema = Arc::new(Schema::new(vec![Field::new("t", wanted, true)]));
        decode(&t, &bytes).map(|batch| batch.column(0).clone())
    };
    let utc = || DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let nanos = || DataType::Timestamp(TimeUnit::Nanosecond, None);
    let found = read(&[LAST, FIRST, LATELY], &[1, 0, 1, 1], utc()).unwrap();
    let micros =
        [Some(253_402_300_799_999_999), None, Some(-62_135_596_800_000_000), Some(1_704_067_200_000_005)];
    let want = TimestampMicrosecondArray::from(micros.to_vec()).with_timezone("UTC");
    assert_eq!(found.as_ref(), &want as &dyn Array);
    let found = read(&[LATELY], &[1, 0], nanos()).unwrap();
    let want = TimestampNanosecondArray::from(vec![Some(1_704_067_200_000_005_000), None]);
    assert_eq!(found.as_ref(), &want as &dyn Array);
    // In nanoseconds there are no such years, in microseconds there is no single nanosecond.
    for (moment, wanted) in [(LAST, nanos()), (FIRST, nanos()), ((0, 1), utc())] {
        let e = read(&[LATELY, moment], &[1, 1], wanted).unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("does not fit"), "{e}");
        assert!(e.message.contains("'t'") && e.message.contains("--columns"), "{e}");
    }
}

#[test]
fn a_columns_name_does_not_tell_what_is_wrong_with_it() {
    let (t, _) = task(&[list(UInt8Array::from(vec![1_u8]), 1, true)], 7, WriterProperties::builder());
    for name in ["it does not fit the dataset's type", "its texts take more memory than is left for them"] {
        let damaged = ParquetError::General(format!("{name}: it lacks 3 values"));
        assert_eq!(t.fault(&damaged.into()).kind, Kind::Corrupt, "{name}");
    }
    for e in [DecodeFault::Unfit("column 'a'".into()), DecodeFault::TooLarge(7)] {
        assert_eq!(t.fault(&e).kind, Kind::Invalid, "{e:?}");
    }
}

#[test]
fn timestamps_of_96_bits_within_lists_are_too() {
    let schema = "message m { optional group l (LIST) { repeated group list { optional int96 element; } } }";
    let bytes = int96(schema, &[LAST, FIRST], [&[3, 2, 3, 0, 1], &[0, 1, 0, 0, 0]]);
    let mut t = task_of(&bytes);
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let element = Arc::new(Field::new("element", utc, true));
    t.columns = vec![ColumnOrigin::Adapted(0)];
    t.schema = Arc::new(Schema::new(vec![Field::new("l", DataType::List(element.clone()), true)]));
    let found = decode(&t, &bytes).unwrap();
    let micros = vec![Some(253_402_300_799_999_999), None, Some(-62_135_596_800_000_000)];
    let micros = TimestampMicrosecondArray::from(micros).with_timezone("UTC");
    let nulls = NullBuffer::from(vec![true, true, false, true]);
    let want =
        ListArray::new(element, OffsetBuffer::from_lengths([2, 1, 0, 0]), Arc::new(micros), Some(nulls));
    assert_eq!(found.column(0).as_ref(), &want as &dyn Array);
}
