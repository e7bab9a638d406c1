//! From Arrow columns to tensors: the loader's own memory where the model takes it as it is.

use anyhow::{Context, Result, anyhow, bail, ensure};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Int32Type, Int64Type, UInt8Type};
use forebay_c10d::tensor_from_owner;
use tch::{Kind, Tensor};

use super::columns::{Columns, Takes, Wanted};
use super::image::ImageSettings;
use super::rows::Input;
use super::schema::Role;

/// What decodes a column of images.
pub(super) type Images<'a> = &'a dyn Fn(&dyn Array, &ImageSettings, &str) -> Result<Tensor>;

impl Columns {
    /// The tensors of a batch of a dataset that [`Columns::check`] has passed; those of images come from
    /// `images`.
    pub(super) fn tensors(
        &self,
        batch: &RecordBatch,
        mask: Option<&BooleanBuffer>,
        images: Images<'_>,
    ) -> Result<Input> {
        let mut tensors: Vec<(Role, Vec<Tensor>)> = Vec::new();
        for wanted in &self.wanted {
            let column = batch
                .column_by_name(&wanted.name)
                .with_context(|| format!("the batch has no column `{}`", wanted.name))?;
            let tensor = tensor(wanted, column, images)?;
            match tensors.iter_mut().find(|(role, _)| *role == wanted.role) {
                Some((_, parts)) => parts.push(tensor),
                None => tensors.push((wanted.role, vec![tensor])),
            }
        }
        let join = |(role, mut parts): (Role, Vec<Tensor>)| match parts.len() {
            1 => Ok((role, parts.remove(0))),
            _ => Ok((role, Tensor::f_cat(&parts, 1)?)),
        };
        let tensors = tensors.into_iter().map(join).collect::<Result<_>>()?;
        let mask = mask.map(|mask| Tensor::from_slice(&mask.iter().map(f32::from).collect::<Vec<_>>()));
        Ok(Input::new(batch.num_rows() as i64, tensors, mask))
    }
}

fn tensor(wanted: &Wanted, column: &dyn Array, images: Images<'_>) -> Result<Tensor> {
    let name = &wanted.name;
    ensure!(column.null_count() == 0, "column `{name}` has nulls, which have no place in a tensor");
    match &wanted.takes {
        Takes::Bytes { length } => bytes(name, column, *length),
        Takes::Class { classes } => labels(name, column, *classes),
        Takes::Image(settings) => images(column, settings, name),
        Takes::Number => floats(name, column)?.f_squeeze_dim(1).map_err(Into::into),
        Takes::Numbers => floats(name, column),
        Takes::Tokens { length, vocab } => tokens(name, column, *length, *vocab),
    }
}

/// `[rows, numbers]` of a column of numbers, or of lists of them.
fn floats(name: &str, column: &dyn Array) -> Result<Tensor> {
    let values = match column.as_fixed_size_list_opt() {
        Some(list) => list.values().as_ref(),
        None => column,
    };
    ensure!(values.null_count() == 0, "column `{name}` has nulls inside, which have no place in a tensor");
    let values = cast(values, &DataType::Float32).with_context(|| format!("the numbers in `{name}`"))?;
    let values = values.as_primitive::<Float32Type>().values();
    let rows = column.len() as i64;
    shared(values.inner(), &[rows, values.len() as i64 / rows.max(1)], Kind::Float)
}

/// `[rows, length]` of 32-bit or 64-bit integers, shared if they are that already.
fn tokens(name: &str, column: &dyn Array, length: i64, vocab: i64) -> Result<Tensor> {
    let list = column.as_fixed_size_list_opt().with_context(|| format!("column `{name}` is no list"))?;
    let values = list.values();
    ensure!(values.null_count() == 0, "column `{name}` has nulls inside, which are no tokens");
    let sizes = [list.len() as i64, length];
    let refuse = |bad: Option<i64>| match bad {
        Some(bad) => {
            Err(anyhow!("column `{name}` holds the token {bad}, but --vocab {vocab} ends at {}", vocab - 1))
        }
        None => Ok(()),
    };
    if let Some(values) = values.as_primitive_opt::<Int32Type>() {
        let bad = values.values().iter().find(|value| !(0..vocab).contains(&i64::from(**value)));
        refuse(bad.map(|value| i64::from(*value)))?;
        return shared(values.values().inner(), &sizes, Kind::Int);
    }
    let values = cast(values, &DataType::Int64).with_context(|| format!("the tokens in `{name}`"))?;
    ensure!(values.null_count() == 0, "column `{name}` holds a token beyond the range of Int64");
    let values = values.as_primitive::<Int64Type>().values();
    refuse(values.iter().find(|value| !(0..vocab).contains(*value)).copied())?;
    shared(values.inner(), &sizes, Kind::Int64)
}

