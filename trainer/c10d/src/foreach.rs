//! Arithmetic over lists of tensors, most of it in place, without autograd: what optimizers are made of and
//! `tch` lacks.
//!
//! On a GPU each call is a few kernels for a whole model (libtorch's `_foreach_*`), on a CPU a loop. Every
//! element is rounded as by the tensor method that PyTorch's own optimizers call (`add_` with `alpha`,
//! `lerp_`, `addcmul_`, `addcdiv_`), so they can be rebuilt bit for bit.

use tch::Tensor;

use crate::error::{Result, named};
use crate::ffi::{all_owned, bridge, list};

/// `x *= factor`.
pub fn scale(x: &[Tensor], factor: f64) -> Result<()> {
    bridge::foreach_scale(&list(x), factor).map_err(named("foreach scale"))
}

/// `x += factor * y`.
pub fn add_scaled(x: &[Tensor], y: &[Tensor], factor: f64) -> Result<()> {
    bridge::foreach_add_scaled(&list(x), &list(y), factor).map_err(named("foreach add_scaled"))
}

/// `x += weight * (y - x)`.
pub fn lerp(x: &[Tensor], y: &[Tensor], weight: f64) -> Result<()> {
    bridge::foreach_lerp(&list(x), &list(y), weight).map_err(named("foreach lerp"))
}

/// `x += factor * y * z`.
pub fn add_product(x: &[Tensor], y: &[Tensor], z: &[Tensor], factor: f64) -> Result<()> {
    bridge::foreach_add_product(&list(x), &list(y), &list(z), factor).map_err(named("foreach add_product"))
}

/// `x += factor * y / z`.
pub fn add_quotient(x: &[Tensor], y: &[Tensor], z: &[Tensor], factor: f64) -> Result<()> {
    bridge::foreach_add_quotient(&list(x), &list(y), &list(z), factor).map_err(named("foreach add_quotient"))
}

/// New tensors `x + factor * y`.
pub fn sums(x: &[Tensor], y: &[Tensor], factor: f64) -> Result<Vec<Tensor>> {
    bridge::foreach_sums(&list(x), &list(y), factor).map(all_owned).map_err(named("foreach sums"))
}

/// New tensors `sqrt(square) / correction + eps`: what Adam divides by.
pub fn adam_denominators(squares: &[Tensor], correction: f64, eps: f64) -> Result<Vec<Tensor>> {
    let made = bridge::foreach_adam_denominators(&list(squares), correction, eps);
    made.map(all_owned).map_err(named("foreach adam_denominators"))
}

/// The Euclidean norm of all values together. Waits for the device.
pub fn global_norm(values: &[Tensor]) -> Result<f64> {
    bridge::foreach_norm(&list(values)).map_err(named("global_norm"))
}

/// `x *= factor`, as gradients of a scaled loss need it; `false` if any value was not finite. Waits for the
/// device.
pub fn unscale(x: &[Tensor], factor: f64) -> Result<bool> {
    bridge::foreach_unscale(&list(x), factor).map_err(named("unscale"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(values: &[f32]) -> Vec<Tensor> {
        values.iter().map(|value| Tensor::from_slice(&[*value, 1.0])).collect()
    }

    fn firsts(tensors: &[Tensor]) -> Vec<f64> {
        tensors.iter().map(|tensor| tensor.double_value(&[0])).collect()
    }

    #[test]
    fn each_operation_is_what_its_name_says() {
        let (x, y) = (list(&[1.0, 2.0]), list(&[4.0, 8.0]));
        scale(&x, 2.0).unwrap();
        assert_eq!(firsts(&x), [2.0, 4.0]);
        add_scaled(&x, &y, 0.5).unwrap();
        assert_eq!(firsts(&x), [4.0, 8.0]);
        lerp(&x, &list(&[0.0, 0.0]), 0.25).unwrap();
        assert_eq!(firsts(&x), [3.0, 6.0]);
        add_product(&x, &y, &y, -1.0).unwrap();
        assert_eq!(firsts(&x), [-13.0, -58.0]);
        add_quotient(&x, &y, &list(&[2.0, 2.0]), 1.0).unwrap();
        assert_eq!(firsts(&x), [-11.0, -54.0]);
        assert_eq!(firsts(&sums(&x, &y, -0.5).unwrap()), [-13.0, -58.0]);
        assert_eq!(firsts(&x), [-11.0, -54.0], "they stay");
        assert_eq!(firsts(&adam_denominators(&y, 2.0, 1.0).unwrap())[0], 2.0);
        assert_eq!(global_norm(&list(&[3.0, 2.0])).unwrap(), 15f64.sqrt() as f32 as f64);
        assert_eq!(global_norm(&[]).unwrap(), 0.0);
    }

    #[test]
    fn what_is_not_finite_is_found() {
        let x = list(&[8.0, 2.0]);
        assert!(unscale(&x, 0.5).unwrap());
        assert_eq!(firsts(&x), [4.0, 1.0]);
        assert!(!unscale(&list(&[1.0, f32::NAN]), 0.5).unwrap());
        assert!(!unscale(&list(&[f32::INFINITY, 1.0]), 0.5).unwrap());
        assert!(unscale(&[], 0.5).unwrap());
    }

    #[test]
    fn lists_must_match_and_parameters_may_require_gradients() {
        let parameter = [Tensor::from_slice(&[1f32]).set_requires_grad(true)];
        scale(&parameter, 3.0).unwrap();
        assert_eq!(firsts(&parameter), [3.0]);
        let error = add_scaled(&parameter, &[], 1.0).unwrap_err().to_string();
        assert!(error.contains("lists of 1 and 0 tensors"), "{error}");
        let error = sums(&parameter, &[], 1.0).unwrap_err().to_string();
        assert!(error.contains("lists of 1 and 0 tensors"), "{error}");
        let error = add_scaled(&parameter, &[Tensor::new()], 1.0).unwrap_err().to_string();
        assert!(error.contains("undefined"), "{error}");
    }
}
