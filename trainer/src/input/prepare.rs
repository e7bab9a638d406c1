//! A batch of the loader as a model's input.

use anyhow::{Context, Result, bail};
use arrow::array::Array;
use forebay_c10d::{Span, tensor_from_owner};
use forebay_client::Batch;
use forebay_images::{Augment, Decoder, ImageSettings, Rows, Vary};
use tch::{Kind, Tensor};

use super::columns::{Columns, Takes};
use super::image::ImageArgs;
use super::rows::Input;
use super::tensors::packed_input;

/// Makes inputs of batches, the same for the same batch whatever runs beside it.
#[derive(Debug)]
pub struct Preparer {
    /// Its URI.
    dataset: String,
    columns: Columns,
    /// Only if there are images to decode.
    decoder: Option<Decoder>,
    augment: Augment,
    crop_share: f64,
    /// The run's seed, if images are to be varied.
    vary: Option<u64>,
}

impl Preparer {
    /// For these columns of the dataset at a URI. `threads` decode images unless the flags say otherwise;
    /// with `vary`, the run's seed, they are varied as training wants them.
    pub fn new(
        (dataset, columns): (String, Columns),
        args: &ImageArgs,
        threads: usize,
        vary: Option<u64>,
    ) -> Result<Self> {
        let has_images = columns.wanted.iter().any(|wanted| matches!(wanted.takes, Takes::Image(_)));
        let threads = args.decode_threads.unwrap_or(threads);
        let decoder = has_images.then(|| Decoder::new(threads)).transpose()?;
        Ok(Self { dataset, columns, decoder, augment: args.augment, crop_share: args.crop_share, vary })
    }

    /// Whether inputs take work worth doing ahead of their step.
    pub fn decodes(&self) -> bool {
        self.decoder.is_some()
    }

    /// The tensors of a batch. What needs no decoding shares the batch's memory. Errors name the dataset.
    pub fn input(&self, batch: &Batch) -> Result<Input> {
        self.tensors(batch).with_context(|| self.dataset.clone())
    }

    fn tensors(&self, batch: &Batch) -> Result<Input> {
        if let Some(sequences) = &batch.sequences {
            return Ok(packed_input(&self.columns, &batch.columns, sequences)?.counted());
        }
        let (samples, epoch) = (&batch.sample_ids, batch.epoch);
        let (augment, crop_share) = (self.augment, self.crop_share);
        let vary = self.vary.map(|seed| Vary { augment, crop_share, seed, epoch });
        let images = |column: &dyn Array, settings: &ImageSettings, name: &str| -> Result<Tensor> {
            let rows = Rows { column: name, samples, vary };
            let Some(decoder) = &self.decoder else { bail!("there are no threads to decode `{name}`") };
            let bytes = decoder.images(column, settings, rows, || Span::new("decode image"))?;
            let sizes = [column.len() as i64, settings.channels, settings.size, settings.size];
            Ok(tensor_from_owner(bytes, &sizes, Kind::Uint8)?)
        };
        Ok(self.columns.tensors(&batch.columns, batch.mask.as_ref(), &images)?.counted())
    }
}
