//! Tensors over memory that something else allocated, without a copy; pinned memory, and copies that do not
//! wait.

use std::ops::Deref;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi;
use crate::stream::check;

/// A tensor of shape `sizes` over the bytes of `owner` (an Arrow buffer, a `Vec<u8>`, `Bytes`, a memory map).
///
/// The tensor keeps the owner, and drops it with the last view of its storage, autograd's saved copies
/// included, on whatever thread that happens. Bytes and shape must match exactly, and the bytes must be
/// aligned for `kind`.
///
/// libtorch knows no read-only tensors: **do not run in-place operations** on the result if the owner shares
/// its bytes with others, as an Arrow buffer does; derive a new tensor first (`to_kind`, arithmetic).
pub fn tensor_from_owner<O>(owner: O, sizes: &[i64], kind: Kind) -> Result<Tensor>
where
    O: Deref<Target = [u8]> + Send + 'static,
{
    let refuse = |text: &str| Error::new("tensor_from_owner", None, text);
    let element = kind.elt_size_in_bytes();
    let elements =
        sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    let wanted = elements.and_then(|count| count.checked_mul(element));
    let wanted = wanted.ok_or_else(|| refuse(&format!("{sizes:?} is no shape")))?;
    let owner = Box::new(owner);
    if owner.len() != wanted {
        let text = format!("{sizes:?} of {kind:?} is {wanted} bytes, but the owner holds {}", owner.len());
        return Err(refuse(&text));
    }
    if !owner.as_ptr().addr().is_multiple_of(element.max(1)) {
        return Err(refuse(&format!("the owner's bytes are not aligned for {kind:?}")));
    }
    ffi::tensor_from_owner(owner, sizes, kind).map_err(|failure| refuse(&failure.text))
}

/// A tensor of shape `sizes` in page-locked memory, its values undefined: copies from and to it can run
/// beside other work. libtorch keeps freed pinned memory for the next one, so a pool is not needed. An error
/// without CUDA.
pub fn pinned(sizes: &[i64], kind: Kind) -> Result<Tensor> {
    check("pin memory", ffi::pinned(sizes, kind))
}

/// Copies the values of `from` into `to`, of the same or a broadcast shape, converting device and kind.
///
/// With `non_blocking` a copy between pinned memory and a GPU is only put on the current stream: do not write
/// to `from`, nor read `to` from the CPU, before an event behind it is reached. Other copies are done on
/// return.
pub fn copy_into(to: &mut Tensor, from: &Tensor, non_blocking: bool) -> Result<()> {
    check("copy a tensor", ffi::copy(to, from, non_blocking))
}

/// `from` on `device`; the same tensor if it is there already. `non_blocking` as in [`copy_into`].
pub fn to_device(from: &Tensor, device: Device, non_blocking: bool) -> Result<Tensor> {
    check("copy to a device", ffi::to_device(from, device, non_blocking))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl Deref for Counted {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn shares_the_memory_and_drops_the_owner_with_the_last_view() {
        let drops = Arc::new(AtomicUsize::new(0));
        let owner = Counted((0..12).collect(), drops.clone());
        let address = owner.as_ptr() as usize;
        let tensor = tensor_from_owner(owner, &[3, 4], Kind::Uint8).unwrap();
        assert_eq!(tensor.data_ptr() as usize, address);
        let row = tensor.get(2);
        drop(tensor);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        assert_eq!(Vec::<u8>::try_from(&row).unwrap(), [8, 9, 10, 11]);
        drop(row);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn bytes_that_lie_inside_the_owner_stay_in_place() {
        struct Inline([u8; 4]);
        impl Deref for Inline {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }
        let tensor = tensor_from_owner(Inline([1, 2, 3, 4]), &[4], Kind::Uint8).unwrap();
        assert_eq!(Vec::<u8>::try_from(&tensor).unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn refuses_what_does_not_fit_and_drops_the_owner() {
        let drops = Arc::new(AtomicUsize::new(0));
        for (sizes, kind) in [(vec![13], Kind::Uint8), (vec![12], Kind::Int64), (vec![-1], Kind::Uint8)] {
            assert!(tensor_from_owner(Counted(vec![0; 12], drops.clone()), &sizes, kind).is_err());
        }
        assert_eq!(drops.load(Ordering::SeqCst), 3);
        assert!(tensor_from_owner(vec![], &[0, 28], Kind::Uint8).is_ok());
    }

    #[test]
    fn without_cuda_nothing_is_pinned() {
        let error = pinned(&[4], Kind::Float).unwrap_err().to_string();
        assert!(error.starts_with("pin memory: ") && error.lines().count() == 1, "{error}");
        assert!(pinned(&[-1], Kind::Float).is_err());
    }

    #[test]
    fn copies_convert_and_refuse_what_does_not_fit() {
        let from = Tensor::from_slice(&[1u8, 2, 3]);
        let mut to = Tensor::zeros([2, 3], (Kind::BFloat16, Device::Cpu));
        copy_into(&mut to, &from, true).unwrap();
        assert_eq!(to.sum(Kind::Double).double_value(&[]), 12.0);
        let error = copy_into(&mut to, &Tensor::zeros([5], (Kind::Float, Device::Cpu)), false).unwrap_err();
        assert!(error.to_string().starts_with("copy a tensor: "), "{error}");

        assert_eq!(to_device(&from, Device::Cpu, true).unwrap().data_ptr(), from.data_ptr());
        assert!(to_device(&from, Device::Cuda(0), true).is_err());
        assert!(copy_into(&mut to, &Tensor::new(), false).is_err());
    }
}