fn bytes(name: &str, column: &dyn Array, length: i64) -> Result<Tensor> {
    let list = column.as_fixed_size_list_opt().with_context(|| format!("column `{name}` is no list"))?;
    let bytes =
        list.values().as_primitive_opt::<UInt8Type>().with_context(|| format!("`{name}` holds no bytes"))?;
    ensure!(bytes.null_count() == 0, "column `{name}` has nulls inside, which have no place in a tensor");
    shared(bytes.values().inner(), &[list.len() as i64, length], Kind::Uint8)
}

fn labels(name: &str, column: &dyn Array, classes: i64) -> Result<Tensor> {
    // What does not fit into 64 bits becomes a null; that of the type itself costs nothing.
    let column = cast(column, &DataType::Int64).with_context(|| format!("the labels in `{name}`"))?;
    ensure!(column.null_count() == 0, "column `{name}` holds a label beyond the range of Int64");
    let labels = column.as_primitive::<Int64Type>();
    // Padding repeats rows, so its labels are as good as any.
    if let Some(bad) = labels.values().iter().find(|value| !(0..classes).contains(*value)) {
        bail!("column `{name}` holds the label {bad}, but the model's classes are 0 to {}", classes - 1);
    }
    shared(labels.values().inner(), &[labels.len() as i64], Kind::Int64)
}

