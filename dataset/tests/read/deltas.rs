//! Texts and bytes in delta encodings, whose lengths come first: read, and not believed.

use crate::given::{Dir, write};
use arrow::array::{Array, ArrayRef, FixedSizeBinaryArray, ListArray, RecordBatch, StringArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_dataset::{SegmentReader, SourceSettings, Urgency, schema};
use forebay_proto::Result;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use std::sync::Arc;

/// Rows, of which each column has a value or a null.
const ROWS: usize = 100;

fn columns() -> RecordBatch {
    let text = |i: usize| format!("text {}", i * i % 77);
    let some = (0..ROWS).map(|i| (i % 3 > 0).then(|| text(i)));
    let item = Arc::new(Field::new_list_field(DataType::Utf8, false));
    let parts: ArrayRef = Arc::new(StringArray::from_iter_values((0..2 * ROWS).map(text)));
    let lists = ListArray::new(item, OffsetBuffer::from_repeated_length(2, ROWS), parts, None);
    let fixed = (0..ROWS).map(|i| (i as u32 / 7).to_be_bytes());
    let columns: [(&str, ArrayRef, bool); 4] = [
        ("all", Arc::new(StringArray::from_iter_values((0..ROWS).map(text))), false),
        ("some", Arc::new(StringArray::from_iter(some)), true),
        ("lists", Arc::new(lists), false),
        ("fixed", Arc::new(FixedSizeBinaryArray::try_from_iter(fixed).unwrap()), false),
    ];
    let fields =
        columns.iter().map(|(name, column, is_null)| Field::new(*name, column.data_type().clone(), *is_null));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, column, _)| column).collect()).unwrap()
}

fn properties(encoding: Encoding, version: WriterVersion, codec: Compression) -> WriterPropertiesBuilder {
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_compression(codec);
    let of = |column: &str| if column == "fixed" { Encoding::DELTA_BYTE_ARRAY } else { encoding };
    let names = [
        vec!["all"],
        vec!["some"],
        vec!["lists", "list", "element"],
        vec!["lists", "list", "item"],
        vec!["fixed"],
    ];
    let properties = names.into_iter().fold(properties, |properties, path| {
        let encoding = of(path[0]);
        let path: Vec<String> = path.into_iter().map(str::to_owned).collect();
        properties.set_column_encoding(path.into(), encoding)
    });
    properties.set_writer_version(version)
}

async fn read(dir: &Dir) -> Result<RecordBatch> {
    let source = SegmentReader::new(SourceSettings::default()).unwrap();
    let frozen = source.freeze(&dir.uri(), 0).await?;
    let all = schema::projection(&frozen.schema, &[]).unwrap();
    source.read_segment(&frozen.manifest, 0, &all, &Urgency::demand()).await
}

#[tokio::test]
async fn they_are_read_in_both_versions_and_by_any_codec() {
    let batch = columns();
    for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for codec in
                [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(Default::default())]
            {
                let dir = Dir::new();
                write(&dir.path("a.parquet"), &batch, ROWS, properties(encoding, version, codec));
                let read = read(&dir).await.unwrap();
                for (want, got) in batch.columns().iter().zip(read.columns()) {
                    assert_eq!(&want.to_data(), &got.to_data(), "{encoding} {version:?} {codec}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_page_that_claims_more_lengths_than_values_is_corrupt() {
    // Blocks of 128 numbers in 4 parts, and how many numbers.
    let header = [0x80, 0x01, 4, ROWS as u8];
    let batch = columns().project(&[0]).unwrap();
    for (encoding, lists) in [(Encoding::DELTA_LENGTH_BYTE_ARRAY, 1), (Encoding::DELTA_BYTE_ARRAY, 2)] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let dir = Dir::new();
            let path = dir.path("a.parquet");
            write(&path, &batch, ROWS, properties(encoding, version, Compression::UNCOMPRESSED));
            let sound = std::fs::read(&path).unwrap();
            let found: Vec<usize> = (0..sound.len()).filter(|at| sound[*at..].starts_with(&header)).collect();
            assert_eq!(found.len(), lists, "{encoding} {version:?}");
            for at in found {
                let mut wrong = sound.clone();
                wrong[at + 3] += 1;
                std::fs::write(&path, &wrong).unwrap();
                let error = read(&dir).await.unwrap_err().message;
                assert!(error.contains("a.parquet") && error.contains("claims more of them"), "{error}");
            }
        }
    }
}
