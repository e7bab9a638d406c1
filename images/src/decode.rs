//! From a column of images to the tensor that a model takes, on a pool of threads.
//!
//! A batch is worked on at a time, each row by whichever thread is free, into its own place: the result does
//! not depend on the number of threads. Decoders are bounded in the size of what they unpack. An image that
//! is damaged is an error that names its sample.

use std::fmt::Display;
use std::io::Cursor;

use arrow::array::{Array, AsArray};
use arrow::datatypes::UInt8Type;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use forebay_proto::{Error, Result};
use image::{ImageFormat, ImageReader, Limits};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::augment::{Key, View};
use crate::settings::{Augment, ImageSettings, ImageSource, Raw};

/// The largest side of an image that is unpacked, and the memory that one may take while it is.
const SIDE_MAX: u32 = 32_768;
const UNPACKED_BYTES_MAX: u64 = 512 << 20;

/// Threads that turn images into what a model takes.
#[derive(Debug)]
pub struct Decoder(ThreadPool);

/// Which rows of which epoch are worked on.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The column's name, for errors.
    pub column: &'a str,
    /// The number of each row's sample in the dataset.
    pub samples: &'a [u64],
    /// How the images are varied; `None` in an evaluation.
    pub vary: Option<Vary>,
}

/// How the images of an epoch are varied.
#[derive(Debug, Clone, Copy)]
pub struct Vary {
    /// Which changes are drawn for each image, if any.
    pub augment: Augment,
    /// Least share of an image that is left of it, with [`Augment::Crop`]; above 0, at most 1.
    pub crop_share: f64,
    /// Of the run: the changes of an image follow from it, the epoch and the sample.
    pub seed: u64,
    /// Counted from 0. A sample is varied otherwise in each.
    pub epoch: u64,
}

/// Pixels of one image, one after the other.
struct Pixels {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

impl Decoder {
    /// With this number of threads, at least one.
    pub fn new(threads: usize) -> Result<Self> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|index| format!("decode-{index}"))
            .build();
        let failed = |e| Error::full(format!("cannot start the threads that decode images: {e}"));
        pool.map(Self).map_err(failed)
    }

    /// Images as bytes, `[rows, channels, size, size]`. A `span` is held for as long as a thread is at one.
    pub fn images<S>(
        &self,
        column: &dyn Array,
        settings: &ImageSettings,
        rows: Rows<'_>,
        span: impl Fn() -> S + Sync,
    ) -> Result<Vec<u8>> {
        let (name, count) = (rows.column, column.len());
        if rows.samples.len() != count {
            let numbers = rows.samples.len();
            return Err(Error::invalid(format!("{numbers} sample numbers for {count} rows of `{name}`")));
        }
        let sources = sources(column, settings.source, rows)?;
        let mut bytes = vec![0; settings.bytes() * sources.len()];
        let one = |index: usize, place: &mut [u8]| -> Result<()> {
            let _span = span();
            let sample = rows.samples[index];
            image(sources[index], settings, sample, rows.vary, place)
                .map_err(|e| e.context(format!("column `{name}`, sample {sample}")))
        };
        // The first error in the order of rows, whichever thread met one first.
        let failed = self.0.install(|| {
            let places = bytes.par_chunks_mut(settings.bytes().max(1)).enumerate();
            places
                .filter_map(|(index, place)| one(index, place).err().map(|e| (index, e)))
                .min_by_key(|f| f.0)
        });
        failed.map_or(Ok(bytes), |(_, error)| Err(error))
    }
}

fn image(
    source: &[u8],
    settings: &ImageSettings,
    sample: u64,
    vary: Option<Vary>,
    place: &mut [u8],
) -> Result<()> {
    let pixels = match settings.source {
        ImageSource::Encoded => unpack(source, settings.channels)?,
        ImageSource::Raw(raw) => interleaved(source, raw, settings.channels),
    };
    let (full, size) = ((pixels.width, pixels.height), settings.size as u32);
    let view = match vary {
        Some(Vary { augment, crop_share, seed, epoch }) => {
            View::of_training(augment, crop_share, Key { seed, epoch, sample }, full, size)
        }
        None => View::of_evaluation(full, size),
    };
    let square = resized(&pixels, view, settings)?;
    scatter(&square, settings, view.mirrored, place);
    Ok(())
}

