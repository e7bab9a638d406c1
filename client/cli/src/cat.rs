//! `forebay cat`: rows in file order on standard output, for eyes, pipes and tests.
//!
//! Through a cache the rows come by Arrow Flight with a scan ticket, directly they come from the same answer
//! code. Each message's checksum is verified before anything of it is printed. Columns come in the order in
//! which they were asked for.

mod jsonl;
mod rows;

use crate::dataset_args::DatasetArgs;
use crate::failure::Failure;
use crate::output::Out;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_ipc::writer::StreamWriter;
use clap::{Args, ValueEnum};
use forebay_client::Dataset;
use forebay_client::args::AccessArgs;
use forebay_proto::{Error, Result as Outcome};
use std::io::Write;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct Cat {
    #[command(flatten)]
    dataset: DatasetArgs,
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
        let dataset = Dataset::open(&self.access.access()?, &self.dataset.spec()).await?;
        let order = as_asked(&dataset, self.dataset.columns.as_deref())?;
        let schema = Arc::new(dataset.projected_schema().project(&order).map_err(not_projected)?);
        let mut printer = Printer::new(self.format, out, &schema)?;
        if self.limit != Some(0) {
            let mut rows = rows::Rows::start(&dataset, self.limit.unwrap_or(0)).await?;
            while let Some(batch) = rows.next().await? {
                printer.print(&batch.project(&order).map_err(not_projected)?)?;
            }
        }
        printer.finish()
    }
}

/// For each column that was asked for, its index in the projected schema (which is in the dataset's order).
fn as_asked(dataset: &Dataset, columns: Option<&[String]>) -> Outcome<Vec<usize>> {
    let schema = dataset.projected_schema();
    match columns {
        None => Ok((0..schema.fields().len()).collect()),
        Some(names) => {
            let index = |name: &String| {
                schema.index_of(name).map_err(|_| Error::invalid(format!("no column `{name}` to print")))
            };
            names.iter().map(index).collect()
        }
    }
}

fn not_projected(e: arrow::error::ArrowError) -> Error {
    Error::corrupt(format!("the rows that came do not fit the dataset's schema: {e}"))
}

enum Printer<W: Write> {
    Arrow(StreamWriter<W>),
    Jsonl(jsonl::Lines<W>),
}

impl<W: Write> Printer<W> {
    fn new(format: Format, out: W, schema: &SchemaRef) -> Result<Self, Failure> {
        Ok(match format {
            Format::Arrow => Printer::Arrow(StreamWriter::try_new(out, schema)?),
            Format::Jsonl => Printer::Jsonl(jsonl::Lines::new(out)),
        })
    }

    fn print(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        match self {
            Printer::Arrow(w) => Ok(w.write(batch)?),
            Printer::Jsonl(w) => Ok(w.write(batch)?),
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Printer::Arrow(mut w) => Ok(w.finish()?),
            Printer::Jsonl(w) => Ok(w.finish()?),
        }
    }
}
