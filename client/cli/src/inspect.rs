//! `forebay inspect`: a dataset's schema, objects, row groups and segments.

use crate::dataset_args::DatasetArgs;
use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json, write_table};
use clap::Args;
use forebay_client::Dataset;
use forebay_client::args::AccessArgs;
use forebay_proto::Manifest;
use serde::Serialize;

/// Objects shown to people; programs get all of them.
const OBJECTS_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Answer in JSON, with every object and segment
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct InspectReport<'a> {
    uri: &'a str,
    digest: String,
    rows: u64,
    row_groups: u64,
    object_bytes: u64,
    decoded_bytes: u64,
    projected_bytes: u64,
    segment_bytes: u64,
    columns: Vec<Column>,
    objects: Vec<Object>,
    segments: Vec<Segment>,
}

#[derive(Serialize)]
struct Column {
    name: String,
    r#type: String,
    nullable: bool,
    projected: bool,
}

#[derive(Serialize, Default, Clone)]
struct Object {
    key: String,
    etag: String,
    bytes: u64,
    rows: u64,
    row_groups: u64,
    segments: u64,
}

#[derive(Serialize)]
struct Segment {
    object: u32,
    first_row_group: u32,
    row_groups: u32,
    first_row: u64,
    rows: u64,
    decoded_bytes: u64,
}

impl Inspect {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let dataset = Dataset::open(&self.access.access()?, &self.dataset.spec()).await?;
        match self.json {
            true => write_json(out, &answer(&dataset)),
            false => write_text(out, &answer(&dataset)),
        }
    }
}

fn answer(dataset: &Dataset) -> InspectReport<'_> {
    let m = dataset.manifest();
    let fields = dataset.schema().fields().iter().enumerate();
    InspectReport {
        uri: m.uri(),
        digest: m.digest().to_string(),
        rows: m.rows(),
        row_groups: m.segments().iter().map(|s| u64::from(s.row_groups)).sum(),
        object_bytes: m.objects().iter().map(|o| o.size).sum(),
        decoded_bytes: m.segments().iter().map(|s| s.decoded_bytes).sum(),
        projected_bytes: dataset.projected_bytes(),
        segment_bytes: m.segment_bytes(),
        columns: fields
            .map(|(i, f)| Column {
                name: f.name().clone(),
                r#type: f.data_type().to_string(),
                nullable: f.is_nullable(),
                projected: dataset.projection().contains(&i),
            })
            .collect(),
        objects: objects(m),
        segments: m
            .segments()
            .iter()
            .map(|s| Segment {
                object: s.object,
                first_row_group: s.first_row_group,
                row_groups: s.row_groups,
                first_row: s.first_row,
                rows: s.rows,
                decoded_bytes: s.decoded_bytes,
            })
            .collect(),
    }
}

fn objects(m: &Manifest) -> Vec<Object> {
    let of = |o: &forebay_proto::manifest::Object| Object {
        key: o.key.clone(),
        etag: o.etag.clone(),
        bytes: o.size,
        ..Default::default()
    };
    let mut objects: Vec<Object> = m.objects().iter().map(of).collect();
    for s in m.segments() {
        if let Some(o) = objects.get_mut(s.object as usize) {
            o.rows += s.rows;
            o.row_groups += u64::from(s.row_groups);
            o.segments += 1;
        }
    }
    objects
}

fn write_text(out: Out<'_>, a: &InspectReport<'_>) -> Result<(), Failure> {
    writeln!(out, "{}", a.uri)?;
    writeln!(out, "version   {}", a.digest)?;
    writeln!(
        out,
        "holds     {} in {}, {} and {} of about {}",
        figures::of(a.rows, "row"),
        figures::of(a.objects.len() as u64, "object"),
        figures::of(a.row_groups, "row group"),
        figures::of(a.segments.len() as u64, "segment"),
        figures::bytes(a.segment_bytes),
    )?;
    writeln!(
        out,
        "size      {} stored, about {} decoded; a cold epoch of these columns reads {}",
        figures::bytes(a.object_bytes),
        figures::bytes(a.decoded_bytes),
        figures::bytes(a.projected_bytes)
    )?;
    writeln!(out)?;
    let mut table = figures::table(&["column", "type", "nulls", "read"], &[]);
    let yes = |b: bool| if b { "yes" } else { "no" };
    for c in &a.columns {
        table.add_row([&c.name, &c.r#type, yes(c.nullable), yes(c.projected)]);
    }
    write_table(out, &table)?;
    writeln!(out)?;
    let mut table = figures::table(&["object", "size", "rows", "row groups", "segments"], &[1, 2, 3, 4]);
    for o in a.objects.iter().take(OBJECTS_SHOWN) {
        let name = if o.key.is_empty() { "(itself)" } else { &o.key };
        table.add_row([
            name.to_owned(),
            figures::bytes(o.bytes),
            figures::count(o.rows),
            figures::count(o.row_groups),
            figures::count(o.segments),
        ]);
    }
    write_table(out, &table)?;
    if let Some(more @ 1..) = a.objects.len().checked_sub(OBJECTS_SHOWN) {
        writeln!(out, "and {} (--json lists all)", figures::of(more as u64, "further object"))?;
    }
    Ok(())
}
