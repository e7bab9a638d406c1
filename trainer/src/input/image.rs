//! Images: which a column holds, how they become the model's size, and how bytes become numbers.
//!
//! `forebay_images` decodes them, crops, resizes and flips; the model takes `[B, C, H, W]` of bytes and
//! normalises them on its own device, so that one byte per value travels there.

use anyhow::{Result, anyhow, ensure};
use arrow::datatypes::{DataType, Schema};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use forebay_images::{Augment, ImageSettings, Misfit, Raw, SIZE_MAX};
use serde::{Deserialize, Serialize};

use super::schema::{kind_of, shape};

/// How bytes become numbers: divided by 255, less the mean, divided by the deviation; one of each per
/// channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalise {
    pub mean: Vec<f64>,
    /// Standard deviations, of values from 0 to 1.
    pub std: Vec<f64>,
}

/// How images are read, cropped and normalised.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Images")]
pub struct ImageArgs {
    /// Shape of raw pixels: HEIGHTxWIDTHxCHANNELS, or CHANNELSxHEIGHTxWIDTH for one channel after the other
    /// [default: a square with the channels last]
    #[arg(long, value_name = "SHAPE", value_parser = raw)]
    pub image_shape: Option<Raw>,
    /// Side of the square that a model takes, in pixels [default: 224; a square raw image's own side]
    #[arg(long, value_name = "N")]
    pub image_size: Option<i64>,
    /// Make images grey
    #[arg(long)]
    pub grey: bool,
    /// How images of the training are varied
    #[arg(long, value_parser = augments(), default_value_t)]
    pub augment: Augment,
    /// Least share of an image that is left of it, with --augment crop
    #[arg(long, value_name = "SHARE", default_value_t = 0.08)]
    pub crop_share: f64,
    /// Mean of each channel's values, from 0 to 1 [default: ImageNet's; 0.5 for grey]
    #[arg(long, value_name = "M", value_delimiter = ',')]
    pub image_mean: Vec<f64>,
    /// Standard deviation of each channel's values [default: ImageNet's; 0.25 for grey]
    #[arg(long, value_name = "S", value_delimiter = ',')]
    pub image_std: Vec<f64>,
    /// Threads that decode and vary images [default: a share of the cores]
    #[arg(long, value_name = "N")]
    pub decode_threads: Option<usize>,
}

impl ImageArgs {
    /// Refuses numbers that make no sense.
    pub fn check(&self) -> Result<()> {
        let share = self.crop_share;
        ensure!(share > 0.0 && share <= 1.0, "--crop-share must be above 0 and at most 1, not {share}");
        ensure!(self.decode_threads != Some(0), "--decode-threads must be at least 1");
        if let Some(size) = self.image_size {
            ensure!((1..=SIZE_MAX).contains(&size), "--image-size must be from 1 to {SIZE_MAX}, not {size}");
        }
        Ok(())
    }
}

/// The path of the files of a column of images: the field `bytes` of a struct, as Hugging Face's datasets
/// have them, or the column itself.
pub fn files_in(column: &str, schema: &Schema) -> String {
    match kind_of(schema, column, "") {
        Ok(DataType::Struct(fields)) if fields.find("bytes").is_some() => format!("{column}.bytes"),
        _ => column.to_owned(),
    }
}

/// What a column of this schema holds and becomes. The error names the flags.
pub fn resolve(args: &ImageArgs, column: &str, schema: &Schema, uri: &str) -> Result<ImageSettings> {
    let kind = kind_of(schema, column, uri)?;
    let misfit = |misfit| match misfit {
        Misfit::NoImages => anyhow!(
            "column `{column}` of {uri} is {}, but images are encoded files in Binary or LargeBinary, or raw \
             pixels in UInt8[height x width x channels]: choose another --image-column",
            shape(kind)
        ),
        Misfit::Files => anyhow!("--image-shape is for raw pixels, but `{column}` holds files"),
        Misfit::NoSquare(length) => anyhow!(
            "column `{column}` of {uri} is UInt8[{length}], which is no square of pixels: say its \
             --image-shape, as in 32x48x3"
        ),
        Misfit::OtherLength(length, raw) => anyhow!(
            "column `{column}` of {uri} is UInt8[{length}], but images of --image-shape {raw} are UInt8[{}]",
            raw.bytes()
        ),
    };
    ImageSettings::of(kind, args.image_shape, args.grey, args.image_size).map_err(misfit)
}

impl Normalise {
    /// As the flags say, for images of this many channels.
    pub fn of(args: &ImageArgs, channels: i64) -> Result<Self> {
        let pick = |given: &[f64], flag: &str, colours: [f64; 3], grey: f64| -> Result<Vec<f64>> {
            ensure!(
                given.is_empty() || given.len() as i64 == channels,
                "{flag} has {} numbers, but the images have {channels} channels",
                given.len()
            );
            Ok(match (given, channels) {
                ([], 3) => colours.to_vec(),
                ([], _) => vec![grey; channels as usize],
                _ => given.to_vec(),
            })
        };
        let mean = pick(&args.image_mean, "--image-mean", [0.485, 0.456, 0.406], 0.5)?;
        let std = pick(&args.image_std, "--image-std", [0.229, 0.224, 0.225], 0.25)?;
        ensure!(mean.iter().all(|mean| mean.is_finite()), "--image-mean must be numbers");
        ensure!(std.iter().all(|std| std.is_finite() && *std > 0.0), "--image-std must be above 0");
        Ok(Self { mean, std })
    }
}

fn raw(text: &str) -> Result<Raw, String> {
    let sizes: Option<Vec<i64>> = text.split('x').map(|part| part.parse().ok()).collect();
    sizes.and_then(|sizes| Raw::of_sizes(&sizes)).ok_or_else(|| {
        "sizes from 1 to 65536 with x between, and 1 or 3 channels first or last, as in 32x48x3 or 3x32x48"
            .to_owned()
    })
}

fn augments() -> impl TypedValueParser<Value = Augment> {
    let values = [
        ("crop", "A part of the image, at least --crop-share of it, resized; mirrored half of the time"),
        (
            "shift",
            "A square of 7/8 of the shorter side, anywhere in the middle square; mirrored half of the time",
        ),
        ("flip", "The middle square, mirrored half of the time"),
        ("none", "Not at all: as in an evaluation"),
    ];
    let values = values.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).try_map(|text| text.parse::<Augment>())
}

#[cfg(test)]
mod tests;
