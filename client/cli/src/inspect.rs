//! `forebay inspect`: a dataset's schema, objects, row groups and segments.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::open::open;
use crate::output::{Out, write_json};
use arrow::datatypes::FieldRef;
use clap::{Args, ValueEnum};
use forebay_client::args::AccessArgs;
use forebay_client::{Dataset, DatasetSpec};
use forebay_proto::manifest::{Filter, Manifest, Object, Segment};
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Reverse;

/// Objects shown to people unless they say how many; programs get all of them.
const OBJECTS_SHOWN: usize = 20;

/// What objects and segments are sorted by for people; the largest first, but for names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InspectSort {
    Name,
    Size,
    Rows,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    access: AccessArgs,
    /// List the segments too
    #[arg(long)]
    segments: bool,
    /// Sort objects and segments by name or, the largest first, by size or rows
    #[arg(long, value_enum, value_name = "BY", default_value = "name", conflicts_with = "json")]
    sort: InspectSort,
    /// Show this many objects (20 unless given) and segments at most
    #[arg(long, value_name = "N", conflicts_with = "json")]
    limit: Option<usize>,
    /// Answer in JSON, with every object and segment
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ObjectReport<'a> {
    #[serde(flatten)]
    object: &'a Object,
    rows: u64,
    row_groups: u64,
    segments: u64,
}

impl Inspect {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let dataset = open(&self.access.access().map_err(usage)?, &self.dataset).await?;
        match self.json {
            true => write_json(out, &report(&dataset)),
            false => {
                self.write_text(out, &dataset)?;
                if self.segments { self.write_segments(out, &dataset.manifest) } else { Ok(()) }
            }
        }
    }
}

/// Of all segments together.
fn sum(m: &Manifest, of: fn(&Segment) -> u64) -> u64 {
    m.segments().iter().map(of).sum()
}

fn object_bytes(m: &Manifest) -> u64 {
    m.objects().iter().map(|o| o.size).sum()
}

fn report(dataset: &Dataset) -> Value {
    let m = &dataset.manifest;
    let column = |(i, f): (usize, &FieldRef)| {
        json!({
            "name": f.name(),
            "type": f.data_type().to_string(),
            "nullable": f.is_nullable(),
            "projected": dataset.projection.contains(&i),
        })
    };
    json!({
        "uri": m.version_uri(),
        "digest": m.digest().to_string(),
        "rows": m.rows(),
        "row_groups": sum(m, |s| s.row_groups.into()),
        "object_bytes": object_bytes(m),
        "decoded_bytes": sum(m, |s| s.decoded_bytes),
        "projected_bytes": dataset.projected_bytes,
        "segment_bytes": m.segment_bytes(),
        "schema_of": dataset.spec.schema_of,
        "no_partitions": dataset.spec.no_partitions,
        "where": m.filter().map(Filter::predicate).filter(|text| !text.is_empty()),
        "columns": dataset.schema.fields().iter().enumerate().map(column).collect::<Vec<_>>(),
        "objects": objects(m),
        "segments": m.segments(),
    })
}

fn objects(m: &Manifest) -> Vec<ObjectReport<'_>> {
    let of = |object| ObjectReport { object, rows: 0, row_groups: 0, segments: 0 };
    let mut objects: Vec<_> = m.objects().iter().map(of).collect();
    for s in m.segments() {
        if let Some(o) = objects.get_mut(s.object as usize) {
            o.rows += s.rows;
            o.row_groups += u64::from(s.row_groups);
            o.segments += 1;
        }
    }
    objects
}

impl Inspect {
    fn write_text(&self, out: Out<'_>, dataset: &Dataset) -> Result<(), Failure> {
        let (m, mut objects) = (&dataset.manifest, objects(&dataset.manifest));
        match self.sort {
            InspectSort::Name => {}
            InspectSort::Size => objects.sort_by_key(|o| Reverse(o.object.size)),
            InspectSort::Rows => objects.sort_by_key(|o| Reverse(o.rows)),
        }
        writeln!(out, "{}", m.version_uri())?;
        writeln!(out, "version   {}", m.digest())?;
        if let Some(filter) = m.filter().filter(|filter| !filter.predicate().is_empty()) {
            writeln!(out, "where     {}", filter.predicate())?;
        }
        writeln!(
            out,
            "holds     {} in {}, {} and {} of about {}",
            figures::of(m.rows(), "row"),
            figures::of(objects.len() as u64, "object"),
            figures::of(sum(m, |s| s.row_groups.into()), "row group"),
            figures::of(m.segments().len() as u64, "segment"),
            figures::bytes(m.segment_bytes()),
        )?;
        writeln!(
            out,
            "size      {} stored, about {} decoded; a cold epoch of these columns reads {}\n",
            figures::bytes(object_bytes(m)),
            figures::bytes(sum(m, |s| s.decoded_bytes)),
            figures::bytes(dataset.projected_bytes)
        )?;
        let mut table = figures::table(&["column", "type", "nulls", "read"], &[]);
        let yes = |b: bool| if b { "yes" } else { "no" };
        for (i, f) in dataset.schema.fields().iter().enumerate() {
            let (nulls, read) = (yes(f.is_nullable()), yes(dataset.projection.contains(&i)));
            table.add_row([f.name(), &f.data_type().to_string(), nulls, read]);
        }
        writeln!(out, "{}\n", table.trim_fmt())?;
        let mut table = figures::table(&["object", "size", "rows", "row groups", "segments"], &[1, 2, 3, 4]);
        let shown = self.limit.unwrap_or(OBJECTS_SHOWN);
        for o in objects.iter().take(shown) {
            let name = if o.object.key.is_empty() { "(itself)" } else { &o.object.key };
            let [rows, row_groups, segments] = [o.rows, o.row_groups, o.segments].map(figures::count);
            table.add_row([name.to_owned(), figures::bytes(o.object.size), rows, row_groups, segments]);
        }
        writeln!(out, "{}", table.trim_fmt())?;
        if let Some(more @ 1..) = objects.len().checked_sub(shown) {
            writeln!(
                out,
                "and {} (--limit N shows N, --json all)",
                figures::of(more as u64, "further object")
            )?;
        }
        Ok(())
    }

    fn write_segments(&self, out: Out<'_>, m: &Manifest) -> Result<(), Failure> {
        let mut table =
            figures::table(&["segment", "object", "row groups", "rows", "decoded, about"], &[0, 3, 4]);
        let mut segments: Vec<_> = m.segments().iter().enumerate().collect();
        match self.sort {
            InspectSort::Name => {}
            InspectSort::Size => segments.sort_by_key(|(_, s)| Reverse(s.decoded_bytes)),
            InspectSort::Rows => segments.sort_by_key(|(_, s)| Reverse(s.rows)),
        }
        let shown = self.limit.unwrap_or(usize::MAX);
        for (i, s) in segments.iter().take(shown) {
            let object = m.objects().get(s.object as usize).map_or("", |o| o.key.as_str());
            let groups = format!("{} to {}", s.first_row_group, s.first_row_group + s.row_groups - 1);
            let (rows, bytes) = (figures::count(s.rows), figures::bytes(s.decoded_bytes));
            table.add_row([&i.to_string(), object, &groups, &rows, &bytes]);
        }
        writeln!(out, "\n{}", table.trim_fmt())?;
        if let Some(more @ 1..) = segments.len().checked_sub(shown) {
            writeln!(out, "and {} (--json lists all)", figures::of(more as u64, "further segment"))?;
        }
        Ok(())
    }
}
