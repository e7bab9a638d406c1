//! Tensors over memory that something else allocated, without a copy, and pinned memory.

use std::ops::Deref;

use tch::{Kind, Tensor};

use crate::error::{Error, Result, named};
use crate::ffi::{Owner, at, bridge, like, owned};

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
    let made = bridge::tensor_over(Box::new(Owner(owner)), sizes, at(&like(kind)));
    made.map(owned).map_err(named("tensor_from_owner"))
}

/// A copy of `tensor` in page-locked memory, from which copies to a GPU can run beside other work. libtorch
/// keeps freed pinned memory for the next one, so a pool is not needed. An error without CUDA.
pub fn pinned(tensor: &Tensor) -> Result<Tensor> {
    bridge::pinned(at(tensor)).map(owned).map_err(named("pin memory"))
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
        let error = pinned(&Tensor::from_slice(&[1f32])).unwrap_err().to_string();
        assert!(error.starts_with("pin memory: ") && error.lines().count() == 1, "{error}");
    }
}
