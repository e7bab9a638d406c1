//! Decoding by itself: a Parquet object becomes segments, as on a node that fills its disk, and the processor
//! time that this takes. Beside it the parquet crate's own reader decodes the same object's row groups, and
//! its pages are unpacked without a look at their values: the least that any reader has to do.
//!
//! The decoders' processor time counts, with the memory that their results take: not the fetching,
//! nor the packing of rows. So a figure is what one core does. Memory is taken as nodes take it.

use super::child::{ChildProcess, run_when_told, say_ready, say_report};
use super::marks::row_marks;
use super::shape::{Shape, WrittenObject, arrow_bytes_of};
use crate::bench::stages::runtime;
use crate::harness::check::Findings;
use crate::harness::process::run;
use crate::harness::report::Row;
use anyhow::Context;
use arrow::array::RecordBatch;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use forebay_dataset::{SegmentReader, SourceSettings, Urgency};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

/// How a node's allocator is set (cache-server/src/main.rs).
const ALLOCATOR: (&str, &str) =
    ("_RJEM_MALLOC_CONF", "narenas:4,thp:always,dirty_decay_ms:500,muzzy_decay_ms:0,background_thread:true");

/// How often a process decodes the object while it is measured.
const PASSES: u64 = 3;

/// More than the offsets that batches have beyond those of their rows.
const OFFSETS_BYTES: u64 = 256;

/// GB/s of one core, at least. N is not decoded by itself.
pub fn target(shape: Shape) -> f64 {
    match shape {
        Shape::X => 1.0,
        Shape::T => 1.7,
        Shape::B => 5.0,
        Shape::N => f64::INFINITY,
    }
}

/// Its name in the report.
pub fn name(shape: Shape) -> String {
    format!("decode.{shape:?}")
}

#[derive(Debug, Clone, Args)]
pub struct DecodeOptions {
    way: DecodeWay,
    object: PathBuf,
}

/// Who decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DecodeWay {
    /// As a node does.
    Segments,
    /// The parquet crate, a row group at a time.
    RowGroups,
    /// Pages are unpacked, and no more.
    Pages,
}

/// A process's report.
#[derive(Debug, Serialize, Deserialize)]
struct DecodeRead {
    /// Of all passes.
    cpu_s: f64,
    /// Of one pass.
    arrow_bytes: u64,
    /// Of the rows, in order: of a pass that is not measured. None where there are no values.
    marks: Option<Vec<u64>>,
}

/// Measures these shapes.
pub fn measure(shapes: &[Shape], rounds: u32, scale: f64) -> anyhow::Result<Findings> {
    let folder = tempfile::tempdir()?;
    let mut found = Findings::default();
    let mut made = Vec::new();
    for shape in shapes {
        let object = shape.object(scale)?;
        let path = folder.path().join(format!("{shape:?}.parquet"));
        std::fs::write(&path, &object.bytes)?;
        made.push((*shape, path, object, [const { Vec::new() }; 3]));
    }
    for _ in 0..rounds {
        for (shape, path, object, speeds) in &mut made {
            for (way, speeds) in DecodeWay::value_variants().iter().zip(speeds) {
                let read = way.measure(path)?;
                check(&read, object).with_context(|| format!("{} by {way:?}", name(*shape)))?;
                speeds.push((PASSES * object.arrow_bytes) as f64 / 1e9 / read.cpu_s);
            }
        }
    }
    for (shape, _, _, [ours, crates, pages]) in &made {
        let stock = Row::of(format!("{}.parquet_crate", name(*shape)), "GB/s", crates);
        let pages = Row::of(format!("{}.pages", name(*shape)), "GB/s", pages);
        let row = Row::of(name(*shape), "GB/s", ours).against("unpacking its pages", pages.value);
        let text =
            format!("{} = {:.2} GB/s of one core, at least {} wanted", row.name, row.value, target(*shape));
        match scale < 1.0 {
            true => found.leave_out(text),
            false => found.check(row.value >= target(*shape), text),
        }
        found.rows.extend([row, stock, pages]);
    }
    Ok(found)
}

/// All rows came, with their values and in their order.
fn check(read: &DecodeRead, object: &WrittenObject) -> anyhow::Result<()> {
    let Some(marks) = &read.marks else { return Ok(()) };
    anyhow::ensure!(*marks == object.marks, "the values are not those that were written");
    let (found, wanted) = (read.arrow_bytes, object.arrow_bytes);
    // Binaries have an offset more than rows in each batch, and a segment may be several row groups.
    let is_near = found <= wanted && wanted - found < OFFSETS_BYTES;
    anyhow::ensure!(is_near, "{found} bytes of values were decoded of {wanted}");
    Ok(())
}

