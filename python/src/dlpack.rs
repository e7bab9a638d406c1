//! DLPack (<https://dmlc.github.io/dlpack/latest/>): a column's memory as a tensor of torch, numpy and others,
//! without a copy. The tensor holds the memory; freeing it needs no GIL, so tensors may die on any thread.
#![expect(unsafe_code, reason = "DLPack's structures and the capsules that carry them are C's")]

use arrow::array::{Array, AsArray, downcast_primitive_array};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyObject};
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// Device type and number of the CPU.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// What an element is, as DLPack numbers it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

const SIGNED: u8 = 0;
const UNSIGNED: u8 = 1;
const FLOAT: u8 = 2;
const BOOL: u8 = 6;

/// Dimensions of a tensor, at most: those of a column of lists of lists, seven deep.
const DIMENSIONS_MAX: usize = 8;

/// Columns that lie side by side are handed over together from this many on. Who pickles a tensor pickles all
/// memory that it was cut from, so those of ordinary tables stay alone; of wide ones the time counts that a
/// tensor takes to be made.
const BLOCK_COLUMNS: usize = 8;

/// A dense tensor in memory of the CPU.
pub(crate) struct Tensor {
    /// Begins with the tensor's values, and keeps the allocation that they lie in.
    buffer: Buffer,
    element: Element,
    dimensions: usize,
    shape: [i64; DIMENSIONS_MAX],
    /// Whether its memory is a copy of the column's.
    pub is_copy: bool,
}

/// The elements of a column that is a tensor: numbers, times, booleans, binaries of one length, and lists of
/// one length of these.
pub(crate) fn element(data_type: &DataType) -> Option<Element> {
    let of = |code, bits| Some(Element { code, bits, lanes: 1 });
    match data_type {
        DataType::FixedSizeList(item, _) => element(item.data_type()),
        DataType::FixedSizeBinary(_) => of(UNSIGNED, 8),
        DataType::Boolean => of(BOOL, 8),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => of(FLOAT, bits(data_type)?),
        t if t.is_unsigned_integer() => of(UNSIGNED, bits(t)?),
        t if t.is_signed_integer() || t.is_temporal() && !matches!(t, DataType::Interval(_)) => {
            of(SIGNED, bits(t)?)
        }
        _ => None,
    }
}

fn bits(data_type: &DataType) -> Option<u8> {
    u8::try_from(data_type.primitive_width()? * 8).ok()
}

impl Tensor {
    /// Of a column; its memory is shared if `is_own`, else copied. The error says why it cannot be one.
    pub fn of(array: &dyn Array, is_own: bool) -> Result<Self, &'static str> {
        let element = element(array.data_type()).ok_or("cannot be a tensor")?;
        let (mut dimensions, mut shape) = (0, [0; DIMENSIONS_MAX]);
        let mut add = |length: i64| -> Result<(), &'static str> {
            *shape.get_mut(dimensions).ok_or("has more dimensions than a tensor may have")? = length;
            dimensions += 1;
            Ok(())
        };
        add(array.len() as i64)?;
        let mut values = array;
        while let Some(list) = values.as_fixed_size_list_opt() {
            add(list.value_length().into())?;
            let (items, length) = (list.values(), list.value_length() as usize);
            // What stands in a null row is arbitrary.
            let is_whole =
                |row: usize| list.is_null(row) || items.slice(row * length, length).null_count() == 0;
            if items.null_count() > 0 && !(0..list.len()).all(is_whole) {
                return Err("has nulls within its lists, for which a tensor has no place");
            }
            values = items.as_ref();
        }
        let own = match values.as_fixed_size_binary_opt() {
            Some(binary) => {
                add(binary.value_length().into())?;
                Some(binary.values().slice_with_length(0, binary.value_data().len()))
            }
            None => primitive(values),
        };
        let (buffer, is_copy) = match (own, values.as_boolean_opt()) {
            (Some(own), _) if is_own => (own, false),
            (Some(own), _) => (Buffer::from(own.as_slice()), true),
            // One bit each in Arrow, one byte each in tensors.
            (None, Some(bits)) => (Buffer::from_iter(bits.values().iter().map(u8::from)), true),
            (None, None) => return Err("cannot be a tensor"),
        };
        Ok(Self { buffer, element, dimensions, shape, is_copy })
    }

    /// Whether the next column's values lie right behind this one's, in the same allocation, and are alike.
    fn is_beside(&self, next: &Self) -> bool {
        let bytes = self.shape[0] as usize * usize::from(self.element.bits / 8);
        self.dimensions == 1
            && (self.element, self.dimensions, self.shape) == (next.element, next.dimensions, next.shape)
            && self.shape[0] > 0
            && self.buffer.data_ptr() == next.buffer.data_ptr()
            && self.buffer.as_ptr().wrapping_add(bytes) == next.buffer.as_ptr()
    }

    fn strides(&self) -> [i64; DIMENSIONS_MAX] {
        let mut strides = [1; DIMENSIONS_MAX];
        for at in (1..self.dimensions).rev() {
            strides[at - 1] = strides[at] * self.shape[at];
        }
        strides
    }
}