/// Each row's bytes.
fn sources<'a>(column: &'a dyn Array, source: ImageSource, rows: Rows<'_>) -> Result<Vec<&'a [u8]>> {
    let name = rows.column;
    if let Some(row) = (0..column.len()).find(|row| column.is_null(*row)) {
        let sample = rows.samples[row];
        return Err(Error::invalid(format!(
            "column `{name}`, sample {sample}: a null, which is no image: leave such rows out"
        )));
    }
    let wrong =
        || Error::invalid(format!("column `{name}` does not hold the images that its schema promised"));
    if let ImageSource::Raw(raw) = source {
        let list = column.as_fixed_size_list_opt();
        let list = list.filter(|list| i64::from(list.value_length()) == raw.bytes()).ok_or_else(wrong)?;
        let values = list.values().as_primitive_opt::<UInt8Type>().ok_or_else(wrong)?;
        if values.null_count() > 0 {
            let within = "has nulls inside, which have no place in an image";
            return Err(Error::invalid(format!("column `{name}` {within}")));
        }
        return Ok(values.values().chunks_exact(raw.bytes().max(1) as usize).collect());
    }
    if let Some(files) = column.as_binary_opt::<i32>() {
        return Ok((0..files.len()).map(|row| files.value(row)).collect());
    }
    let files = column.as_binary_opt::<i64>().ok_or_else(wrong)?;
    Ok((0..files.len()).map(|row| files.value(row)).collect())
}

fn unpack(file: &[u8], channels: i64) -> Result<Pixels> {
    let format = image::guess_format(file).ok();
    let (Some(format), true) = (format, matches!(format, Some(ImageFormat::Jpeg | ImageFormat::Png))) else {
        return Err(Error::corrupt(format!("these {} bytes are neither JPEG nor PNG", file.len())));
    };
    let end = match format {
        // The decoder fills the missing part of a JPEG with grey.
        ImageFormat::Jpeg => jpeg_end(file).ok_or_else(|| damaged(&"it breaks off"))?,
        _ => file.len(),
    };
    let mut reader = ImageReader::with_format(Cursor::new(&file[..end]), format);
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(SIDE_MAX), Some(SIDE_MAX));
    limits.max_alloc = Some(UNPACKED_BYTES_MAX);
    reader.limits(limits);
    let image = reader.decode().map_err(|e| damaged(&e))?;
    let (width, height) = (image.width(), image.height());
    let bytes = if channels == 1 { image.into_luma8().into_raw() } else { image.into_rgb8().into_raw() };
    Ok(Pixels { width, height, bytes })
}

fn damaged(how: &dyn Display) -> Error {
    Error::corrupt(format!("the image is damaged: {how}"))
}

/// Where a JPEG's image ends (ITU-T T.81, annex B): behind the end marker that follows its scans. What a
/// camera or an editor has put behind it (previews, video, depth) is none of its business. `None`: it breaks
/// off before.
fn jpeg_end(jpeg: &[u8]) -> Option<usize> {
    const END: u8 = 0xd9;
    // Markers that stand alone: bytes stuffed into a scan, restarts, the beginning, fill bytes.
    let alone = |marker: u8| matches!(marker, 0x00 | 0x01 | 0xd0..=0xd8);
    let mut at = 0;
    loop {
        // Within a scan, and where there is rubbish between segments, the next marker is looked for.
        at += jpeg.get(at..)?.iter().position(|byte| *byte == 0xff)?;
        match *jpeg.get(at + 1)? {
            0xff => at += 1,
            END => return Some(at + 2),
            marker if alone(marker) => at += 2,
            // Their lengths count themselves. A preview's own markers lie within one.
            _ => {
                let length = [*jpeg.get(at + 2)?, *jpeg.get(at + 3)?];
                at += 2 + usize::from(u16::from_be_bytes(length)).max(2);
            }
        }
    }
}

