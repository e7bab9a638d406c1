//! What a column of images holds, and what becomes of it.
//!
//! A column holds either encoded files (JPEG or PNG in `Binary` or `LargeBinary`) or raw pixels
//! (`FixedSizeList<UInt8>`).

use std::fmt;
use std::str::FromStr;

use arrow::datatypes::DataType;
use forebay_proto::{Error, Result};
use serde::{Deserialize, Serialize};

/// The largest side of the square that an image can become.
pub const SIZE_MAX: i64 = 4096;

/// The side of the square that files become, unless another is wanted.
const SIZE: i64 = 224;

/// The largest side of an image of raw pixels.
const RAW_SIDE_MAX: i64 = 65_536;

/// What a column of images holds, and what the model makes of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Whether they are files or plain pixels.
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
    /// Pixels without a file around them; all images have this one shape.
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

/// How images of the training are varied; an evaluation never varies them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Augment {
    /// A part of the image, resized; mirrored half of the time.
    #[default]
    Crop,
    /// The whole image, moved by up to an eighth; mirrored half of the time.
    Shift,
    /// The whole image, mirrored half of the time.
    Flip,
    /// Not at all: as in an evaluation.
    None,
}

/// Why a column cannot be read as images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// It holds neither files nor bytes.
    NoImages,
    /// A shape of raw pixels was given, but it holds files.
    Files,
    /// No shape was given, and this number of bytes is no square.
    NoSquare(i64),
    /// Its rows have this number of bytes, images of the shape that was given have another.
    OtherLength(i64, Raw),
}

impl ImageSettings {
    /// For a column of this type. Unset, `raw` is a square with the channels last, and `size` that square's
    /// own side, else 224.
    pub fn of(kind: &DataType, raw: Option<Raw>, grey: bool, size: Option<i64>) -> Result<Self, Misfit> {
        let length = match kind {
            DataType::Binary | DataType::LargeBinary => {
                if raw.is_some() {
                    return Err(Misfit::Files);
                }
                let channels = if grey { 1 } else { 3 };
                return Ok(Self { source: ImageSource::Encoded, channels, size: size.unwrap_or(SIZE) });
            }
            DataType::FixedSizeList(item, length) if *item.data_type() == DataType::UInt8 => {
                i64::from(*length)
            }
            _ => return Err(Misfit::NoImages),
        };
        let raw = raw.or_else(|| Raw::square(length)).ok_or(Misfit::NoSquare(length))?;
        if raw.bytes() != length {
            return Err(Misfit::OtherLength(length, raw));
        }
        let size = size.or((raw.height == raw.width).then_some(raw.height)).unwrap_or(SIZE);
        Ok(Self { source: ImageSource::Raw(raw), channels: if grey { 1 } else { raw.channels }, size })
    }

    /// Bytes of an image as the model takes it.
    pub fn bytes(&self) -> usize {
        (self.channels * self.size * self.size) as usize
    }
}

impl Raw {
    /// Of sizes as people give them: height, width, and 1 or 3 channels, first or last. `None` for others.
    pub fn of_sizes(sizes: &[i64]) -> Option<Self> {
        let (height, width, channels, planar) = match *sizes {
            [height, width] => (height, width, 1, false),
            [height, width, channels @ (1 | 3)] => (height, width, channels, false),
            [channels @ (1 | 3), height, width] => (height, width, channels, true),
            _ => return None,
        };
        let fits = [height, width].iter().all(|side| (1..=RAW_SIDE_MAX).contains(side));
        fits.then_some(Self { height, width, channels, planar })
    }

    fn square(length: i64) -> Option<Self> {
        [1, 3].into_iter().find_map(|channels| {
            let side = ((length / channels) as f64).sqrt().round() as i64;
            let fits = side > 0 && side * side * channels == length;
            fits.then_some(Self { height: side, width: side, channels, planar: false })
        })
    }

    /// Bytes of an image: one for each channel of each pixel.
    pub fn bytes(&self) -> i64 {
        self.height * self.width * self.channels
    }
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { height, width, channels, planar } = self;
        if *planar {
            write!(f, "{channels}x{height}x{width}")
        } else {
            write!(f, "{height}x{width}x{channels}")
        }
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crop => "crop",
            Self::Shift => "shift",
            Self::Flip => "flip",
            Self::None => "none",
        })
    }
}

impl FromStr for Augment {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Crop, Self::Shift, Self::Flip, Self::None];
        let unknown = || Error::invalid(format!("`{text}`: there are crop, shift, flip and none"));
        all.into_iter().find(|augment| augment.to_string() == text).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: i32) -> DataType {
        DataType::new_fixed_size_list(DataType::UInt8, length, true)
    }

    #[test]
    fn columns_of_files_and_of_pixels_are_told_apart() {
        let files = ImageSettings::of(&DataType::LargeBinary, None, false, Some(64)).unwrap();
        assert_eq!(files, ImageSettings { source: ImageSource::Encoded, channels: 3, size: 64 });
        assert_eq!(ImageSettings::of(&DataType::Binary, None, true, None).unwrap().channels, 1);
        let grey = ImageSettings::of(&bytes(784), None, false, None).unwrap();
        assert_eq!((grey.channels, grey.size, grey.bytes()), (1, 28, 784));
        let colour = ImageSettings::of(&bytes(3072), None, false, None).unwrap();
        assert_eq!((colour.channels, colour.size), (3, 32));
        let raw = Raw { height: 4, width: 8, channels: 3, planar: true };
        assert_eq!(Raw::of_sizes(&[3, 4, 8]), Some(raw));
        let planar = ImageSettings::of(&bytes(96), Some(raw), false, Some(8)).unwrap();
        assert_eq!((planar.source, planar.size), (ImageSource::Raw(raw), 8));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let of = |kind: &DataType, raw| ImageSettings::of(kind, raw, false, None).unwrap_err();
        let raw = Raw::of_sizes(&[4, 8, 3]);
        assert_eq!(of(&DataType::Utf8, None), Misfit::NoImages);
        assert_eq!(of(&bytes(95), None), Misfit::NoSquare(95));
        assert_eq!(of(&bytes(95), raw), Misfit::OtherLength(95, raw.unwrap()));
        assert_eq!(of(&DataType::Binary, raw), Misfit::Files);
        for wrong in [&[4, 8, 2][..], &[4], &[0, 4, 3], &[4, 8, 3, 1], &[4, 65_537]] {
            assert_eq!(Raw::of_sizes(wrong), None, "{wrong:?}");
        }
        assert_eq!("flip".parse::<Augment>().unwrap(), Augment::Flip);
        assert_eq!("x".parse::<Augment>().unwrap_err().message, "`x`: there are crop, shift, flip and none");
    }
}
