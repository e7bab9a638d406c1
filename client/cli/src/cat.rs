//! `forebay cat`: rows in file order on standard output, for eyes, pipes and tests.
//!
//! Columns come in the order in which they were asked for.

mod jsonl;

use crate::failure::{Failure, usage};
use crate::open::open;
use crate::output::Out;
use arrow::record_batch::RecordBatchWriter;
use arrow_ipc::writer::StreamWriter;
use clap::{Args, ValueEnum};
use forebay_client::args::AccessArgs;
use forebay_client::{Dataset, DatasetSpec, rows};
use futures::TryStreamExt;

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
        let dataset = open(&self.access.access().map_err(usage)?, &self.dataset).await?;
        let schema = rows::schema(&dataset)?;
        match self.format {
            Format::Arrow => print(&dataset, self.limit, StreamWriter::try_new(out, &schema)?).await,
            Format::Jsonl => print(&dataset, self.limit, jsonl::Lines::new(out)).await,
        }
    }
}

async fn print(
    dataset: &Dataset,
    limit: Option<u64>,
    mut writer: impl RecordBatchWriter,
) -> Result<(), Failure> {
    let mut rows = rows::scan(dataset, limit).await?;
    while let Some(batch) = rows.try_next().await? {
        writer.write(&batch)?;
    }
    Ok(writer.close()?)
}