/// Raw pixels as the resizer takes them, in the channels that the model takes.
fn interleaved(source: &[u8], raw: Raw, channels: i64) -> Pixels {
    let (plane, from) = ((raw.height * raw.width) as usize, raw.channels as usize);
    let at = |pixel: usize, channel: usize| {
        source[if raw.planar { channel * plane + pixel } else { pixel * from + channel }]
    };
    let bytes = match (from, channels) {
        (1, 1) => source.to_vec(),
        (3, 3) if !raw.planar => source.to_vec(),
        // The weights of ITU-R BT.709, as the decoders of files have them.
        (3, 1) => (0..plane)
            .map(|pixel| {
                let [r, g, b] = [0, 1, 2].map(|channel| u32::from(at(pixel, channel)));
                ((2126 * r + 7152 * g + 722 * b) / 10_000) as u8
            })
            .collect(),
        _ => (0..plane * channels as usize)
            .map(|index| at(index / channels as usize, (index % channels as usize).min(from - 1)))
            .collect(),
    };
    Pixels { width: raw.width as u32, height: raw.height as u32, bytes }
}

/// The view at the model's size, pixels one after the other.
fn resized(pixels: &Pixels, view: View, settings: &ImageSettings) -> Result<Vec<u8>> {
    let whole = view.left == 0.0 && view.top == 0.0;
    let size = settings.size as u32;
    if whole && view.width == f64::from(size) && view.height == f64::from(size) && pixels.width == size {
        return Ok(pixels.bytes[..settings.bytes()].to_vec());
    }
    if settings.channels == 1 {
        resized_of::<U8>(pixels, view, size)
    } else {
        resized_of::<U8x3>(pixels, view, size)
    }
}

/// The same, of pixels of this kind. (What takes any kind is compiled for thirteen.)
fn resized_of<P: PixelTrait>(pixels: &Pixels, view: View, size: u32) -> Result<Vec<u8>> {
    let failed = |e: &dyn Display| Error::invalid(format!("the image cannot be resized: {e}"));
    let from = TypedImageRef::<P>::from_buffer(pixels.width, pixels.height, &pixels.bytes);
    let from = from.map_err(|e| failed(&e))?;
    let mut bytes = vec![0; size as usize * size as usize * P::size()];
    let mut to = TypedImage::<P>::from_buffer(size, size, &mut bytes).map_err(|e| failed(&e))?;
    let options = ResizeOptions::new()
        .crop(view.left, view.top, view.width, view.height)
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new().resize_typed(&from, &mut to, &options).map_err(|e| failed(&e))?;
    Ok(bytes)
}

