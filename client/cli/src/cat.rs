//! `forebay cat`: rows in file order on standard output, for eyes, pipes and tests.
//!
//! Through a cache the rows come by Arrow Flight with a scan ticket, directly they come from the same answer
//! code. Each message's checksum is verified before anything of it is printed. Columns come in the order in
//! which they were asked for.

mod jsonl;
mod rows;

use crate::failure::Failure;
use crate::output::Out;
use arrow::record_batch::RecordBatchWriter;
use arrow_ipc::writer::StreamWriter;
use clap::{Args, ValueEnum};
use forebay_client::args::AccessArgs;
use forebay_client::{Dataset, DatasetSpec};
use forebay_proto::{Error, Result as Outcome};
use futures::TryStreamExt;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct Cat {
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    access: AccessArgs,
    /// How to write rows
    #[arg(long, value_enum, default_value_t = Format::Jsonl)]
    format: Format,
    /// Rows to print at most [default: all]
    #[arg(long, value_name = "ROWS")]
    limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// An Arrow IPC stream
    Arrow,
    /// One JSON object a line, nulls written out
    Jsonl,
}

impl Cat {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let dataset = Dataset::open(&self.access.access()?, &self.dataset).await?;
        let order = as_asked(&dataset, self.dataset.columns.as_deref())?;
        let schema = Arc::new(dataset.projected_schema.project(&order).map_err(not_projected)?);
        match self.format {
            Format::Arrow => print(&dataset, &order, self.limit, StreamWriter::try_new(out, &schema)?).await,
            Format::Jsonl => print(&dataset, &order, self.limit, jsonl::Lines::new(out)).await,
        }
    }
}

async fn print(
    dataset: &Dataset,
    order: &[usize],
    limit: Option<u64>,
    mut writer: impl RecordBatchWriter,
) -> Result<(), Failure> {
    if limit != Some(0) {
        let mut rows = rows::read(dataset, limit.unwrap_or(0)).await?;
        while let Some(batch) = rows.try_next().await? {
            writer.write(&batch.project(order).map_err(not_projected)?)?;
        }
    }
    Ok(writer.close()?)
}

/// For each column that was asked for, its index in the projected schema (which is in the dataset's order).
fn as_asked(dataset: &Dataset, columns: Option<&[String]>) -> Outcome<Vec<usize>> {
    let schema = &dataset.projected_schema;
    match columns {
        None => Ok((0..schema.fields().len()).collect()),
        Some(names) => names.iter().map(|name| schema.index_of(name).map_err(not_projected)).collect(),
    }
}

fn not_projected(e: arrow::error::ArrowError) -> Error {
    Error::corrupt(format!("the rows that came do not fit the dataset's schema: {e}"))
}
