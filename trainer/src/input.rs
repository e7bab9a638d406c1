//! A batch as tensors, sharing the loader's memory.
//!
//! Two columns matter: images, 784 unsigned bytes each, and labels, 64-bit integers. Their types are checked once
//! against the dataset's schema; labels and nulls are checked in every batch, for a label outside the classes would
//! otherwise end the process deep inside the loss.

use anyhow::{Context, Result, bail, ensure};
use arrow::array::{Array, AsArray};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::datatypes::{DataType, Int64Type, Schema, UInt8Type};
use forebay_c10d::tensor_from_owner;
use tch::{Kind, Tensor};

use crate::model::{CLASSES, PIXELS};
use crate::settings::Settings;

/// The names of the columns to train on.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Images: `FixedSizeList<UInt8>[784]`.
    pub image: String,
    /// Labels: `Int64`.
    pub label: String,
}

/// One rank's rows of a step.
#[derive(Debug)]
pub struct Input {
    /// `[rows, 784]` of bytes; the loader's own memory, not to be written.
    pub images: Tensor,
    /// `[rows]` of 64-bit integers; the loader's own memory, not to be written.
    pub labels: Tensor,
    /// `[rows]` of 1 for samples and 0 for padding; `None` when all are samples.
    pub mask: Option<Tensor>,
}

impl Columns {
    /// The columns that the flags name.
    pub fn new(settings: &Settings) -> Self {
        Self { image: settings.image_column.clone(), label: settings.label_column.clone() }
    }

    /// Both names.
    pub fn names(&self) -> Vec<String> {
        vec![self.image.clone(), self.label.clone()]
    }

    /// Refuses a dataset whose columns are missing or are not what the model takes.
    pub fn check(&self, schema: &Schema, uri: &str) -> Result<()> {
        let kind = |name: &str| match schema.field_with_name(name) {
            Ok(field) => Ok(field.data_type()),
            Err(_) => {
                let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                bail!("{uri} has no column `{name}`: there are {}", names.join(", "))
            }
        };
        let image = kind(&self.image)?;
        let fits = matches!(image, DataType::FixedSizeList(item, size)
            if *item.data_type() == DataType::UInt8 && i64::from(*size) == PIXELS);
        ensure!(
            fits,
            "column `{}` of {uri} is {}, but the convnet takes images as UInt8[{PIXELS}] (28 x 28): \
             choose another --image-column",
            self.image,
            shape(image)
        );
        let label = kind(&self.label)?;
        ensure!(
            *label == DataType::Int64,
            "column `{}` of {uri} is {}, but labels are one Int64 each: choose another --label-column",
            self.label,
            shape(label)
        );
        Ok(())
    }

    /// The tensors of one batch, of a dataset that [`Columns::check`] has passed.
    pub fn tensors(
        &self,
        image: &dyn Array,
        label: &dyn Array,
        mask: Option<&BooleanBuffer>,
    ) -> Result<Input> {
        let rows = image.len();
        for (name, column) in [(&self.image, image), (&self.label, label)] {
            ensure!(column.null_count() == 0, "column `{name}` has nulls, which have no place in a tensor");
        }
        let image = image.as_fixed_size_list_opt().context("the images are no fixed-size lists")?;
        let pixels = image.values().as_primitive_opt::<UInt8Type>().context("the pixels are no bytes")?;
        ensure!(pixels.null_count() == 0, "column `{}` has null pixels", self.image);
        let label = label.as_primitive_opt::<Int64Type>().context("the labels are no 64-bit integers")?;
        // Padding repeats rows, so its labels are as good as any.
        if let Some(bad) = label.values().iter().find(|value| !(0..CLASSES).contains(*value)) {
            bail!(
                "column `{}` holds the label {bad}, but the model's classes are 0 to {}",
                self.label,
                CLASSES - 1
            );
        }
        let images = tensor(pixels.values().inner(), &[rows as i64, PIXELS], Kind::Uint8)?;
        let labels = tensor(label.values().inner(), &[rows as i64], Kind::Int64)?;
        let mask = mask.map(|mask| Tensor::from_slice(&mask.iter().map(f32::from).collect::<Vec<_>>()));
        Ok(Input { images, labels, mask })
    }
}