/// Pixels one after the other to channels one after the other.
fn scatter(square: &[u8], settings: &ImageSettings, mirrored: bool, place: &mut [u8]) {
    let (side, channels) = (settings.size as usize, settings.channels as usize);
    for (channel, plane) in place.chunks_exact_mut(side * side).enumerate() {
        for (row, line) in plane.chunks_exact_mut(side).enumerate() {
            for (x, value) in line.iter_mut().enumerate() {
                let from = if mirrored { side - 1 - x } else { x };
                *value = square[(row * side + from) * channels + channel];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{BinaryArray, FixedSizeListArray, LargeBinaryArray, UInt8Array};
    use arrow::datatypes::{DataType, Field};
    use image::RgbImage;

    fn picture(seed: u8, width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([(x * 5) as u8 ^ seed, (y * 7) as u8, ((x + y) * 3) as u8])
        })
    }

    fn file(picture: &RgbImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn files() -> Vec<Vec<u8>> {
        (0..12u8)
            .map(|index| {
                let format = if index % 2 == 0 { ImageFormat::Jpeg } else { ImageFormat::Png };
                file(&picture(index, 40 + u32::from(index), 50), format)
            })
            .collect()
    }

    fn encoded(size: i64) -> ImageSettings {
        ImageSettings { source: ImageSource::Encoded, channels: 3, size }
    }

    fn varied(augment: Augment, seed: u64, epoch: u64) -> Option<Vary> {
        Some(Vary { augment, crop_share: 0.08, seed, epoch })
    }

    fn cropped(seed: u64, epoch: u64) -> Option<Vary> {
        varied(Augment::Crop, seed, epoch)
    }

    fn images(
        threads: usize,
        column: &dyn Array,
        settings: &ImageSettings,
        rows: Rows<'_>,
    ) -> Result<Vec<u8>> {
        Decoder::new(threads).unwrap().images(column, settings, rows, || ())
    }

    #[test]
    fn pixels_follow_from_seed_epoch_and_sample_alone() {
        let files = files();
        let column = BinaryArray::from_iter_values(&files);
        let samples: Vec<u64> = (100..112).collect();
        let rows = Rows { column: "x", samples: &samples, vary: cropped(7, 2) };
        let one = images(1, &column, &encoded(16), rows).unwrap();
        assert_eq!(one.len(), 12 * 3 * 16 * 16);
        let many = images(5, &column, &encoded(16), rows).unwrap();
        assert!(one == many, "the number of threads changes nothing");
        // Other ranks, another place in the batch.
        let some = LargeBinaryArray::from_iter_values([&files[9], &files[4]]);
        let rows = Rows { samples: &[109, 104], ..rows };
        let some = images(1, &some, &encoded(16), rows).unwrap();
        let of = |images: &[u8], row: usize| images[row * 768..(row + 1) * 768].to_vec();
        assert!(of(&some, 0) == of(&one, 9) && of(&some, 1) == of(&one, 4));
        let rows = Rows { column: "x", samples: &samples, vary: cropped(7, 3) };
        assert!(images(1, &column, &encoded(16), rows).unwrap() != one, "each epoch has its own");
        let rows = Rows { vary: None, ..rows };
        let evaluation = images(1, &column, &encoded(16), rows).unwrap();
        assert!(evaluation != one);
        let rows = Rows { vary: varied(Augment::None, 1, 1), ..rows };
        assert!(images(1, &column, &encoded(16), rows).unwrap() == evaluation);
    }

    #[test]
    fn a_damaged_image_is_an_error_that_names_its_sample() {
        let mut files = files();
        for row in [3, 4] {
            let cut = files[row].len() / 2;
            files[row].truncate(cut);
        }
        files[8] = b"no image".to_vec();
        let samples: Vec<u64> = (40..52).collect();
        let rows = Rows { column: "photo", samples: &samples, vary: None };
        let refused = |files: &[Vec<u8>], rows| {
            let column = BinaryArray::from_iter_values(files);
            images(3, &column, &encoded(8), rows).unwrap_err().to_string()
        };
        let error = refused(&files, rows);
        assert!(error.starts_with("column `photo`, sample 43: the image is damaged"), "{error}");
        let error = refused(&files[4..5], Rows { samples: &[44], ..rows });
        assert_eq!(error, "column `photo`, sample 44: the image is damaged: it breaks off");
        let error = refused(&files[8..9], Rows { samples: &[48], ..rows });
        assert_eq!(error, "column `photo`, sample 48: these 8 bytes are neither JPEG nor PNG");
        assert!(refused(&[Vec::new()], Rows { samples: &[1], ..rows }).contains("sample 1: these 0 bytes"));
        // A PNG whose header promises more than can be unpacked.
        let mut bomb = file(&picture(1, 4, 4), ImageFormat::Png);
        bomb[16..24].copy_from_slice(&[0, 0, 0x70, 0, 0, 0, 0x70, 0]);
        assert!(refused(&[bomb], Rows { samples: &[1], ..rows }).contains("column `photo`, sample 1"));
    }

    #[test]
    fn what_lies_behind_a_jpegs_end_is_not_looked_at() {
        let rows = Rows { column: "photo", samples: &[1], vary: None };
        let of = |bytes: &[u8]| {
            images(1, &BinaryArray::from_iter_values([bytes]), &encoded(16), rows).map_err(|e| e.to_string())
        };
        let jpeg = file(&picture(5, 40, 30), ImageFormat::Jpeg);
        let plain = of(&jpeg).unwrap();
        let other = file(&picture(9, 20, 20), ImageFormat::Jpeg);
        // Zeros, a second image that is whole, one that breaks off, the beginning of a scan.
        for behind in [&[0; 9][..], &other, &other[..other.len() / 2], &[0xff, 0xda, 0, 8, 1]] {
            assert!(of(&[&jpeg, behind].concat()).unwrap() == plain, "{} bytes behind it", behind.len());
        }
        // A preview within the head ends long before the image does.
        let mut preview = vec![0xff, 0xe1];
        preview.extend((other.len() as u16 + 2).to_be_bytes());
        let with_preview = [&jpeg[..2], &preview, &other, &jpeg[2..]].concat();
        assert!(of(&with_preview).unwrap() == plain);
        for cut in [1, 2, jpeg.len() / 3] {
            assert!(of(&with_preview[..with_preview.len() - cut]).is_err(), "{cut} bytes are missing");
        }
    }

    fn raw(picture: &RgbImage, planar: bool) -> FixedSizeListArray {
        let bytes = picture.as_raw();
        let values = match planar {
            false => bytes.clone(),
            true => (0..3).flat_map(|c| bytes.iter().skip(c).step_by(3).copied()).collect(),
        };
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        let length = values.len() as i32;
        FixedSizeListArray::new(item, length, Arc::new(UInt8Array::from(values)), None)
    }

    #[test]
    fn raw_pixels_are_treated_as_files_are() {
        let picture = picture(9, 24, 20);
        let settings = |planar, channels, size| {
            let raw = Raw { height: 20, width: 24, channels: 3, planar };
            ImageSettings { source: ImageSource::Raw(raw), channels, size }
        };
        let rows = Rows { column: "x", samples: &[5], vary: cropped(1, 1) };
        let png = BinaryArray::from_iter_values([file(&picture, ImageFormat::Png)]);
        for channels in [3, 1] {
            let of_file = ImageSettings { channels, ..encoded(12) };
            let expected = images(1, &png, &of_file, rows).unwrap();
            for planar in [false, true] {
                let raw = raw(&picture, planar);
                let got = images(1, &raw, &settings(planar, channels, 12), rows).unwrap();
                let difference =
                    got.iter().zip(&expected).map(|(got, expected)| got.abs_diff(*expected)).max();
                // Grey may be rounded.
                assert!(i64::from(difference.unwrap()) <= channels % 3, "{planar} {channels}");
            }
        }
    }

    #[test]
    fn what_has_the_size_already_is_only_mirrored() {
        let picture = picture(3, 20, 20);
        let of_raw = Raw { height: 20, width: 20, channels: 3, planar: true };
        let settings = ImageSettings { source: ImageSource::Raw(of_raw), channels: 3, size: 20 };
        let column = raw(&picture, true);
        let rows = Rows { column: "x", samples: &[5], vary: None };
        let whole = images(1, &column, &settings, rows).unwrap();
        let values = column.values().as_primitive::<UInt8Type>().values();
        assert_eq!(whole, values.to_vec());
        let mirror: Vec<u8> =
            whole.chunks(20).flat_map(|line| line.iter().rev().copied().collect::<Vec<_>>()).collect();
        let mut seen = [false, false];
        for sample in 0..20 {
            let rows = Rows { samples: &[sample], vary: varied(Augment::Flip, 1, 1), ..rows };
            let flipped = images(1, &column, &settings, rows).unwrap();
            let mirrored = flipped == mirror;
            assert!(mirrored || flipped == whole);
            seen[usize::from(mirrored)] = true;
        }
        assert_eq!(seen, [true, true]);
    }
}
