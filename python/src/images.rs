//! Images of a column, decoded and varied as `forebay-train` does it: in threads, without the GIL.

use crate::column::Column;
use crate::errors;
use crate::process::OfProcess;
use crate::schema::Schema;
use arrow::array::{ArrayRef, FixedSizeListArray, UInt8Array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use forebay_images::{Augment, Decoder, ImageSettings, Misfit, Raw, Rows, SIZE_MAX, Vary};
use forebay_proto::{Error, Result};
use pyo3::prelude::*;
use std::sync::Arc;
use std::thread::available_parallelism;

/// What a column of images holds and becomes.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ImageForm {
    settings: ImageSettings,
    augment: Augment,
    crop_share: f64,
}

/// Threads that decode.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ImageDecoder(OfProcess<Decoder>);

#[pymethods]
impl ImageForm {
    /// Of a column, or of a field of a struct column by its path, with the keywords of
    /// `forebay.torch.Image`.
    #[new]
    #[pyo3(signature = (schema, path, *, size, grey, shape, augment, crop_share))]
    #[expect(clippy::too_many_arguments, reason = "keywords, named at the one call")]
    fn new(
        py: Python<'_>,
        schema: &Schema,
        path: &str,
        size: Option<i64>,
        grey: bool,
        shape: Option<Vec<i64>>,
        augment: Option<&str>,
        crop_share: f64,
    ) -> PyResult<Self> {
        let made = || -> Result<Self> {
            let augment = augment.map_or(Ok(Augment::None), str::parse);
            let augment = augment.map_err(|e| e.context("augment"))?;
            if !(crop_share > 0.0 && crop_share <= 1.0) {
                let why = "it must be above 0 and at most 1";
                return Err(Error::invalid(format!("crop_share={crop_share}: {why}")));
            }
            if let Some(size) = size.filter(|size| !(1..=SIZE_MAX).contains(size)) {
                return Err(Error::invalid(format!("size={size}: it must be from 1 to {SIZE_MAX}")));
            }
            let wrong = |sizes: &Vec<i64>| {
                let wanted = "height, width, and 1 or 3 channels, first or last, as in (32, 32, 3)";
                Error::invalid(format!("shape={sizes:?}: pass {wanted}"))
            };
            let raw = shape.map(|sizes| Raw::of_sizes(&sizes).ok_or_else(|| wrong(&sizes))).transpose()?;
            let kind = images_of(&schema.0, path)?;
            let settings = ImageSettings::of(&kind, raw, grey, size).map_err(|e| unfit(path, &kind, e))?;
            Ok(Self { settings, augment, crop_share })
        };
        made().map_err(|e| errors::raise(py, e))
    }

    #[getter]
    fn channels(&self) -> i64 {
        self.settings.channels
    }
}

#[pymethods]
impl ImageDecoder {
    /// With this number of threads; None for this process's share of the processors, one of `processes`.
    #[new]
    #[pyo3(signature = (threads, processes))]
    fn new(py: Python<'_>, threads: Option<usize>, processes: usize) -> PyResult<Self> {
        let share = || available_parallelism().map_or(1, usize::from) / processes.max(1);
        let decoder = Decoder::new(threads.unwrap_or_else(share)).map_err(|e| errors::raise(py, e))?;
        Ok(Self(OfProcess::new(decoder)))
    }

    /// A column's images as `[rows, channels, size, size]` of bytes. `samples` are the rows' numbers in the
    /// dataset; `vary` is the run's seed and the epoch, None for an evaluation.
    #[pyo3(signature = (column, form, samples, vary))]
    fn decode(
        &self,
        py: Python<'_>,
        column: &Column,
        form: &ImageForm,
        samples: Vec<u64>,
        vary: Option<(u64, u64)>,
    ) -> PyResult<Column> {
        let ImageForm { settings, augment, crop_share } = form;
        let (augment, crop_share) = (*augment, *crop_share);
        let vary = vary.map(|(seed, epoch)| Vary { augment, crop_share, seed, epoch });
        let name = column.name.as_str();
        let decoded = || -> Result<ArrayRef> {
            let rows = Rows { column: name, samples: &samples, vary };
            let bytes = self.0.get()?.images(column.array.as_ref(), settings, rows, || ())?;
            nested(bytes, settings)
        };
        let array = py.detach(decoded).map_err(|e| errors::raise(py, e))?;
        Ok(Column { name: name.to_owned(), array, is_own: true })
    }
}

/// The type of the column that holds the images: the field `bytes` of a struct, as Hugging Face's datasets
/// have them, or the column itself.
fn images_of(schema: &SchemaRef, path: &str) -> Result<DataType> {
    let missing = || {
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        Error::invalid(format!("images= names `{path}`, which is none of {}", names.join(", ")))
    };
    let mut fields = schema.fields();
    let mut found = fields.find(path).map(|(_, field)| field);
    if found.is_none() {
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            let (_, field) = fields.find(part).ok_or_else(missing)?;
            match field.data_type() {
                _ if parts.peek().is_none() => found = Some(field),
                DataType::Struct(inner) => fields = inner,
                _ => return Err(missing()),
            }
        }
    }
    let field = found.ok_or_else(missing)?;
    let files = match field.data_type() {
        DataType::Struct(fields) => fields.find("bytes").map(|(_, field)| field),
        _ => None,
    };
    Ok(files.unwrap_or(field).data_type().clone())
}

fn unfit(path: &str, kind: &DataType, misfit: Misfit) -> Error {
    Error::invalid(match misfit {
        Misfit::NoImages => format!(
            "images= names `{path}` of type {kind}, but images are files in Binary or LargeBinary, raw pixels \
             in lists of UInt8 of one length, or a struct with files in its field `bytes`"
        ),
        Misfit::Files => format!("shape= is for raw pixels, but `{path}` holds files"),
        Misfit::NoSquare(length) => {
            format!(
                "`{path}` holds {length} bytes a row, which is no square of pixels: pass shape=, as in (32, 48, 3)"
            )
        }
        Misfit::OtherLength(length, raw) => {
            let wanted = raw.bytes();
            format!("`{path}` holds {length} bytes a row, but images of shape {raw} have {wanted}")
        }
    })
}

/// Bytes as lists of lists of lists, which is how Arrow says `[rows, channels, size, size]`.
fn nested(bytes: Vec<u8>, settings: &ImageSettings) -> Result<ArrayRef> {
    let mut array: ArrayRef = Arc::new(UInt8Array::from(bytes));
    for length in [settings.size, settings.size, settings.channels] {
        let item = Arc::new(Field::new("item", array.data_type().clone(), false));
        let lists = FixedSizeListArray::try_new(item, length as i32, array, None);
        array = Arc::new(lists.map_err(|e| Error::invalid(format!("images as lists: {e}")))?);
    }
    Ok(array)
}
