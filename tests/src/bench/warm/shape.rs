//! The data: four shapes of rows, made by rule and written as Parquet as pyarrow would: every column is
//! nullable. Only N has nulls.
//!
//! The objects of a dataset have equal content, so only one is made. To a cache they are as different as any.

use super::marks::{row_marks, sample_mark, sum};
use crate::harness::s3::S3Server;
use anyhow::Context;
use arrow::array::{
    ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Float64Array, Int64Array, RecordBatch,
    StringArray, UInt8Array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};
use bytes::Bytes;
use clap::ValueEnum;
use fastrand::Rng;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

/// Objects of a dataset.
const OBJECTS: usize = 8;

/// Bytes of a row of X: one list.
const LIST: usize = 3136;

/// Columns of single floats of T; two of 64-bit integers follow them.
const FLOATS: usize = 38;

/// The same of N; a column of doubles and one of strings follow.
const FLOATS_BESIDE_NULLS: usize = 6;

/// The share of N's doubles that are null.
const NULL_DOUBLES: f64 = 0.1;

/// The share of N's strings that are null.
const NULL_STRINGS: f64 = 0.05;

/// Bytes of a string of N, at most.
const STRING: usize = 40;

/// A shape of rows. Each dataset has about 1 GB, N half as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Shape {
    /// One list of 3,136 bytes.
    #[value(name = "X", alias = "x")]
    X,
    /// A table: 38 columns of f32, 2 of i64.
    #[value(name = "T", alias = "t")]
    T,
    /// One binary of 60 to 140 KB.
    #[value(name = "B", alias = "b")]
    B,
    /// A table with nulls: 6 columns of f32, 2 of i64, one of f64, one of strings of up to 40 bytes. Left out
    /// of the values of a flag: `make bench-warm` alone reads it, and names it by [`named`].
    #[value(skip)]
    N,
}

/// A dataset in the S3 server.
#[derive(Debug, Clone)]
pub struct Stored {
    pub shape: Shape,
    pub uri: String,
    pub rows: u64,
    /// Bytes that its values take as Arrow arrays.
    pub arrow_bytes: u64,
    /// The mark of each of its epochs.
    pub mark: u64,
}

/// A Parquet object.
#[derive(Debug)]
pub struct WrittenObject {
    pub bytes: Bytes,
    /// The mark of each row.
    pub marks: Vec<u64>,
    /// Bytes that its values take as Arrow arrays.
    pub arrow_bytes: u64,
}

/// The shape of this name.
pub fn named(name: &str) -> Result<Shape, &'static str> {
    let mut all = Shape::ALL.into_iter();
    all.find(|shape| format!("{shape:?}").eq_ignore_ascii_case(name)).ok_or("shapes are X, T, B and N")
}

