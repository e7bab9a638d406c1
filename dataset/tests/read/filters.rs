//! Filtered datasets against a plain evaluation of each row, whatever the statistics of their objects say.

use crate::given::{Dir, write};
use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use forebay_dataset::{Frozen, SegmentReader, Selection, SourceSettings, Urgency};
use forebay_proto::{Manifest, v1};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A row of the table: `i`, `f`, `t` and `b` may be null.
#[derive(Debug, Clone)]
struct Row {
    i: Option<i64>,
    f: Option<f64>,
    t: Option<&'static str>,
    b: Option<bool>,
}

/// Texts whose statistics are cut short.
const TEXTS: [&str; 6] = ["", "a long beginning: 1", "a long beginning: 2", "a long beginninh", "b", "ü"];

const FLOATS: [f64; 7] = [f64::NAN, -0.0, 0.0, 1.5, -2.5, f64::INFINITY, 7.0];

const OPS: [&str; 6] = ["=", "!=", "<", "<=", ">", ">="];

#[derive(Debug, Clone)]
enum Test {
    Int(usize, i64),
    Float(usize, f64),
    Text(usize, &'static str),
    Begins(&'static str),
    Bool,
    IsNull(&'static str),
    Between(i64, i64),
    Not(Box<Test>),
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
}

impl Test {
    fn text(&self) -> String {
        match self {
            Self::Int(op, value) => format!("i {} {value}", OPS[*op]),
            Self::Float(op, value) => format!("f {} {value:?}", OPS[*op]),
            Self::Text(op, value) => format!("t {} '{value}'", OPS[*op]),
            Self::Begins(prefix) => format!("t like '{prefix}%'"),
            Self::Bool => "b".into(),
            Self::IsNull(column) => format!("{column} is null"),
            Self::Between(from, to) => format!("i between {from} and {to}"),
            Self::Not(test) => format!("not ({})", test.text()),
            Self::And(a, b) => format!("({}) and ({})", a.text(), b.text()),
            Self::Or(a, b) => format!("({}) or ({})", a.text(), b.text()),
        }
    }

    /// By three-valued logic.
    fn of(&self, row: &Row) -> Option<bool> {
        let holds = |op: usize, order: Option<Ordering>| match op {
            0 => order == Some(Ordering::Equal),
            1 => order != Some(Ordering::Equal),
            2 => order == Some(Ordering::Less),
            3 => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            4 => order == Some(Ordering::Greater),
            _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        };
        match self {
            Self::Int(op, value) => Some(holds(*op, Some(row.i?.cmp(value)))),
            Self::Float(op, value) => Some(holds(*op, row.f?.partial_cmp(value))),
            Self::Text(op, value) => Some(holds(*op, Some(row.t?.cmp(*value)))),
            Self::Begins(prefix) => Some(row.t?.starts_with(prefix)),
            Self::Bool => row.b,
            Self::IsNull("i") => Some(row.i.is_none()),
            Self::IsNull("f") => Some(row.f.is_none()),
            Self::IsNull(_) => Some(row.t.is_none()),
            Self::Between(from, to) => Some((*from..=*to).contains(&row.i?)),
            Self::Not(test) => test.of(row).map(|holds| !holds),
            Self::And(a, b) => match (a.of(row), b.of(row)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (a, b) => Some(a? && b?),
            },
            Self::Or(a, b) => match (a.of(row), b.of(row)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (a, b) => Some(a? || b?),
            },
        }
    }
}

fn test() -> impl Strategy<Value = Test> {
    let leaf = prop_oneof![
        (0..6usize, -3..12i64).prop_map(|(op, value)| Test::Int(op, value)),
        (0..6usize, prop::sample::select(vec![-2.5, 0.0, 1.0, 1.5, 8.0]))
            .prop_map(|(op, f)| Test::Float(op, f)),
        (0..6usize, prop::sample::select(TEXTS.to_vec())).prop_map(|(op, t)| Test::Text(op, t)),
        prop::sample::select(vec!["", "a", "a long beginning", "c"]).prop_map(Test::Begins),
        Just(Test::Bool),
        prop::sample::select(vec!["i", "f", "t"]).prop_map(Test::IsNull),
        (-3..12i64, 0..4i64).prop_map(|(from, more)| Test::Between(from, from + more)),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|test| Test::Not(Box::new(test))),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Test::And(Box::new(a), Box::new(b))),
            (inner.clone(), inner).prop_map(|(a, b)| Test::Or(Box::new(a), Box::new(b))),
        ]
    })
}

