//! A batch of the loader as a model's input.

use anyhow::Result;
use arrow::array::Array;
use forebay_client::Batch;
use tch::Tensor;

use super::columns::{Columns, Takes};
use super::decode::{Decoder, Rows};
use super::image::{ImageArgs, ImageSettings};
use super::rows::Input;

/// Makes inputs of batches, the same for the same batch whatever runs beside it.
#[derive(Debug)]
pub struct Preparer {
    columns: Columns,
    /// Only if there are images to decode.
    decoder: Option<Decoder>,
    /// The run's seed, if images are to be varied.
    vary: Option<u64>,
}

impl Preparer {
    /// For these columns. `threads` decode images unless the flags say otherwise; with `vary`, the run's
    /// seed, they are varied as training wants them.
    pub fn new(columns: Columns, args: &ImageArgs, threads: usize, vary: Option<u64>) -> Result<Self> {
        let has_images = columns.wanted.iter().any(|wanted| matches!(wanted.takes, Takes::Image(_)));
        let decoder = has_images.then(|| Decoder::new(args, threads)).transpose()?;
        Ok(Self { columns, decoder, vary })
    }

    /// Whether inputs take work worth doing ahead of their step.
    pub fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// The tensors of a batch. What needs no decoding shares the batch's memory.
    pub fn input(&self, batch: &Batch) -> Result<Input> {
        let samples = &batch.sample_ids;
        let vary = self.vary.map(|seed| (seed, batch.epoch));
        let images = |column: &dyn Array, settings: &ImageSettings, name: &str| -> Result<Tensor> {
            let rows = Rows { column: name, samples, vary };
            match &self.decoder {
                Some(decoder) => decoder.images(column, settings, rows),
                None => anyhow::bail!("there are no threads to decode `{name}`"),
            }
        };
        self.columns.tensors(&batch.columns, batch.mask.as_ref(), &images)
    }
}
