//! Images: which a column holds, how they become the model's size, and how bytes become numbers.
//!
//! A column holds either encoded files (JPEG or PNG in `Binary` or `LargeBinary`) or raw pixels
//! (`FixedSizeList<UInt8>`). Both are cropped, resized and flipped alike ([`super::augment`]), on a pool of
//! threads ([`super::decode`]); the model takes `[B, C, H, W]` of bytes and normalises them on its own
//! device, so that one byte per value travels there.

use anyhow::{Context, Result, bail, ensure};
use arrow::datatypes::{DataType, Schema};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::schema::{kind_of, shape};

/// What a column of images holds, and what the model makes of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// What the column holds.
    pub source: ImageSource,
    /// 3 for colours, 1 for grey.
    pub channels: i64,
    /// Side of the square that the model takes.
    pub size: i64,
}

/// What a column of images holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSource {
    /// JPEG or PNG files, of any size.
    Encoded,
    /// Pixels.
    Raw(Raw),
}

/// Pixels as bytes, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// Rows.
    pub height: i64,
    /// Pixels of a row.
    pub width: i64,
    /// 3 or 1.
    pub channels: i64,
    /// One channel after the other, rather than one pixel after the other.
    pub planar: bool,
}

/// How bytes become numbers: divided by 255, less the mean, divided by the deviation; one of each per
/// channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalise {
    pub mean: Vec<f64>,
    /// Standard deviations.
    pub std: Vec<f64>,
}

/// How images of the training are varied; an evaluation never varies them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Augment {
    /// A part of the image, at least --crop-share of it, resized; mirrored half of the time
    #[default]
    Crop,
    /// The whole image, moved by up to an eighth; mirrored half of the time
    Shift,
    /// The whole image, mirrored half of the time
    Flip,
    /// Not at all: as in an evaluation
    None,
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
    #[arg(long, value_enum, default_value_t)]
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
            ensure!((1..=4096).contains(&size), "--image-size must be from 1 to 4096, not {size}");
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

impl ImageSettings {
    /// For a column of this schema. The error names what the column holds.
    pub fn resolve(args: &ImageArgs, column: &str, schema: &Schema, uri: &str) -> Result<Self> {
        let kind = kind_of(schema, column, uri)?;
        let length = match kind {
            DataType::Binary | DataType::LargeBinary => None,
            DataType::FixedSizeList(item, length) if *item.data_type() == DataType::UInt8 => Some(*length),
            other => bail!(
                "column `{column}` of {uri} is {}, but images are encoded files in Binary or LargeBinary, or \
                 raw pixels in UInt8[height x width x channels]: choose another --image-column",
                shape(other)
            ),
        };
        let Some(length) = length.map(i64::from) else {
            ensure!(
                args.image_shape.is_none(),
                "--image-shape is for raw pixels, but `{column}` holds files"
            );
            let channels = if args.grey { 1 } else { 3 };
            return Ok(Self { source: ImageSource::Encoded, channels, size: args.image_size.unwrap_or(224) });
        };
        let raw = match args.image_shape {
            Some(raw) => raw,
            None => Raw::square(length).with_context(|| {
                format!(
                    "column `{column}` of {uri} is UInt8[{length}], which is no square of pixels: say its \
                     --image-shape, as in 32x48x3"
                )
            })?,
        };
        ensure!(
            raw.bytes() == length,
            "column `{column}` of {uri} is UInt8[{length}], but images of --image-shape {} are UInt8[{}]",
            raw.text(),
            raw.bytes()
        );
        let size = args.image_size.or((raw.height == raw.width).then_some(raw.height)).unwrap_or(224);
        let channels = if args.grey { 1 } else { raw.channels };
        Ok(Self { source: ImageSource::Raw(raw), channels, size })
    }

    /// Bytes of an image as the model takes it.
    pub fn bytes(&self) -> usize {
        (self.channels * self.size * self.size) as usize
    }
}

impl Raw {
    fn square(length: i64) -> Option<Self> {
        [1, 3].into_iter().find_map(|channels| {
            let side = ((length / channels) as f64).sqrt().round() as i64;
            let fits = side > 0 && side * side * channels == length;
            fits.then_some(Self { height: side, width: side, channels, planar: false })
        })
    }

    /// Bytes of an image.
    pub fn bytes(&self) -> i64 {
        self.height * self.width * self.channels
    }

    fn text(&self) -> String {
        let Self { height, width, channels, planar } = self;
        if *planar { format!("{channels}x{height}x{width}") } else { format!("{height}x{width}x{channels}") }
    }
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
    let sizes: Vec<i64> = text
        .split('x')
        .map(|part| part.parse().ok().filter(|size| (1..=65536).contains(size)))
        .collect::<Option<_>>()
        .ok_or("sizes from 1 to 65536 with x between, as in 32x48x3")?;
    match sizes[..] {
        [height, width] => Ok(Raw { height, width, channels: 1, planar: false }),
        [height, width, channels @ (1 | 3)] => Ok(Raw { height, width, channels, planar: false }),
        [channels @ (1 | 3), height, width] => Ok(Raw { height, width, channels, planar: true }),
        _ => Err("1 or 3 channels, first or last, as in 32x48x3 or 3x32x48".to_owned()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
