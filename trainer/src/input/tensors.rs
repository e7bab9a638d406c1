//! From Arrow columns to tensors: the loader's own memory where the model takes it as it is.

use anyhow::{Context, Result, bail, ensure};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt8Type};
use forebay_c10d::tensor_from_owner;
use tch::{Kind, Tensor};

use super::columns::{Columns, Takes, Wanted};
use super::{Input, Role};

impl Columns {
    /// The tensors of a batch of a dataset that [`Columns::check`] has passed.
    pub fn tensors(&self, batch: &RecordBatch, mask: Option<&BooleanBuffer>) -> Result<Input> {
        let tensor = |wanted: &Wanted| -> Result<(Role, Tensor)> {
            let column = batch
                .column_by_name(&wanted.name)
                .with_context(|| format!("the batch has no column `{}`", wanted.name))?;
            Ok((wanted.role, tensor(wanted, column)?))
        };
        let tensors = self.wanted.iter().map(tensor).collect::<Result<_>>()?;
        let mask = mask.map(|mask| Tensor::from_slice(&mask.iter().map(f32::from).collect::<Vec<_>>()));
        Ok(Input::new(batch.num_rows() as i64, tensors, mask))
    }
}

fn tensor(wanted: &Wanted, column: &dyn Array) -> Result<Tensor> {
    let name = &wanted.name;
    ensure!(column.null_count() == 0, "column `{name}` has nulls, which have no place in a tensor");
    match &wanted.takes {
        Takes::Bytes { length, .. } => bytes(name, column, *length),
        Takes::Class { classes } => labels(name, column, *classes),
    }
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

    use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, UInt8Array, UInt64Array};
    use arrow::datatypes::Field;

    const PIXELS: usize = 784;

    fn columns() -> Columns {
        let pixels = Takes::Bytes { length: PIXELS as i64, what: "the test takes", also: "28 x 28" };
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

    #[test]
    fn tensors_share_the_arrays_memory_also_of_a_slice() {
        let all = images(5);
        let labels = Int64Array::from(vec![9, 9, 0, 5, 9]);
        let slice = batch(all.clone(), Arc::new(labels.clone())).slice(2, 3);
        let mask = BooleanBuffer::from(vec![true, true, false]);
        let input = columns().tensors(&slice, Some(&mask)).unwrap();
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
            |labels: ArrayRef| columns().tensors(&batch(images(2), labels), None).unwrap_err().to_string();
        let bytes =
            columns().tensors(&batch(images(2), Arc::new(UInt8Array::from(vec![1, 9]))), None).unwrap();
        assert_eq!(Vec::<i64>::try_from(bytes.get(Role::Label).unwrap()).unwrap(), [1, 9]);
        let wrong = "column `label` holds the label 10, but the model's classes are 0 to 9";
        assert_eq!(refused(Arc::new(Int64Array::from(vec![1, 10]))), wrong);
        assert_eq!(refused(Arc::new(UInt8Array::from(vec![1, 10]))), wrong);
        assert!(refused(Arc::new(Int64Array::from(vec![-1, 0]))).contains("the label -1"));
        assert!(refused(Arc::new(UInt64Array::from(vec![u64::MAX, 0]))).contains("beyond the range"));
        let nulls = refused(Arc::new(Int64Array::from(vec![Some(1), None])));
        assert!(nulls.starts_with("column `label` has nulls"), "{nulls}");
    }
}