/// Tensors of columns, and of how many columns each is: of one, or of several that lie side by side. `None`
/// stays as it is.
pub(crate) fn blocks(columns: Vec<Option<Tensor>>) -> Vec<(Option<Tensor>, usize)> {
    let is_beside = |a: &Option<Tensor>, b: &Option<Tensor>| {
        a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a.is_beside(b))
    };
    let sizes: Vec<usize> = columns.chunk_by(is_beside).map(<[_]>::len).collect();
    let mut columns = columns.into_iter();
    let mut blocks = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut block = columns.by_ref().take(size);
        if size < BLOCK_COLUMNS {
            blocks.extend(block.map(|tensor| (tensor, 1)));
            continue;
        }
        // The first one's buffer keeps the whole allocation, and with it the values of all of them.
        let mut first = block.next().flatten();
        block.for_each(drop);
        first.iter_mut().for_each(|tensor| tensor.shape[0] *= size as i64);
        blocks.push((first, size));
    }
    blocks
}

/// The memory of a column of numbers or times.
fn primitive(array: &dyn Array) -> Option<Buffer> {
    downcast_primitive_array!(array => Some(array.values().inner().clone()), _ => None)
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    element: Element,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, of before version 1.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;

/// What a capsule holds, in one of DLPack's two forms.
trait Form: Sized {
    const NAME: &'static CStr;

    fn new(tensor: DlTensor, is_copy: bool) -> Self;

    fn tensor(&mut self) -> &mut DlTensor;
}

impl Form for Managed {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: DlTensor, _is_copy: bool) -> Self {
        Self { tensor, context: null_mut(), deleter: Some(delete) }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

impl Form for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: DlTensor, is_copy: bool) -> Self {
        let flags = if is_copy { IS_COPIED } else { 0 };
        Self { major: 1, minor: 0, context: null_mut(), deleter: Some(delete), flags, tensor }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

/// One allocation for a tensor: batches have many.
#[repr(C)]
struct Owner<F> {
    /// The first, so that its address is the owner's.
    form: F,
    shape: [i64; DIMENSIONS_MAX],
    strides: [i64; DIMENSIONS_MAX],
    _buffer: Buffer,
}

/// A tensor's capsule; `is_versioned` if the consumer knows version 1 of DLPack.
pub(crate) fn capsule(py: Python<'_>, tensor: Tensor, is_versioned: bool) -> PyResult<Bound<'_, PyAny>> {
    if is_versioned { hand_over::<Versioned>(py, tensor) } else { hand_over::<Managed>(py, tensor) }
}

fn hand_over<F: Form>(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let strides = tensor.strides();
    let Tensor { buffer, element, dimensions, shape, is_copy } = tensor;
    let described = DlTensor {
        data: buffer.as_ptr().cast_mut().cast(),
        device_type: CPU.0,
        device_id: CPU.1,
        dimensions: dimensions as i32,
        element,
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let owner = Box::new(Owner { form: F::new(described, is_copy), shape, strides, _buffer: buffer });
    let owner = Box::into_raw(owner);
    // SAFETY: nobody else knows the owner yet. It stays where it is until `delete` frees it. The name is
    // static, and the destructor is that of this name.
    let capsule = unsafe {
        let (shape, strides) = ((&raw mut (*owner).shape).cast(), (&raw mut (*owner).strides).cast());
        let tensor = (*owner).form.tensor();
        (tensor.shape, tensor.strides) = (shape, strides);
        PyCapsule_New(owner.cast(), F::NAME.as_ptr(), Some(drop_capsule::<F>))
    };
    // SAFETY: a new reference, or null with an exception set; only then the tensor is leaked.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

unsafe extern "C" fn delete<F: Form>(form: *mut F) {
    // SAFETY: `hand_over` made it, as the first part of its owner; who took the tensor calls this once.
    drop(unsafe { Box::from_raw(form.cast::<Owner<F>>()) });
}

unsafe extern "C" fn drop_capsule<F: Form>(capsule: *mut PyObject) {
    // SAFETY: who takes a tensor renames its capsule, so one of this name still holds it.
    unsafe {
        if PyCapsule_IsValid(capsule, F::NAME.as_ptr()) == 1 {
            delete::<F>(PyCapsule_GetPointer(capsule, F::NAME.as_ptr()).cast());
        }
    }
}