impl Shape {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::X, Self::T, Self::B, Self::N];

    /// Rows of a batch of one rank.
    pub fn batch_rows(self) -> usize {
        match self {
            Self::X | Self::T | Self::N => 1024,
            Self::B => 32,
        }
    }

    /// Row groups of an object, and rows of each: 32, 11, 32 and 5 MB.
    fn groups(self) -> (usize, usize) {
        match self {
            Self::X => (4, 10_240),
            Self::T => (12, 65_536),
            Self::B => (4, 320),
            Self::N => (13, 65_536),
        }
    }

    /// Makes rows; `first` is the number of the first one.
    pub fn batch(self, rows: usize, first: usize, dice: &mut Rng) -> anyhow::Result<RecordBatch> {
        let columns = match self {
            Self::X => vec![("x".to_owned(), lists(rows, dice)?)],
            Self::T => numbers(FLOATS, rows, first, dice),
            Self::B => vec![("b".to_owned(), binaries(rows, dice)?)],
            Self::N => {
                let mut columns = numbers(FLOATS_BESIDE_NULLS, rows, first, dice);
                columns.push(("value".to_owned(), doubles(rows, dice)));
                columns.push(("text".to_owned(), strings(rows, dice)));
                columns
            }
        };
        Ok(RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))?)
    }

    /// Makes the dataset. `scale` is the share of its rows that there are.
    pub fn upload(self, s3: &S3Server, scale: f64) -> anyhow::Result<Stored> {
        let WrittenObject { bytes, marks, arrow_bytes } = self.object(scale)?;
        self.keys().for_each(|key| s3.put(&key, bytes.clone()));
        let rows = (OBJECTS * marks.len()) as u64;
        let samples = (0..).zip((0..OBJECTS).flat_map(|_| &marks));
        Ok(Stored {
            shape: self,
            uri: s3.uri(&self.folder()),
            rows,
            arrow_bytes: OBJECTS as u64 * arrow_bytes,
            mark: sum(samples.map(|(sample, row)| sample_mark(sample, *row))),
        })
    }

    /// Makes one of its objects.
    pub fn object(self, scale: f64) -> anyhow::Result<WrittenObject> {
        let (groups, rows) = self.groups();
        let rows = (rows as f64 * scale).ceil() as usize;
        let (mut dice, mut marks, mut arrow_bytes) = (Rng::with_seed(self as u64 + 1), Vec::new(), 0);
        let mut writer: Option<ArrowWriter<Vec<u8>>> = None;
        for group in 0..groups {
            let batch = self.batch(rows, group * rows, &mut dice)?;
            marks.extend(row_marks(&batch)?);
            arrow_bytes += arrow_bytes_of(&batch)? as u64;
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(ArrowWriter::try_new(
                    Vec::new(),
                    batch.schema(),
                    Some(self.properties(rows)?),
                )?),
            };
            writer.write(&batch)?;
        }
        let bytes = Bytes::from(writer.context("an object has row groups")?.into_inner()?);
        Ok(WrittenObject { bytes, marks, arrow_bytes })
    }

    /// Of its objects, in order.
    pub fn keys(self) -> impl Iterator<Item = String> {
        (0..OBJECTS).map(move |number| format!("{}/part-{number:05}.parquet", self.folder()))
    }

    fn folder(self) -> String {
        format!("warm/{self:?}")
    }

    /// How its files are written. Binaries are like images: not compressible, and each one its own.
    pub fn properties(self, group_rows: usize) -> anyhow::Result<WriterProperties> {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows));
        let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
        Ok(match self {
            Self::X | Self::T | Self::N => properties.set_compression(zstd),
            Self::B => properties.set_compression(Compression::UNCOMPRESSED).set_dictionary_enabled(false),
        }
        .build())
    }
}

/// Bytes of the values of a batch, with a bit for each value of a column that has nulls.
pub fn arrow_bytes_of(batch: &RecordBatch) -> anyhow::Result<usize> {
    let bytes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
    Ok(bytes.sum::<Result<_, _>>()?)
}

/// Columns of single floats, then two of 64-bit integers.
fn numbers(floats: usize, rows: usize, first: usize, dice: &mut Rng) -> Vec<(String, ArrayRef)> {
    let float = |i| {
        let values = Float32Array::from_iter_values((0..rows).map(|_| dice.f32()));
        (format!("f{i:02}"), Arc::new(values) as ArrayRef)
    };
    let mut columns: Vec<_> = (0..floats).map(float).collect();
    let ids = Int64Array::from_iter_values((first..first + rows).map(|row| row as i64));
    columns.push(("id".to_owned(), Arc::new(ids)));
    let labels = Int64Array::from_iter_values((0..rows).map(|_| dice.i64(0..1000)));
    columns.push(("label".to_owned(), Arc::new(labels)));
    columns
}

fn doubles(rows: usize, dice: &mut Rng) -> ArrayRef {
    let value = |_| (dice.f64() >= NULL_DOUBLES).then(|| dice.f64());
    Arc::new((0..rows).map(value).collect::<Float64Array>())
}

fn strings(rows: usize, dice: &mut Rng) -> ArrayRef {
    let text = |_| {
        let is_there = dice.f64() >= NULL_STRINGS;
        let length = dice.usize(0..=STRING);
        is_there.then(|| (0..length).map(|_| dice.alphanumeric()).collect::<String>())
    };
    Arc::new((0..rows).map(text).collect::<StringArray>())
}

fn lists(rows: usize, dice: &mut Rng) -> anyhow::Result<ArrayRef> {
    let mut bytes = vec![0; rows * LIST];
    dice.fill(&mut bytes);
    let item = Arc::new(Field::new("element", DataType::UInt8, true));
    let lists = FixedSizeListArray::try_new(item, LIST as i32, Arc::new(UInt8Array::from(bytes)), None)?;
    Ok(Arc::new(lists))
}

fn binaries(rows: usize, dice: &mut Rng) -> anyhow::Result<ArrayRef> {
    let mut ends = vec![0];
    let mut end = 0;
    ends.extend((0..rows).map(|_| {
        end += dice.i32(60_000..=140_000);
        end
    }));
    let mut bytes = vec![0; end as usize];
    dice.fill(&mut bytes);
    let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
    Ok(Arc::new(BinaryArray::try_new(offsets, bytes.into(), None)?))
}
