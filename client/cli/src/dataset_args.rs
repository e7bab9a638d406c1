//! The arguments that name a dataset and its columns.

use clap::Args;
use forebay_client::DatasetSpec;
use forebay_proto::view::{MixPart, Split};

/// Which dataset, and which columns of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct DatasetArgs {
    /// Dataset: s3://BUCKET/PREFIX or file:///PATH, a folder of Parquet objects or one of them
    #[arg(
        required_unless_present = "mix",
        conflicts_with = "mix",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) uri: String,
    /// Read only some of its rows, in file order: shares as in 0:0.9, or rows as in 1000:5000
    #[arg(long, value_name = "FROM:TO", conflicts_with = "mix")]
    split: Option<Split>,
    /// Several datasets in proportion instead of one, separated by commas, as in s3://b/x=0.7,s3://b/y=0.3
    #[arg(long, value_name = "URI=SHARE", value_delimiter = ',')]
    mix: Vec<MixPart>,
    /// Columns to read, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) columns: Option<Vec<String>>,
    /// Target size of a segment in decoded bytes, e.g. 8MiB; part of the dataset's version [default: 32MiB]
    #[arg(long, value_name = "BYTES", value_parser = forebay_client::args::bytes)]
    segment_bytes: Option<u64>,
}

impl DatasetArgs {
    pub(crate) fn spec(&self) -> DatasetSpec {
        DatasetSpec {
            uri: self.uri.clone(),
            split: self.split,
            mix: self.mix.clone(),
            columns: self.columns.clone(),
            segment_bytes: self.segment_bytes,
        }
    }
}
