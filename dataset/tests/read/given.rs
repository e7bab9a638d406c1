//! Parquet files to read.

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::*;
use parquet::arrow::ArrowWriter;
use parquet::data_type::Int64Type as ParquetInt64;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that goes away with the test.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn uri(&self) -> String {
        format!("file://{}", self.0.path().display())
    }
}

/// Writes `batch` in row groups of `group_rows`.
pub fn write(path: &Path, batch: &RecordBatch, group_rows: usize, properties: WriterPropertiesBuilder) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let properties = properties.set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// One required column `i`.
pub fn ints(range: Range<i64>) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("i", DataType::Int64, false)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from_iter_values(range))]).unwrap()
}

/// Row groups of the given sizes, 0 included, of one column that counts from `next`; the count after them.
pub fn write_groups(path: &Path, groups: &[u64], mut next: i64) -> i64 {
    let schema = Arc::new(parse_message_type("message m { required int64 i; }").unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for rows in groups {
        let values: Vec<i64> = (next..next + *rows as i64).collect();
        next += *rows as i64;
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ParquetInt64>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    next
}

/// Row groups without rows.
pub fn write_empty_groups(path: &Path, groups: &[u64]) {
    write_groups(path, groups, 0);
}

/// Columns by their names.
type Columns = Vec<(&'static str, ArrayRef)>;

/// A column of every kind, most with nulls.
pub fn all_types(rows: usize) -> RecordBatch {
    let n = rows as i64;
    let null: Columns = vec![("null", Arc::new(NullArray::new(rows)))];
    let columns = [number_columns(n), text_columns(n), time_columns(n), null, nested_columns(n)].concat();
    let schema: Vec<_> = columns.iter().map(|(n, c)| Field::new(*n, c.data_type().clone(), true)).collect();
    let schema = Schema::new(schema).with_metadata([("pandas", "{}")]);
    RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, c)| c).collect()).unwrap()
}

fn number_columns(n: i64) -> Columns {
    vec![
        ("bool", Arc::new(BooleanArray::from_iter((0..n).map(|i| opt(i).map(|i| i % 2 == 0))))),
        ("i8", Arc::new(Int8Array::from_iter((0..n).map(|i| opt(i).map(|i| i as i8))))),
        ("i16", Arc::new(Int16Array::from_iter((0..n).map(|i| opt(i).map(|i| i as i16))))),
        ("i32", numbers(n)),
        ("i64", Arc::new(Int64Array::from_iter((0..n).map(opt)))),
        ("u8", Arc::new(UInt8Array::from_iter((0..n).map(|i| opt(i).map(|i| i as u8))))),
        ("u16", Arc::new(UInt16Array::from_iter((0..n).map(|i| opt(i).map(|i| i as u16))))),
        ("u32", Arc::new(UInt32Array::from_iter((0..n).map(|i| opt(i).map(|i| u32::MAX - i as u32))))),
        ("u64", Arc::new(UInt64Array::from_iter((0..n).map(|i| opt(i).map(|i| u64::MAX - i as u64))))),
        (
            "f16",
            cast(&Float32Array::from_iter_values((0..n).map(|i| i as f32 / 3.0)), &DataType::Float16)
                .unwrap(),
        ),
        ("f32", Arc::new(Float32Array::from_iter((0..n).map(|i| opt(i).map(|i| i as f32 / 3.0))))),
        ("f64", Arc::new(Float64Array::from_iter((0..n).map(|i| opt(i).map(|i| i as f64 / 3.0))))),
    ]
}

/// Texts and bytes, in each of their encodings.
fn text_columns(n: i64) -> Columns {
    let texts = texts(n);
    let bytes: Vec<Option<Vec<u8>>> =
        (0..n).map(|i| opt(i).map(|i| vec![i as u8; (i * 13 % 50) as usize])).collect();
    let fixed_binary = (0..n).map(|i| opt(i).map(|i| (i as u32).to_le_bytes()));
    let fixed_binary = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed_binary, 4).unwrap();
    let dictionary: DictionaryArray<Int32Type> = texts.iter().map(|t| t.as_deref()).collect();
    vec![
        ("utf8", Arc::new(StringArray::from(texts.clone()))),
        ("large_utf8", Arc::new(LargeStringArray::from(texts.clone()))),
        ("utf8_view", Arc::new(StringViewArray::from_iter(texts.iter().map(Option::as_deref)))),
        ("binary", Arc::new(BinaryArray::from_iter(bytes.iter().map(Option::as_deref)))),
        ("large_binary", Arc::new(LargeBinaryArray::from_iter(bytes.iter().map(Option::as_deref)))),
        ("fixed_binary", Arc::new(fixed_binary)),
        ("dictionary", Arc::new(dictionary)),
    ]
}