/// A tensor that keeps the buffer alive.
fn tensor(buffer: &Buffer, sizes: &[i64], kind: Kind) -> Result<Tensor> {
    Ok(tensor_from_owner(buffer.clone(), sizes, kind)?)
}

/// A column's type as a reader of shapes says it: `UInt8[784]`.
fn shape(kind: &DataType) -> String {
    match kind {
        DataType::FixedSizeList(item, size) => format!("{}[{size}]", shape(item.data_type())),
        DataType::List(item) | DataType::LargeList(item) => {
            format!("{}[of varying length]", shape(item.data_type()))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Int64Array, UInt8Array};
    use arrow::datatypes::Field;

    fn columns() -> Columns {
        Columns { image: "image".into(), label: "label".into() }
    }

    fn images(rows: usize) -> FixedSizeListArray {
        let pixels = UInt8Array::from_iter_values((0..rows * PIXELS as usize).map(|i| (i % 251) as u8));
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        FixedSizeListArray::new(item, PIXELS as i32, Arc::new(pixels), None)
    }

    fn check(image: DataType, label: DataType) -> String {
        let schema = Schema::new(vec![Field::new("image", image, true), Field::new("label", label, true)]);
        columns().check(&schema, "s3://b/d").err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn bytes(size: i32) -> DataType {
        DataType::new_fixed_size_list(DataType::UInt8, size, true)
    }

    #[test]
    fn types_are_checked_and_both_shapes_are_named() {
        assert_eq!(check(bytes(784), DataType::Int64), "");
        let error = check(bytes(100), DataType::Int64);
        assert!(
            error.starts_with("column `image` of s3://b/d is UInt8[100], but the convnet takes"),
            "{error}"
        );
        assert!(error.contains("UInt8[784] (28 x 28)"), "{error}");
        assert!(check(DataType::Utf8, DataType::Int64).contains("is Utf8, but"));
        let floats = DataType::new_fixed_size_list(DataType::Float32, 784, true);
        assert!(check(floats, DataType::Int64).contains("is Float32[784], but"));
        assert!(
            check(bytes(784), bytes(2)).contains("`label` of s3://b/d is UInt8[2], but labels are one Int64")
        );

        let schema =
            Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("b", bytes(784), true)]);
        let missing = columns().check(&schema, "s3://b/d").unwrap_err().to_string();
        assert_eq!(missing, "s3://b/d has no column `image`: there are a, b");
    }

    #[test]
    fn tensors_share_the_arrays_memory_also_of_a_slice() {
        let all = images(5);
        let slice = all.slice(2, 3);
        let label = Int64Array::from(vec![9, 9, 0, 5, 9]).slice(2, 3);
        let mask = BooleanBuffer::from(vec![true, true, false]);
        let input = columns().tensors(&slice, &label, Some(&mask)).unwrap();
        let pixels = all.values().as_primitive::<UInt8Type>().values();
        assert_eq!(input.images.data_ptr() as usize, pixels.as_ptr() as usize + 2 * 784);
        assert_eq!(input.images.size(), [3, 784]);
        drop((all, slice));
        assert_eq!(input.images.int64_value(&[0, 1]), (2 * 784 + 1) % 251);
        assert_eq!(Vec::<i64>::try_from(&input.labels).unwrap(), [0, 5, 9]);
        assert_eq!(Vec::<f32>::try_from(input.mask.unwrap()).unwrap(), [1.0, 1.0, 0.0]);
    }

    #[test]
    fn nulls_and_labels_outside_the_classes_are_errors() {
        let error = columns().tensors(&images(2), &Int64Array::from(vec![1, 10]), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "column `label` holds the label 10, but the model's classes are 0 to 9"
        );
        let error = columns().tensors(&images(2), &Int64Array::from(vec![Some(1), None]), None).unwrap_err();
        assert!(error.to_string().starts_with("column `label` has nulls"));
    }
}
