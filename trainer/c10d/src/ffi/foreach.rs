//! The boundary to `shim/foreach.cpp`. Safe functions outside; every list is as long as the first, checked
//! here.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use tch::Tensor;

use super::{FfiResult, check, handles};
use crate::error::Failure;

unsafe extern "C" {
    fn fb_foreach(
        operation: c_int,
        into: *const *mut c_void,
        first: *const *mut c_void,
        second: *const *mut c_void,
        count: usize,
        number: f64,
    ) -> *mut c_char;
    fn fb_foreach_sums(
        first: *const *mut c_void,
        second: *const *mut c_void,
        count: usize,
        factor: f64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_foreach_adam_denominators(
        squares: *const *mut c_void,
        count: usize,
        correction: f64,
        eps: f64,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    fn fb_global_norm(values: *const *mut c_void, count: usize, out: *mut f64) -> *mut c_char;
    fn fb_unscale(values: *const *mut c_void, count: usize, factor: f64, finite: *mut c_int) -> *mut c_char;
}

/// Runs one operation; lists that it does not take are passed as `into` again.
pub(crate) fn apply(
    operation: c_int,
    into: &[Tensor],
    first: &[Tensor],
    second: &[Tensor],
    number: f64,
) -> FfiResult<()> {
    if first.len() != into.len() || second.len() != into.len() {
        let text = format!("lists of {}, {} and {} tensors", into.len(), first.len(), second.len());
        return Err(Failure::own(text));
    }
    let (into, first, second) = (handles(into), handles(first), handles(second));
    // SAFETY: the handles are live and the three arrays, equally long, are only read during the call.
    check(unsafe {
        fb_foreach(operation, into.as_ptr(), first.as_ptr(), second.as_ptr(), into.len(), number)
    })
}

/// `first + factor * second` of each, in new tensors.
pub(crate) fn sums(first: &[Tensor], second: &[Tensor], factor: f64) -> FfiResult<Vec<Tensor>> {
    if first.len() != second.len() {
        return Err(Failure::own(format!("lists of {} and {} tensors", first.len(), second.len())));
    }
    let (first, second) = (handles(first), handles(second));
    let mut out = vec![null_mut(); first.len()];
    // SAFETY: the handles are live; `out` has room for one tensor each, and is filled when the call succeeds.
    check(unsafe {
        fb_foreach_sums(first.as_ptr(), second.as_ptr(), first.len(), factor, out.as_mut_ptr())
    })?;
    // SAFETY: fresh at::Tensors on the heap, which tch frees.
    Ok(out.into_iter().map(|tensor| unsafe { Tensor::from_ptr(tensor.cast()) }).collect())
}

/// `sqrt(square) / correction + eps` of each.
pub(crate) fn adam_denominators(squares: &[Tensor], correction: f64, eps: f64) -> FfiResult<Vec<Tensor>> {
    let squares = handles(squares);
    let mut out = vec![null_mut(); squares.len()];
    // SAFETY: the handles are live; `out` has room for one tensor each, and is filled when the call succeeds.
    check(unsafe {
        fb_foreach_adam_denominators(squares.as_ptr(), squares.len(), correction, eps, out.as_mut_ptr())
    })?;
    // SAFETY: fresh at::Tensors on the heap, which tch frees.
    Ok(out.into_iter().map(|tensor| unsafe { Tensor::from_ptr(tensor.cast()) }).collect())
}

/// The norm of all values together.
pub(crate) fn global_norm(values: &[Tensor]) -> FfiResult<f64> {
    let values = handles(values);
    let mut norm = 0.0;
    // SAFETY: the handles are live, the array is only read and `norm` is written during the call.
    check(unsafe { fb_global_norm(values.as_ptr(), values.len(), &mut norm) })?;
    Ok(norm)
}

/// Multiplies all values; whether all of them were finite.
pub(crate) fn unscale(values: &[Tensor], factor: f64) -> FfiResult<bool> {
    let values = handles(values);
    let mut finite = 0;
    // SAFETY: as above.
    check(unsafe { fb_unscale(values.as_ptr(), values.len(), factor, &mut finite) })?;
    Ok(finite != 0)
}