/// Dates, times and decimals.
fn time_columns(n: i64) -> Columns {
    let decimal = Decimal128Array::from_iter((0..n).map(|i| opt(i).map(|i| i128::from(i) * -12345)));
    let wide =
        Decimal256Array::from_iter((0..n).map(|i| opt(i).map(|i| arrow::datatypes::i256::from(i * 77))));
    vec![
        ("date32", Arc::new(Date32Array::from_iter((0..n).map(|i| opt(i).map(|i| i as i32))))),
        ("time64", Arc::new(Time64MicrosecondArray::from_iter((0..n).map(opt)))),
        ("ts_s", Arc::new(TimestampSecondArray::from_iter((0..n).map(opt)))),
        (
            "ts_tz",
            Arc::new(TimestampMicrosecondArray::from_iter((0..n).map(opt)).with_timezone("Europe/Zurich")),
        ),
        ("duration", Arc::new(DurationMillisecondArray::from_iter((0..n).map(opt)))),
        ("decimal", Arc::new(decimal.with_precision_and_scale(20, 3).unwrap())),
        ("decimal256", Arc::new(wide.with_precision_and_scale(50, 3).unwrap())),
    ]
}

/// Lists, structs and a map.
fn nested_columns(n: i64) -> Columns {
    let nulls = || Some(NullBuffer::from_iter((0..n).map(is_set)));
    let offsets = |k: i64| OffsetBuffer::<i32>::from_lengths((0..n).map(move |i| (i % k) as usize));
    let count = |k: i64| (0..n).map(|i| i % k).sum::<i64>();
    let item = |t: DataType, nullable| Arc::new(Field::new_list_field(t, nullable));
    let list = ListArray::new(item(DataType::Int32, true), offsets(4), numbers(count(4)), nulls());
    let inner = StringArray::from(texts(count(3)));
    let list_of_text = ListArray::new(item(DataType::Utf8, true), offsets(3), Arc::new(inner), None);
    let pixels = Arc::new(UInt8Array::from_iter_values((0..n * 9).map(|i| i as u8)));
    let fixed = FixedSizeListArray::new(item(DataType::UInt8, false), 9, pixels.clone(), None);
    let fixed_nulls = FixedSizeListArray::new(item(DataType::UInt8, false), 9, pixels, nulls());
    let fields =
        Fields::from(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)]);
    let parts: Vec<ArrayRef> = vec![numbers(n), Arc::new(StringArray::from(texts(n)))];
    let structs = StructArray::new(fields, parts, nulls());
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for i in 0..n {
        for k in 0..i % 3 {
            map.keys().append_value(format!("k{k}"));
            map.values().append_option(opt(i + k));
        }
        map.append(is_set(i)).unwrap();
    }
    vec![
        ("list", Arc::new(list)),
        ("list_of_text", Arc::new(list_of_text)),
        ("fixed", Arc::new(fixed)),
        ("fixed_nulls", Arc::new(fixed_nulls)),
        ("struct", Arc::new(structs)),
        ("map", Arc::new(map.finish())),
    ]
}

/// One number in five is null.
fn is_set(i: i64) -> bool {
    i % 5 != 2
}

fn opt(i: i64) -> Option<i64> {
    is_set(i).then_some(i)
}

fn texts(n: i64) -> Vec<Option<String>> {
    (0..n).map(|i| opt(i).map(|i| "é".repeat((i % 7) as usize) + &i.to_string())).collect()
}

fn numbers(n: i64) -> ArrayRef {
    Arc::new(Int32Array::from_iter((0..n).map(|i| opt(i).map(|i| i as i32))))
}
