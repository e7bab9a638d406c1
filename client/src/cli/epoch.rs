//! `forebay epoch`: read epochs without a trainer, and report where the bytes came from and how fast.
mod report;
use super::failure::Failure;
use super::{AccessArgs, DatasetArgs, Out};
#[derive(Debug, clap::Args)]
pub(super) struct Epoch {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    access: AccessArgs,
}
impl Epoch {
    pub(super) async fn run(self, _out: Out<'_>) -> Result<(), Failure> {
        Ok(())
    }
}
