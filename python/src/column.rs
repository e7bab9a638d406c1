//! One column of a batch, taken apart as far as Python needs: the values of numbers, the items of lists, the
//! fields of structs.

use crate::capsule::{self, ArrayCapsules};
use crate::dlpack::{self, Tensor};
use crate::{errors, views};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, GenericByteArray, Int64Array, OffsetSizeTrait, UInt8Array,
    make_array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ByteArrayType, DataType, Int64Type, UInt8Type};
use arrow::error::ArrowError;
use forebay_proto::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::sync::Arc;

/// One column of a batch.
#[pyclass(frozen, module = "forebay")]
pub(crate) struct Column {
    pub name: String,
    pub array: ArrayRef,
    /// As [`crate::batch::RecordBatch`] says.
    pub is_own: bool,
}

impl Column {
    fn part(&self, name: &str, array: ArrayRef) -> Self {
        Self { name: format!("{}.{name}", self.name), array, is_own: false }
    }

    fn told(&self, why: &str) -> String {
        format!("column `{}` of type {}: {why}", self.name, self.array.data_type())
    }

    fn unfit(&self, py: Python<'_>, why: &str) -> PyErr {
        errors::raise(py, Error::invalid(self.told(why)))
    }
}

#[pymethods]
impl Column {
    /// Its name in the schema; of a part of a column also what it is a part of, as in `place.north`.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its Arrow type, as text.
    #[getter]
    fn r#type(&self) -> String {
        self.array.data_type().to_string()
    }

    /// How many rows are null. Nulls within lists or structs do not count.
    #[getter]
    fn null_count(&self) -> usize {
        self.array.null_count()
    }

    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// In which form it becomes part of a batch of tensors: "tensor", "list", "struct", "values" (strings and
    /// binaries), or "other" (none).
    #[getter]
    fn form(&self) -> &'static str {
        match self.array.data_type() {
            t if dlpack::element(t).is_some() => "tensor",
            DataType::List(_) | DataType::LargeList(_) => "list",
            DataType::Struct(_) => "struct",
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => "values",
            _ => "other",
        }
    }

    /// Which rows are not null, bool `[rows]`.
    fn valid(&self) -> Column {
        let all = || BooleanArray::from(vec![true; self.array.len()]);
        let valid =
            self.array.nulls().map_or_else(all, |nulls| BooleanArray::new(nulls.inner().clone(), None));
        self.part("valid", Arc::new(valid))
    }

    /// Of a column of lists, strings or binaries, all items or bytes one after the other, and where each
    /// row's begin: int64 `[rows + 1]`. Bytes share the column's memory. Raises `InvalidError` for other
    /// types.
    fn items(&self, py: Python<'_>) -> PyResult<(Column, Column)> {
        let array = self.array.as_ref();
        let (items, offsets) = match array.data_type() {
            DataType::List(_) => items::<i32>(array),
            DataType::LargeList(_) => items::<i64>(array),
            DataType::Utf8 => bytes(array.as_string::<i32>()),
            DataType::LargeUtf8 => bytes(array.as_string::<i64>()),
            DataType::Binary => bytes(array.as_binary::<i32>()),
            DataType::LargeBinary => bytes(array.as_binary::<i64>()),
            _ => return Err(self.unfit(py, "has no items")),
        };
        let is_own = self.is_own && self.form() == "values";
        Ok((Column { is_own, ..self.part("item", items) }, self.part("offsets", offsets)))
    }

    /// Of a struct column, its fields. Where the struct is null its fields are null too. Raises
    /// `InvalidError` for other types.
    fn fields(&self, py: Python<'_>) -> PyResult<Vec<(String, Column)>> {
        let fields = self.array.as_struct_opt().ok_or_else(|| self.unfit(py, "has no fields"))?;
        let part = |(name, array): (&str, &ArrayRef)| {
            let array = nulled(array, fields.nulls()).map_err(|e| self.unfit(py, &e.to_string()))?;
            Ok((name.to_owned(), self.part(name, array)))
        };
        fields.column_names().into_iter().zip(fields.columns()).map(part).collect()
    }

    /// Of a column of strings or binaries, its values, each a copy; None where a row is null. Raises
    /// `InvalidError` for other types.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let array = &self.array;
        let text = |value: Option<&str>| value.map(|value| PyString::new(py, value));
        let binary = |value: Option<&[u8]>| value.map(|value| PyBytes::new(py, value));
        match array.data_type() {
            DataType::Utf8 => PyList::new(py, array.as_string::<i32>().iter().map(text)),
            DataType::LargeUtf8 => PyList::new(py, array.as_string::<i64>().iter().map(text)),
            DataType::Binary => PyList::new(py, array.as_binary::<i32>().iter().map(binary)),
            DataType::LargeBinary => PyList::new(py, array.as_binary::<i64>().iter().map(binary)),
            _ => Err(self.unfit(py, "has no strings or binaries")),
        }
    }

    /// The same as read-only memoryviews of the column's own memory, texts as their bytes in UTF-8.
    fn views<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (bytes, offsets) = self.items(py)?;
        let values = bytes.array.as_primitive::<UInt8Type>().values().inner().clone();
        let offsets = offsets.array.as_primitive::<Int64Type>().values();
        views::between(py, values, offsets, |row| self.array.is_valid(row))
    }

    /// The memory as a tensor on the CPU; a copy of it unless it belongs to this column alone. Values of null
    /// rows are arbitrary. Raises `BufferError` for a type or a device that has no such form.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        let refused = |why| errors::no_buffer(py, self.told(why));
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(refused("lies in memory of the CPU: move the tensor afterwards"));
        }
        let tensor = Tensor::of(self.array.as_ref(), self.is_own && copy != Some(true)).map_err(refused)?;
        if tensor.is_copy && copy == Some(false) {
            return Err(refused("is handed over as a copy only: leave out copy=False"));
        }
        dlpack::capsule(py, tensor, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ArrayCapsules<'py>> {
        let _ = requested_schema;
        capsule::array(py, self.array.as_ref(), None)
    }
}

