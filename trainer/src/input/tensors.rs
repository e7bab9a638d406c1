//! From Arrow columns to tensors: the loader's own memory where the model takes it as it is.

use anyhow::{Context, Result, bail, ensure};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt8Type};
use forebay_c10d::tensor_from_owner;
use forebay_client::loader::Sequences;
use forebay_images::ImageSettings;
use tch::{Kind, Tensor};

use super::columns::{Columns, Takes, Wanted};
use super::fill::{filled, null_error, unfilled};
use super::rows::Input;
use super::schema::{Role, values_of};
use super::sequences::{PackedTokens, packed};
use super::{numbers, tokens};

/// What decodes a column of images.
pub(super) type Images<'a> = &'a dyn Fn(&dyn Array, &ImageSettings, &str) -> Result<Tensor>;

impl Columns {
    /// The tensors of a batch of a dataset that [`Columns::check`] has passed; those of images come from
    /// `images`. The rows of the input are those of the batch.
    pub(super) fn tensors(
        &self,
        batch: &RecordBatch,
        mask: Option<&BooleanBuffer>,
        images: Images<'_>,
    ) -> Result<Input> {
        let mut tensors: Vec<(Role, Vec<Tensor>)> = Vec::new();
        for wanted in &self.wanted {
            let column = values_of(batch, &wanted.name)?;
            for (role, tensor) in tensors_of(wanted, &column, images)? {
                match tensors.iter_mut().find(|(other, _)| *other == role) {
                    Some((_, parts)) => parts.push(tensor),
                    None => tensors.push((role, vec![tensor])),
                }
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

/// The input of a batch whose rows make `sequences`: its rows are these.
pub(super) fn packed_input(columns: &Columns, batch: &RecordBatch, sequences: &Sequences) -> Result<Input> {
    let [Wanted { name, takes: Takes::PackedTokens { vocab, pad, .. }, .. }] = &columns.wanted[..] else {
        bail!("only a column of tokens can be packed")
    };
    let column = values_of(batch, name)?;
    let PackedTokens { tokens, documents, mask } = packed(name, &column, sequences, *vocab, *pad)?;
    let tensors = vec![(Role::Tokens, tokens), (Role::Documents, documents)];
    Ok(Input::new(sequences.count as i64, tensors, mask))
}

fn tensors_of(wanted: &Wanted, column: &ArrayRef, images: Images<'_>) -> Result<Vec<(Role, Tensor)>> {
    let Wanted { role, name, fill, .. } = wanted;
    let whole = || match column.nulls().and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row))) {
        Some(row) => bail!("{}: leave such rows out where the dataset is written", null_error(name, row)),
        None => Ok(()),
    };
    let tensor = match &wanted.takes {
        Takes::Bytes { length } => whole().and_then(|()| bytes(name, column, *length))?,
        Takes::Class { classes } => labels(name, column, *classes, *fill)?,
        Takes::Image(settings) => whole().and_then(|()| images(column, settings, name))?,
        Takes::Number => floats(name, column, *fill)?.f_squeeze_dim(1)?,
        Takes::Numbers => floats(name, column, *fill)?,
        Takes::Tokens { length, vocab } => tokens::whole(name, column, *length, *vocab)?,
        Takes::RaggedTokens { length, vocab, pad } => {
            let (tokens, lengths) = tokens::padded(name, column, *length, *vocab, *pad)?;
            return Ok(vec![(*role, tokens), (Role::Lengths, lengths)]);
        }
        Takes::PackedTokens { .. } => bail!("the rows of `{name}` come without their sequences"),
    };
    Ok(vec![(*role, tensor)])
}

/// `[rows, numbers]` of a column of numbers, or of lists of them.
fn floats(name: &str, column: &dyn Array, fill: Option<f64>) -> Result<Tensor> {
    let (values, nulls) = numbers::floats(name, column)?;
    let rows = column.len() as i64;
    let sizes = [rows, values.len() as i64 / rows.max(1)];
    shared(&filled(name, &values, nulls.as_ref(), (fill, column.len()))?, &sizes, Kind::Float)
}

fn bytes(name: &str, column: &dyn Array, length: i64) -> Result<Tensor> {
    let list = column.as_fixed_size_list_opt().with_context(|| format!("column `{name}` is no list"))?;
    let bytes =
        list.values().as_primitive_opt::<UInt8Type>().with_context(|| format!("`{name}` holds no bytes"))?;
    ensure!(bytes.null_count() == 0, "column `{name}` has nulls inside, which have no place in a tensor");
    shared(bytes.values().inner(), &[list.len() as i64, length], Kind::Uint8)
}

fn labels(name: &str, column: &dyn Array, classes: i64, fill: Option<f64>) -> Result<Tensor> {
    // What does not fit into 64 bits becomes a null; that of the type itself costs nothing.
    let nulls = column.null_count();
    let column = cast(column, &DataType::Int64).with_context(|| format!("the labels in `{name}`"))?;
    ensure!(column.null_count() == nulls, "column `{name}` holds a label beyond the range of Int64");
    let mut labels = column.as_primitive::<Int64Type>().clone();
    match fill {
        Some(class) if nulls > 0 => labels = labels.iter().map(|l| l.unwrap_or(class as i64)).collect(),
        _ => ensure!(nulls == 0, "{}", unfilled(name, labels.iter().position(|l| l.is_none()).unwrap_or(0))),
    }
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
    use arrow::array::{FixedSizeListArray, Float64Array, Int32Array, Int64Array, UInt8Array};
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
        assert!(nulls.starts_with("column `label` has nulls, the first in row 1 of the batch"), "{nulls}");
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
    fn nulls_are_filled_by_their_rules() {
        let columns = Columns::default()
            .with(Role::Features, "a", "--feature-columns", Takes::Numbers)
            .with(Role::Features, "b", "--feature-columns", Takes::Numbers)
            .with(Role::Label, "y", "--label-column", Takes::Class { classes: 3 });
        let rules = ["0", "b=mean", "y=2"].map(|rule| rule.parse().unwrap());
        assert_eq!(columns.means_wanted(&rules), ["b"]);
        let filled = columns.clone().filled(&rules, &[("b".to_owned(), 4.5)].into()).unwrap();
        assert_eq!(filled.describe(), ["a (null = 0)", "b (null = 4.5)", "y (null = 2)"]);
        let a: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None, Some(9)]));
        let b: ArrayRef = Arc::new(Float64Array::from(vec![None, Some(f64::NAN), Some(3.0)]));
        let y: ArrayRef = Arc::new(Int32Array::from(vec![None, Some(0), Some(1)]));
        let batch = RecordBatch::try_from_iter([("a", a), ("b", b), ("y", y)]).unwrap();
        let input = tensors(&filled, &batch, None).unwrap();
        let features = input.get(Role::Features).unwrap().flatten(0, -1);
        assert_eq!(Vec::<f32>::try_from(features).unwrap(), [7.0, 4.5, 0.0, 4.5, 9.0, 3.0]);
        assert_eq!(Vec::<i64>::try_from(input.get(Role::Label).unwrap()).unwrap(), [2, 0, 1]);
        let error = tensors(&columns, &batch, None).unwrap_err().to_string();
        assert!(error.starts_with("column `a` has nulls") && error.ends_with("--fill a=0"), "{error}");
        let refused = |rule: &str| {
            columns.clone().filled(&[rule.parse().unwrap()], &[].into()).unwrap_err().to_string()
        };
        assert_eq!(refused("z=0"), "--fill names the column `z`, which the model does not read");
        assert!(refused("y=0.5").contains("the nulls of `y` cannot be filled"), "{}", refused("y=0.5"));
        assert!(refused("y=mean").contains("the nulls of `y` cannot be filled"));
    }
}