/// Rows that are more or less in order, so that statistics rule something out.
fn row() -> impl Strategy<Value = (i64, usize, usize, u8)> {
    (0..3i64, 0..FLOATS.len(), 0..TEXTS.len(), any::<u8>())
}

fn table(values: &[(i64, usize, usize, u8)]) -> Vec<Row> {
    let row = |(at, (near, f, t, nulls)): (usize, &(i64, usize, usize, u8))| Row {
        i: (nulls & 7 != 0).then_some(at as i64 / 5 + near),
        f: (nulls & 56 != 0).then_some(FLOATS[(*f + at / 10) % FLOATS.len()]),
        t: (nulls & 28 != 0).then_some(TEXTS[if nulls & 1 == 0 { *t } else { at / 10 % TEXTS.len() }]),
        b: (nulls & 14 != 0).then_some(nulls & 64 != 0),
    };
    values.iter().enumerate().map(row).collect()
}

fn batch(rows: &[Row], first: usize) -> RecordBatch {
    let number = Int64Array::from_iter_values((first..).take(rows.len()).map(|n| n as i64));
    let columns: [(&str, ArrayRef); 5] = [
        ("n", Arc::new(number)),
        ("i", Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.i)))),
        ("f", Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.f)))),
        ("t", Arc::new(StringArray::from_iter(rows.iter().map(|row| row.t)))),
        ("b", Arc::new(BooleanArray::from_iter(rows.iter().map(|row| row.b)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn source() -> SegmentReader {
    SegmentReader::new(SourceSettings::default()).unwrap()
}

/// The columns `columns` of all segments, by nothing but the manifest.
async fn read(frozen: &Frozen, columns: &[usize]) -> RecordBatch {
    let manifest = Manifest::try_from(v1::Manifest::from(&frozen.manifest)).unwrap();
    let (reader, mut batches) = (source(), Vec::new());
    for segment in 0..manifest.segments().len() as u32 {
        let cost = reader.segment_cost(&manifest, segment, columns, &Urgency::demand()).await.unwrap();
        let batch = reader.read_segment(&manifest, segment, columns, &Urgency::demand()).await.unwrap();
        assert_eq!(batch.num_rows() as u64, manifest.segments()[segment as usize].rows);
        assert!(cost.decoded as usize >= batch.num_rows());
        batches.push(batch);
    }
    concat_batches(&Arc::new(frozen.schema.project(columns).unwrap()), &batches).unwrap()
}

fn filtered(dir: &Dir, filter: &str, segment_bytes: u64) -> Selection {
    Selection { filter: filter.into(), ..Selection::new(dir.uri(), segment_bytes) }
}

/// The numbers of the rows that a filter leaves.
async fn left(selection: &Selection) -> Vec<i64> {
    match source().freeze_again(selection, None).await {
        Ok(frozen) => read(&frozen, &[0]).await.column(0).as_primitive::<Int64Type>().values().to_vec(),
        Err(e) => {
            assert!(e.message.contains("leaves no row"), "{e}");
            Vec::new()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn statistics_never_change_an_answer(
        values in prop::collection::vec(row(), 1..80),
        tests in prop::collection::vec(test(), 4),
        group_rows in 1..25usize,
        segment_bytes in prop::sample::select(vec![1u64, 700, 1 << 20]),
        cut in prop::option::of(1..20usize),
    ) {
        let rows = table(&values);
        let half = rows.len() / 2;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let dirs = [EnabledStatistics::None, EnabledStatistics::Chunk].map(|statistics| {
            let dir = Dir::new();
            let properties = || {
                let properties = WriterProperties::builder().set_statistics_enabled(statistics);
                properties.set_statistics_truncate_length(cut)
            };
            write(&dir.path("a.parquet"), &batch(&rows[..half], 0), group_rows, properties());
            write(&dir.path("b.parquet"), &batch(&rows[half..], half), group_rows, properties());
            dir
        });
        for test in tests {
            let wanted = (0i64..).zip(&rows).filter(|(_, row)| test.of(row) == Some(true)).map(|(n, _)| n);
            let wanted: Vec<i64> = wanted.collect();
            for dir in &dirs {
                let found = runtime.block_on(left(&filtered(dir, &test.text(), segment_bytes)));
                prop_assert_eq!(&found, &wanted, "{}", test.text());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn indexes_of_pages_never_change_an_answer(
        values in prop::collection::vec(row(), 20..60),
        tests in prop::collection::vec(test(), 4),
        group_rows in 4_000..9_000usize,
        page_rows in prop::sample::select(vec![100usize, 400, 1_500]),
        cut in prop::option::of(1..20usize),
        dictionary in any::<bool>(),
    ) {
        let rows = table(&values.iter().copied().cycle().take(12_000).collect::<Vec<_>>());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let dir = Dir::new();
        let properties = WriterProperties::builder()
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_column_index_truncate_length(cut)
            .set_statistics_truncate_length(cut)
            .set_data_page_row_count_limit(page_rows)
            .set_write_batch_size(50)
            .set_dictionary_enabled(dictionary);
        write(&dir.path("a.parquet"), &batch(&rows, 0), group_rows, properties);
        for test in tests {
            let wanted = (0i64..).zip(&rows).filter(|(_, row)| test.of(row) == Some(true)).map(|(n, _)| n);
            let wanted: Vec<i64> = wanted.collect();
            let found = runtime.block_on(left(&filtered(&dir, &test.text(), 1 << 20)));
            prop_assert!(found == wanted, "{}: {} rows, not {}", test.text(), found.len(), wanted.len());
        }
    }
}

/// A column in order, in one row group of pages of 1,000 rows, beside one that no index knows.
fn one_large_group(dir: &Dir, statistics: EnabledStatistics) {
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..60_000).map(|i| format!("{:09}", i / 7))));
    let columns = [("n", longs(0..60_000)), ("t", texts)].map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_statistics_enabled(statistics)
        .set_data_page_row_count_limit(1000)
        .set_write_batch_size(100)
        .set_dictionary_enabled(false);
    write(&dir.path("a.parquet"), &batch, 1 << 20, properties);
}

#[tokio::test]
async fn few_pages_of_a_large_row_group_are_read_to_count_what_passes() {
    let (indexed, plain) = (Dir::new(), Dir::new());
    one_large_group(&indexed, EnabledStatistics::Page);
    one_large_group(&plain, EnabledStatistics::Chunk);
    // Bytes, and rows, in the midst of pages, over both columns, of a page that passes whole, and of none.
    for (filter, rows, most) in [
        ("n between 5950 and 6049", 100, 40_000),
        ("n > 59000 and t < '000008430'", 9, 40_000),
        ("n >= 3000 and n < 5000", 2000, 12_000),
        ("t = '000000001' and n = 9 or n = 59999", 2, 60_000),
        ("t like '0000085%' and not n <= 59995", 4, 40_000),
    ] {
        let mut read = [0, 0];
        for (dir, read) in [&indexed, &plain].into_iter().zip(&mut read) {
            let reader = source();
            let frozen = reader.freeze_again(&filtered(dir, filter, 0), None).await.unwrap();
            assert_eq!(frozen.manifest.rows(), rows, "{filter}");
            *read = reader.counters().s3_bytes.load(Relaxed);
        }
        assert!(read[0] < most && read[1] > 450_000, "{filter}: {read:?} bytes");
    }
}

/// An index that cannot be read costs a reading of the whole columns, and no answer.
#[tokio::test]
async fn a_damaged_index_is_left_alone() {
    let dir = Dir::new();
    one_large_group(&dir, EnabledStatistics::Page);
    let path = dir.path("a.parquet");
    let sound = std::fs::read(&path).unwrap();
    let metadata = parquet::file::metadata::ParquetMetaDataReader::new()
        .parse_and_finish(&std::fs::File::open(&path).unwrap())
        .unwrap();
    for column in [0, 1] {
        let chunk = metadata.row_group(0).column(column);
        for range in [chunk.offset_index_range().unwrap(), chunk.column_index_range().unwrap()] {
            let mut damaged = sound.clone();
            damaged[range.start as usize..range.end as usize].fill(0xff);
            std::fs::write(&path, damaged).unwrap();
            let found = left(&filtered(&dir, "n > 17000 and t < '000002430'", 0)).await;
            assert_eq!(found, (17_001..17_010).collect::<Vec<_>>());
        }
    }
}

fn put(dir: &Dir, name: &str, columns: &[(&str, ArrayRef)], group_rows: usize) {
    let columns = columns.iter().map(|(name, column)| (*name, column.clone(), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    write(&dir.path(name), &batch, group_rows, WriterProperties::builder());
}

fn longs(values: std::ops::Range<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

#[tokio::test]
async fn a_filter_on_directories_opens_only_the_objects_that_match() {
    let dir = Dir::new();
    for year in 2000..2020 {
        put(&dir, &format!("year={year}/a.parquet"), &[("n", longs(0..10))], 5);
    }
    put(&dir, "year=2020/a.parquet", &[("n", longs(0..10)), ("only", longs(0..10))], 5);
    let (reader, filter) = (source(), "year = 2007 and n > 6 or year = 2008 and n < 1");
    let frozen = reader.freeze_again(&filtered(&dir, filter, 0), None).await.unwrap();
    // Two footers and the listing.
    assert!(reader.counters().footer_requests.load(Relaxed) < 6);
    let read = read(&frozen, &[0, 1]).await;
    assert_eq!(read.column(0).as_primitive::<Int64Type>().values(), &[7, 8, 9, 0]);
    assert_eq!(frozen.schema.field(1).data_type(), &DataType::Int32);
    assert_eq!(frozen.manifest.objects().len(), 21);
    // The same again: no footer is read.
    let again = reader.freeze_again(&filtered(&dir, filter, 0), Some(frozen.clone())).await.unwrap();
    assert_eq!(again.manifest.digest(), frozen.manifest.digest());
    // An opened object that has the column itself, with other values than its directory, is in the way.
    put(&dir, "year=2020/b.parquet", &[("n", longs(0..3)), ("year", longs(2005..2008))], 5);
    let mut odd = filtered(&dir, "year = 2020 or year = 2007", 0);
    let e = source().freeze_again(&odd, None).await.unwrap_err();
    assert!(e.message.contains("the directory says '2020', the column has values from '2005'"), "{e}");
    odd.no_partitions = true;
    assert_eq!(left(&odd).await, [2]);
}

#[tokio::test]
async fn columns_may_be_missing_wider_or_not_read() {
    let dir = Dir::new();
    put(&dir, "a.parquet", &[("n", longs(0..10)), ("x", Arc::new(Int8Array::from_iter_values(0..10)))], 3);
    put(&dir, "b.parquet", &[("n", longs(10..20)), ("x", longs(1000..1010)), ("t", longs(0..10))], 3);
    let run = async |filter: &str| left(&filtered(&dir, filter, 0)).await;
    assert_eq!(run("x in (3, 1003)").await, [3, 13]);
    assert_eq!(run("t > 7").await, [18, 19]);
    assert_eq!(run("t is null and x > 300 or t is null and x > 7").await, [8, 9]);
    assert_eq!(run("not t > 2").await, [10, 11, 12]);
}

#[tokio::test]
async fn what_lists_and_structs_hold_does_not_make_them_null() {
    let dir = Dir::new();
    // Row groups of two: empty lists, lists of nulls, nulls; and structs of nulls, of numbers, nulls.
    let lists: [Option<Vec<Option<i64>>>; 6] =
        [Some(vec![]), Some(vec![]), Some(vec![None]), Some(vec![None]), None, None];
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    let inner: ArrayRef = Arc::new(Int64Array::from(vec![None, None, Some(1), Some(2), None, None]));
    let fields = vec![Field::new("x", DataType::Int64, true)].into();
    let valid = NullBuffer::from(vec![true, true, true, true, false, false]);
    let structs = StructArray::new(fields, vec![inner], Some(valid));
    put(&dir, "a.parquet", &[("n", longs(0..6)), ("l", Arc::new(lists)), ("s", Arc::new(structs))], 2);
    for column in ["l", "s"] {
        assert_eq!(left(&filtered(&dir, &format!("{column} is null"), 0)).await, [4, 5], "{column}");
        let not_null = left(&filtered(&dir, &format!("{column} is not null"), 0)).await;
        assert_eq!(not_null, [0, 1, 2, 3], "{column}");
    }
}

#[tokio::test]
async fn a_clustered_table_is_frozen_and_read_for_what_passes() {
    let dir = Dir::new();
    let wide = |n: std::ops::Range<i64>| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(n.map(|i| i as f64 * 1.7)))
    };
    put(&dir, "a.parquet", &[("n", longs(0..60_000)), ("w", wide(0..60_000))], 3000);
    let reader = source();
    let frozen = reader.freeze_again(&filtered(&dir, "n between 5950 and 6049", 0), None).await.unwrap();
    let m = &frozen.manifest;
    assert_eq!((m.rows(), m.segments().len(), m.segments()[0].first_row_group), (100, 1, 1));
    assert_eq!(m.filter().unwrap().rows(), [50, 50]);
    let before = reader.counters().s3_bytes.load(Relaxed);
    let size = m.objects()[0].size;
    assert!(before * 8 < size, "one column of 2 of 20 row groups, not {before} of {size} bytes");
    let all = reader.read_segment(m, 0, &[1], &Urgency::demand()).await.unwrap();
    assert_eq!(all.column(0).as_primitive::<Float64Type>().value(0), 5950.0 * 1.7);
    // What passes as a whole needs no column of the filter.
    let whole = reader.freeze_again(&filtered(&dir, "n >= 54000", 0), None).await.unwrap();
    assert_eq!(whole.manifest.filter().unwrap().rows(), [3000, 3000]);
    let before = reader.counters().s3_bytes.load(Relaxed);
    reader.read_segment(&whole.manifest, 0, &[1], &Urgency::demand()).await.unwrap();
    assert!(reader.counters().s3_bytes.load(Relaxed) - before < whole.column_bytes[1] + 100);
}

/// Of long texts only those that pass are kept.
#[tokio::test]
async fn few_texts_out_of_many_fit_into_little_memory() {
    let dir = Dir::new();
    let texts = (0..20_000u64).map(|i| format!("{:0>800}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let hundreds: ArrayRef = Arc::new(Int64Array::from_iter_values((0..20_000).map(|i| i % 100)));
    put(&dir, "a.parquet", &[("k", hundreds), ("t", texts.clone())], 1000);
    let selection = filtered(&dir, "k = 7", 0);
    let frozen = source().freeze_again(&selection, None).await.unwrap();
    let (m, demand) = (&frozen.manifest, Urgency::demand());
    assert_eq!((m.rows(), m.segments().len()), (200, 1), "20 row groups");
    let cost = source().segment_cost(m, 0, &[1], &demand).await.unwrap();
    // What a file has is held twice until all is there; then a row group of 800 kB is decoded at a time.
    let limit = 2 * cost.fetched + (1 << 20);
    let settings = SourceSettings { segment_memory_bytes: limit, ..SourceSettings::default() };
    let read = SegmentReader::new(settings).unwrap().read_segment(m, 0, &[1], &demand).await.unwrap();
    let (read, texts) = (read.column(0).as_string::<i32>(), texts.as_string::<i32>());
    assert!((0..200).all(|i| read.value(i) == texts.value(i * 100 + 7)));
    let bytes: usize = read.iter().flatten().map(str::len).sum();
    assert!(
        cost.decoded as usize >= bytes && cost.decoded as usize <= 3 * bytes,
        "{cost:?} for {bytes} bytes"
    );
}

#[tokio::test]
async fn what_cannot_be_filtered_names_the_dataset_and_the_remedy() {
    let dir = Dir::new();
    let within = StructArray::from(vec![(Arc::new(Field::new("f", DataType::Int64, false)), longs(0..10))]);
    put(&dir, "a.parquet", &[("n", longs(0..10)), ("x", longs(0..10)), ("s", Arc::new(within))], 5);
    put(&dir, "b.parquet", &[("n", longs(0..10)), ("x", Arc::new(StringArray::from(vec!["a"; 10])))], 5);
    for (filter, says) in [
        ("n > 10", "filter `n > 10` leaves no row"),
        ("m > 10", "no column 'm': did you mean 'n'?"),
        ("s.f > 10", "'s.f' lies in column 's'"),
        ("x > 10", "objects disagree on"),
        ("n >", "it ends where a value is expected"),
    ] {
        let e = source().freeze_again(&filtered(&dir, filter, 0), None).await.unwrap_err();
        assert!(e.message.contains(says), "{filter}: {e}");
        assert!(e.message.contains(&dir.uri()) && e.kind == forebay_proto::Kind::Invalid, "{filter}: {e}");
    }
    // In normal form the column is named for each value.
    let name = "a_name_as_long_as_those_of_wide_tables_may_be";
    put(&dir, "c/a.parquet", &[(name, longs(0..10))], 5);
    let values: Vec<String> = (0..500).map(|value| value.to_string()).collect();
    let filter = format!("{name} in ({})", values.join(", "));
    let selection = Selection { uri: format!("{}/c", dir.uri()), ..filtered(&dir, &filter, 0) };
    let e = source().freeze_again(&selection, None).await.unwrap_err();
    assert!(
        e.message.contains("the filter in normal form: ") && e.message.contains("use 16384 at most"),
        "{e}"
    );
}