impl DecodeWay {
    /// Measures it in a process of its own.
    fn measure(self, object: &Path) -> anyhow::Result<DecodeRead> {
        let way = self.to_possible_value().context("every way has a name")?;
        let mut command = Command::new(run::find("forebay-bench-warm")?);
        run::scrub(&mut command);
        command.args(["decode", way.get_name()]).arg(object).env(ALLOCATOR.0, ALLOCATOR.1);
        let mut child = ChildProcess::of(command, format!("decode {}", way.get_name()))?;
        child.ready()?;
        child.go()?;
        child.report()
    }
}

/// Is such a process.
pub fn decode(options: &DecodeOptions) -> anyhow::Result<()> {
    let read = match options.way {
        DecodeWay::Segments => segments(&options.object),
        DecodeWay::RowGroups => row_groups(&options.object),
        DecodeWay::Pages => pages(&options.object),
    };
    say_report(&read?)
}

fn segments(object: &Path) -> anyhow::Result<DecodeRead> {
    let runtime = runtime()?;
    let reader = SegmentReader::new(SourceSettings::default())?;
    let frozen = runtime.block_on(reader.freeze(&format!("file://{}", object.display()), 0))?;
    let manifest = &frozen.manifest;
    let columns: Vec<usize> = (0..frozen.schema.fields().len()).collect();
    let pass = |each: &mut dyn FnMut(RecordBatch) -> anyhow::Result<()>| {
        (0..manifest.segments().len() as u32).try_for_each(|segment| {
            let urgency = Urgency::demand();
            each(runtime.block_on(reader.read_segment(manifest, segment, &columns, &urgency))?)
        })
    };
    let (mut marks, mut arrow_bytes) = (Vec::new(), 0);
    pass(&mut |batch| add(&batch, &mut marks, &mut arrow_bytes))?;
    say_ready("")?;
    let cpu_us = || reader.counters().decode_cpu_us.load(Relaxed);
    let before = cpu_us();
    run_when_told(|| (0..PASSES).try_for_each(|_| pass(&mut |_| Ok(()))))?;
    Ok(DecodeRead { cpu_s: (cpu_us() - before) as f64 / 1e6, arrow_bytes, marks: Some(marks) })
}

fn row_groups(object: &Path) -> anyhow::Result<DecodeRead> {
    let bytes = Bytes::from(std::fs::read(object)?);
    let pass = |each: &mut dyn FnMut(RecordBatch) -> anyhow::Result<()>| {
        let groups = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())?.metadata().num_row_groups();
        (0..groups).try_for_each(|group| {
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())?;
            let rows = usize::try_from(reader.metadata().row_group(group).num_rows())?;
            let batches = reader.with_row_groups(vec![group]).with_batch_size(rows).build()?;
            batches.into_iter().try_for_each(|batch| each(batch?))
        })
    };
    let (mut marks, mut arrow_bytes) = (Vec::new(), 0);
    pass(&mut |batch| add(&batch, &mut marks, &mut arrow_bytes))?;
    say_ready("")?;
    let (span, ()) = run_when_told(|| (0..PASSES).try_for_each(|_| pass(&mut |_| Ok(()))))?;
    Ok(DecodeRead { cpu_s: span.cpu_s, arrow_bytes, marks: Some(marks) })
}

fn pages(object: &Path) -> anyhow::Result<DecodeRead> {
    let reader = SerializedFileReader::new(Bytes::from(std::fs::read(object)?))?;
    let pass = || {
        (0..reader.num_row_groups()).try_for_each(|group| {
            let group = reader.get_row_group(group)?;
            (0..group.num_columns()).try_for_each(|column| {
                let mut pages = group.get_column_page_reader(column)?;
                while let Some(page) = pages.get_next_page()? {
                    black_box(page);
                }
                anyhow::Ok(())
            })
        })
    };
    pass()?;
    say_ready("")?;
    let (span, ()) = run_when_told(|| (0..PASSES).try_for_each(|_| pass()))?;
    Ok(DecodeRead { cpu_s: span.cpu_s, arrow_bytes: 0, marks: None })
}

fn add(batch: &RecordBatch, marks: &mut Vec<u64>, arrow_bytes: &mut u64) -> anyhow::Result<()> {
    marks.extend(row_marks(batch)?);
    *arrow_bytes += arrow_bytes_of(batch)? as u64;
    Ok(())
}
