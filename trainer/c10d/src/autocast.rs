//! Automatic mixed precision: matrix products and convolutions in bf16 or fp16, the rest as libtorch sees
//! fit.
//!
//! `torch.autocast` (torch/amp/autocast_mode.py): tch's own form knows CUDA only, leaves the kind at fp16,
//! and stays switched on when what it runs panics.

use tch::{Device, Kind};

use crate::error::{Error, Result, named};
use crate::ffi::{at, bridge, gpu, like};

/// Runs `f` with operations on `device` autocast to `kind`, [`Kind::BFloat16`] or [`Kind::Half`].
///
/// The setting is this thread's; what was set before is restored when `f` ends, by a panic too. Run the
/// forward pass and the loss in it, and the backward pass outside: it uses the kinds that the forward pass
/// chose. May be nested.
///
/// Fails, without running `f`, for another kind or a device that autocast does not know.
pub fn autocast<R>(device: Device, kind: Kind, f: impl FnOnce() -> R) -> Result<R> {
    if !matches!(kind, Kind::BFloat16 | Kind::Half) {
        return Err(Error::new("autocast", None, format!("to BFloat16 or Half, not to {kind:?}")));
    }
    let _before = bridge::enter_autocast(gpu(device), at(&like(kind))).map_err(named("autocast"))?;
    Ok(f())
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;

    fn product() -> Kind {
        let a = Tensor::ones([8, 8], (Kind::Float, Device::Cpu));
        a.matmul(&a).kind()
    }

    #[test]
    fn products_are_autocast_inside_and_not_outside() {
        let inside = autocast(Device::Cpu, Kind::BFloat16, || {
            let half = autocast(Device::Cpu, Kind::Half, product).unwrap();
            (half, product())
        });
        assert_eq!(inside.unwrap(), (Kind::Half, Kind::BFloat16));
        assert_eq!(product(), Kind::Float);
    }

    #[test]
    fn gradients_keep_their_parameters_kind() {
        let weight = Tensor::ones([8, 8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let loss = autocast(Device::Cpu, Kind::BFloat16, || {
            weight.matmul(&weight).to_kind(Kind::Float).mean(Kind::Float)
        });
        loss.unwrap().backward();
        assert_eq!(weight.grad().kind(), Kind::Float);
        assert!((weight.grad().double_value(&[0, 0]) - 0.25).abs() < 1e-2);
    }

    #[test]
    fn a_panic_inside_restores_the_setting() {
        let panicked = std::panic::catch_unwind(|| {
            autocast(Device::Cpu, Kind::BFloat16, || std::panic::resume_unwind(Box::new("on purpose")))
        });
        assert!(panicked.is_err());
        assert_eq!(product(), Kind::Float);
    }

    #[test]
    fn other_kinds_are_refused() {
        let error = autocast(Device::Cpu, Kind::Float, || ()).unwrap_err();
        assert_eq!(error.to_string(), "autocast: to BFloat16 or Half, not to Float");
    }
}
