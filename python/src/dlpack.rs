//! DLPack (<https://dmlc.github.io/dlpack/latest/>): a column's memory as a tensor of torch, numpy and others,
//! without a copy. The tensor holds the memory; freeing it needs no GIL, so tensors may die on any thread.
#![expect(unsafe_code, reason = "DLPack's structures and the capsules that carry them are C's")]

use arrow::array::{Array, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyObject};
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};

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

/// A dense tensor in memory of the CPU.
pub(crate) struct Tensor {
    buffer: Buffer,
    element: Element,
    shape: Vec<i64>,
    strides: Vec<i64>,
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
        let mut shape = vec![array.len() as i64];
        let mut values = array.slice(0, array.len());
        while let Some(list) = values.as_fixed_size_list_opt() {
            shape.push(list.value_length().into());
            let (items, length) = (list.values(), list.value_length() as usize);
            // What stands in a null row is arbitrary.
            let is_whole =
                |row: usize| list.is_null(row) || items.slice(row * length, length).null_count() == 0;
            if items.null_count() > 0 && !(0..list.len()).all(is_whole) {
                return Err("has nulls within its lists, for which a tensor has no place");
            }
            values = items.clone();
        }
        let buffer = match values.as_boolean_opt() {
            // One bit each in Arrow, one byte each in tensors.
            Some(bits) => Buffer::from_iter(bits.values().iter().map(u8::from)),
            None => {
                let data = values.to_data();
                let width = match values.data_type() {
                    DataType::FixedSizeBinary(width) => {
                        shape.push((*width).into());
                        *width as usize
                    }
                    _ => usize::from(element.bits / 8),
                };
                let own = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
                if is_own { own } else { Buffer::from(own.as_slice()) }
            }
        };
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        Ok(Self { buffer, element, shape, strides })
    }
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
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// A tensor's capsule; `is_versioned` if the consumer knows version 1 of DLPack.
pub(crate) fn capsule(py: Python<'_>, tensor: Tensor, is_versioned: bool) -> PyResult<Bound<'_, PyAny>> {
    let mut owner = Box::new(tensor);
    let tensor = DlTensor {
        data: owner.buffer.as_ptr().cast_mut().cast(),
        device_type: CPU.0,
        device_id: CPU.1,
        dimensions: owner.shape.len() as i32,
        element: owner.element,
        shape: owner.shape.as_mut_ptr(),
        strides: owner.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(owner).cast();
    let capsule = if is_versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let managed = Versioned { major: 1, minor: 0, context, deleter, flags: 0, tensor };
        let managed = Box::into_raw(Box::new(managed));
        // SAFETY: the name is static, and the destructor is that of this name.
        unsafe { PyCapsule_New(managed.cast(), VERSIONED_NAME.as_ptr(), Some(drop_versioned)) }
    } else {
        let managed = Managed { tensor, context, deleter: Some(delete_managed) };
        let managed = Box::into_raw(Box::new(managed));
        // SAFETY: as above.
        unsafe { PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(drop_managed)) }
    };
    // SAFETY: a new reference, or null with an exception set; only then the tensor is leaked.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

unsafe extern "C" fn delete_managed(managed: *mut Managed) {
    // SAFETY: both were made by `capsule`; who took the tensor calls this once.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Tensor>()));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as above.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Tensor>()));
    }
}

unsafe extern "C" fn drop_managed(capsule: *mut PyObject) {
    // SAFETY: who takes a tensor renames its capsule, so one of this name still holds it.
    unsafe {
        if PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete_managed(PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut PyObject) {
    // SAFETY: as above.
    unsafe {
        if PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}