/// A field of a struct, null where the struct is.
fn nulled(field: &ArrayRef, of_struct: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    // These have no nulls of their own.
    let has_nulls =
        !matches!(field.data_type(), DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..));
    match of_struct.filter(|nulls| has_nulls && nulls.null_count() > 0) {
        None => Ok(field.clone()),
        Some(_) => {
            let nulls = NullBuffer::union(of_struct, field.nulls());
            Ok(make_array(field.to_data().into_builder().nulls(nulls).build()?))
        }
    }
}

/// The items of lists and their offsets, counted from 0.
fn items<O: OffsetSizeTrait>(array: &dyn Array) -> (ArrayRef, ArrayRef) {
    let list = array.as_list::<O>();
    let (first, last, offsets) = counted_from_0(list.value_offsets());
    (list.values().slice(first, last - first), offsets)
}

/// The bytes of strings or binaries and their offsets, counted from 0.
fn bytes<T: ByteArrayType>(array: &GenericByteArray<T>) -> (ArrayRef, ArrayRef) {
    let (first, last, offsets) = counted_from_0(array.value_offsets());
    let values = array.values().slice_with_length(first, last - first);
    (Arc::new(UInt8Array::new(ScalarBuffer::from(values), None)), offsets)
}

/// The first offset, the last one, and all of them less the first.
fn counted_from_0<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize, ArrayRef) {
    let place = |offset: Option<&O>| offset.map_or(0, |offset| offset.as_usize());
    let (first, last) = (place(offsets.first()), place(offsets.last()));
    let offsets = offsets.iter().map(|offset| (offset.as_usize() - first) as i64);
    (first, last, Arc::new(Int64Array::from_iter_values(offsets)))
}