/// A tensor that keeps the buffer alive.
fn shared(buffer: &Buffer, sizes: &[i64], kind: Kind) -> Result<Tensor> {
    Ok(tensor_from_owner(buffer.clone(), sizes, kind)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::UInt64Array;
    use arrow::array::{
        ArrayRef, FixedSizeListArray, Float64Array, Int32Array, Int64Array, UInt8Array, UInt16Array,
    };
    use arrow::datatypes::Field;

    const PIXELS: usize = 784;

    fn columns() -> Columns {
        let pixels = Takes::Bytes { length: PIXELS as i64 };
        Columns::default().with(Role::Image, "image", "--image-column", pixels).with(
            Role::Label,
            "label",
            "--label-column",
            Takes::Class { classes: 10 },
        )
    }

    fn images(rows: usize) -> FixedSizeListArray {
        let pixels = UInt8Array::from_iter_values((0..rows * PIXELS).map(|i| (i % 251) as u8));
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        FixedSizeListArray::new(item, PIXELS as i32, Arc::new(pixels), None)
    }

    fn batch(images: FixedSizeListArray, labels: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("image", Arc::new(images) as ArrayRef), ("label", labels)]).unwrap()
    }

    fn tensors(columns: &Columns, batch: &RecordBatch, mask: Option<&BooleanBuffer>) -> Result<Input> {
        columns.tensors(batch, mask, &|_, _, _| bail!("no images here"))
    }

    #[test]
    fn tensors_share_the_arrays_memory_also_of_a_slice() {
        let all = images(5);
        let labels = Int64Array::from(vec![9, 9, 0, 5, 9]);
        let slice = batch(all.clone(), Arc::new(labels.clone())).slice(2, 3);
        let mask = BooleanBuffer::from(vec![true, true, false]);
        let input = tensors(&columns(), &slice, Some(&mask)).unwrap();
        let pixels = all.values().as_primitive::<UInt8Type>().values();
        let image = input.get(Role::Image).unwrap();
        assert_eq!(image.data_ptr() as usize, pixels.as_ptr() as usize + 2 * 784);
        assert_eq!(image.size(), [3, 784]);
        let label = input.get(Role::Label).unwrap();
        assert_eq!(label.data_ptr() as usize, labels.values().as_ptr() as usize + 16);
        assert_eq!(Vec::<i64>::try_from(label).unwrap(), [0, 5, 9]);
        assert_eq!(Vec::<f32>::try_from(input.mask().unwrap()).unwrap(), [1.0, 1.0, 0.0]);
        assert_eq!(input.rows(), 3);
    }

    #[test]
    fn labels_of_any_integer_type_are_taken_and_checked() {
        let refused =
            |labels: ArrayRef| tensors(&columns(), &batch(images(2), labels), None).unwrap_err().to_string();
        let bytes =
            tensors(&columns(), &batch(images(2), Arc::new(UInt8Array::from(vec![1, 9]))), None).unwrap();
        assert_eq!(Vec::<i64>::try_from(bytes.get(Role::Label).unwrap()).unwrap(), [1, 9]);
        let wrong = "column `label` holds the label 10, but the model's classes are 0 to 9";
        assert_eq!(refused(Arc::new(Int64Array::from(vec![1, 10]))), wrong);
        assert_eq!(refused(Arc::new(UInt8Array::from(vec![1, 10]))), wrong);
        assert!(refused(Arc::new(Int64Array::from(vec![-1, 0]))).contains("the label -1"));
        assert!(refused(Arc::new(UInt64Array::from(vec![u64::MAX, 0]))).contains("beyond the range"));
        let nulls = refused(Arc::new(Int64Array::from(vec![Some(1), None])));
        assert!(nulls.starts_with("column `label` has nulls"), "{nulls}");
    }

    #[test]
    fn numbers_of_several_columns_are_one_matrix() {
        let columns = Columns::default()
            .with(Role::Features, "a", "--feature-columns", Takes::Numbers)
            .with(Role::Features, "b", "--feature-columns", Takes::Numbers)
            .with(Role::Label, "y", "--label-column", Takes::Number);
        let item = Arc::new(Field::new("item", DataType::Float64, true));
        let pairs = Float64Array::from(vec![1.5, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let b = FixedSizeListArray::new(item, 2, Arc::new(pairs), None);
        let a: ArrayRef = Arc::new(Int32Array::from(vec![7, 8, 9]));
        let y: ArrayRef = Arc::new(Float64Array::from(vec![0.5, -1.0, 2.0]));
        let batch = RecordBatch::try_from_iter([("a", a), ("b", Arc::new(b) as ArrayRef), ("y", y)]).unwrap();
        let input = tensors(&columns, &batch.slice(1, 2), None).unwrap();
        let features = input.get(Role::Features).unwrap();
        assert_eq!(features.size(), [2, 3]);
        assert_eq!(Vec::<f32>::try_from(features.flatten(0, -1)).unwrap(), [8.0, 3.0, 4.0, 9.0, 5.0, 6.0]);
        assert_eq!(Vec::<f32>::try_from(input.get(Role::Label).unwrap()).unwrap(), [-1.0, 2.0]);
    }

    #[test]
    fn tokens_of_any_integer_type_are_taken_and_checked() {
        let columns = Columns::default().with(
            Role::Tokens,
            "t",
            "--token-column",
            Takes::Tokens { length: 3, vocab: 100 },
        );
        let batch = |values: ArrayRef| {
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            let list = FixedSizeListArray::new(item, 3, values, None);
            RecordBatch::try_from_iter([("t", Arc::new(list) as ArrayRef)]).unwrap()
        };
        let arrays: [ArrayRef; 3] = [
            Arc::new(UInt16Array::from(vec![1, 2, 3, 4, 5, 99])),
            Arc::new(Int32Array::from(vec![1, 2, 3, 4, 5, 99])),
            Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5, 99])),
        ];
        for values in arrays {
            let input = tensors(&columns, &batch(values), None).unwrap();
            let tokens = input.get(Role::Tokens).unwrap().to_kind(Kind::Int64);
            assert_eq!(tokens.size(), [2, 3]);
            assert_eq!(Vec::<i64>::try_from(tokens.flatten(0, -1)).unwrap(), [1, 2, 3, 4, 5, 99]);
        }
        let wrong = "column `t` holds the token 100, but --vocab 100 ends at 99";
        for values in [
            Arc::new(UInt16Array::from(vec![1, 2, 100])) as ArrayRef,
            Arc::new(Int32Array::from(vec![1, 2, 100])),
        ] {
            assert_eq!(tensors(&columns, &batch(values), None).unwrap_err().to_string(), wrong);
        }
    }
}
