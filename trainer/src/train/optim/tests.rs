use super::*;
use crate::model::seeded;
use tch::Device;
use tch::nn::{self, OptimizerConfig};

const SHAPES: [&[i64]; 3] = [&[5, 7], &[7], &[3, 2, 3]];

/// Parameters and, beside them, the same in a store of tch's.
fn twins() -> (Vec<NamedTensor>, nn::VarStore) {
    seeded(11, drawn_twins)
}

fn drawn_twins() -> (Vec<NamedTensor>, nn::VarStore) {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let mut parameters = Vec::new();
    for (index, shape) in SHAPES.iter().enumerate() {
        let value = Tensor::randn(*shape, (Kind::Float, Device::Cpu));
        let _ = root.var_copy(&format!("p{index}"), &value);
        parameters.push((format!("p{index}"), value.copy().set_requires_grad(true)));
    }
    (parameters, vs)
}

fn plain(parameters: &[NamedTensor]) -> Vec<Tensor> {
    parameters.iter().map(|(_, tensor)| tensor.shallow_clone()).collect()
}

/// Gives all parameters gradients that depend on the step and on their values.
fn set_gradients(parameters: &[Tensor], step: i64) {
    forebay_c10d::zero_grads(parameters, true).unwrap();
    let loss = |parameter: &Tensor| {
        let noise = Tensor::randn(parameter.size(), (Kind::Float, Device::Cpu));
        (parameter * parameter * noise).sum(Kind::Float)
    };
    let losses: Vec<_> = seeded(100 + step as u64, || parameters.iter().map(loss).collect());
    Tensor::stack(&losses, 0).sum(Kind::Float).backward();
}

/// The largest difference to libtorch's C++ optimizer over many steps.
fn difference<C: OptimizerConfig>(settings: OptimizerSettings, theirs: C) -> f64 {
    let (parameters, vs) = twins();
    let mut theirs = theirs.build(&vs, 0.05).unwrap();
    let mut ours = Optimizer::new(settings, parameters.iter().map(clone).collect()).unwrap();
    let (mine, other) = (plain(&parameters), vs.trainable_variables());
    let mut worst = 0f64;
    for step in 0..20 {
        let lr = 0.05 / (step + 1) as f64;
        set_gradients(&mine, step);
        ours.step(lr).unwrap();
        set_gradients(&other, step);
        theirs.set_lr(lr);
        theirs.step();
        for (a, b) in mine.iter().zip(&other) {
            worst = worst.max((a - b).abs().max().double_value(&[]));
        }
    }
    assert!(mine.iter().zip(&twins().1.trainable_variables()).all(|(a, b)| !a.equal(b)), "nothing moved");
    worst
}

fn clone(named: &NamedTensor) -> NamedTensor {
    (named.0.clone(), named.1.shallow_clone())
}

#[test]
fn sgd_is_libtorchs_bit_for_bit() {
    for (momentum, nesterov, weight_decay) in [
        (0.9, true, 1e-4),
        (0.9, true, 0.0),
        (0.9, false, 1e-4),
        (0.9, false, 0.0),
        (0.0, false, 0.1),
        (0.0, false, 0.0),
    ] {
        let theirs = nn::Sgd { momentum, dampening: 0.0, wd: weight_decay, nesterov };
        let settings = OptimizerSettings::Sgd { momentum, nesterov, weight_decay };
        assert_eq!(difference(settings, theirs), 0.0, "{settings:?}");
    }
}

#[test]
fn adam_is_libtorchs_but_for_rounding() {
    // libtorch's C++ optimizers still average by mul and add where Python's, which this follows, use lerp.
    let betas = (0.9, 0.98);
    for weight_decay in [0.0, 0.1] {
        let theirs = nn::Adam { beta1: 0.9, beta2: 0.98, wd: weight_decay, eps: 1e-8, amsgrad: false };
        let worst = difference(OptimizerSettings::Adam { betas, eps: 1e-8, weight_decay }, theirs);
        assert!(worst < 2e-6, "{worst}");
        let theirs = nn::AdamW { beta1: 0.9, beta2: 0.98, wd: weight_decay, eps: 1e-8, amsgrad: false };
        let settings = OptimizerSettings::AdamW { betas, eps: 1e-8, weight_decay, decay_all: true };
        let worst = difference(settings, theirs);
        assert!(worst < 2e-6, "{worst}");
    }
}

#[test]
fn adamw_spares_biases_and_norms_unless_told_otherwise() {
    let run = |weight_decay, decay_all| {
        let (parameters, _) = twins();
        let settings = OptimizerSettings::AdamW { betas: (0.9, 0.999), eps: 1e-8, weight_decay, decay_all };
        let mut optimizer = Optimizer::new(settings, parameters.iter().map(clone).collect()).unwrap();
        set_gradients(&plain(&parameters), 0);
        optimizer.step(0.1).unwrap();
        plain(&parameters)
    };
    let (none, spared, all) = (run(0.0, true), run(0.5, false), run(0.5, true));
    assert!(spared[1].equal(&none[1]) && !all[1].equal(&none[1]));
    assert!(spared[0].equal(&all[0]) && !all[0].equal(&none[0]));
}

fn each_kind() -> [OptimizerSettings; 3] {
    let (betas, eps, weight_decay) = ((0.9, 0.999), 1e-8, 0.01);
    [
        OptimizerSettings::Sgd { momentum: 0.9, nesterov: true, weight_decay },
        OptimizerSettings::Adam { betas, eps, weight_decay },
        OptimizerSettings::AdamW { betas, eps, weight_decay, decay_all: false },
    ]
}

#[test]
fn a_state_saved_and_loaded_changes_nothing() {
    for settings in each_kind() {
        let run = |save_at: Option<i64>| {
            let (parameters, _) = twins();
            let make = || Optimizer::new(settings, parameters.iter().map(clone).collect()).unwrap();
            let mut optimizer = make();
            for step in 0..6 {
                if save_at == Some(step) {
                    let state = optimizer.state().into_iter();
                    let copied: Vec<_> = state.map(|(name, tensor)| (name, tensor.copy())).collect();
                    optimizer = make();
                    optimizer.load_state(&copied).unwrap();
                }
                set_gradients(&plain(&parameters), step);
                optimizer.step(0.01).unwrap();
            }
            plain(&parameters)
        };
        let straight = run(None);
        for save_at in [0, 1, 4] {
            let resumed = run(Some(save_at));
            assert!(straight.iter().zip(&resumed).all(|(a, b)| a.equal(b)), "{settings:?} at {save_at}");
        }
    }
}

#[test]
fn a_state_of_something_else_is_refused_and_changes_nothing() {
    let (parameters, _) = twins();
    let make = |settings| Optimizer::new(settings, parameters.iter().map(clone).collect()).unwrap();
    let [sgd, adam, _] = each_kind();
    let mut first = make(sgd);
    set_gradients(&plain(&parameters), 0);
    first.step(0.1).unwrap();
    let refused = |optimizer: &mut Optimizer, state: Vec<NamedTensor>| {
        optimizer.load_state(&state).unwrap_err().to_string()
    };

    let error = refused(&mut make(adam), first.state());
    assert!(error.contains("has 0 tensors for `p0` after 1 steps, not 2"), "{error}");
    let mut state = first.state();
    state.retain(|(name, _)| name != "steps.p1");
    let before = first.slots[0].buffers[0].copy();
    assert_eq!(refused(&mut first, state), "the state of sgd has nothing for the parameter `p1`");
    let mut state = first.state();
    state.push(("momentum.p9".into(), Tensor::from(1f32)));
    assert!(refused(&mut first, state).contains("`momentum.p9`"));
    let mut state = first.state();
    for (name, tensor) in &mut state {
        if name == "momentum.p1" {
            *tensor = Tensor::from_slice(&[1f32]);
        }
    }
    let error = refused(&mut first, state);
    assert_eq!(error, "`momentum.p1` is Float [1], but the parameter is Float [7]");
    assert!(first.slots[0].buffers[0].equal(&before) && first.slots[0].steps == 1);
}

#[test]
fn a_parameter_without_a_gradient_stays() {
    for settings in each_kind() {
        let (parameters, _) = twins();
        let mut optimizer = Optimizer::new(settings, parameters.iter().map(clone).collect()).unwrap();
        let before = parameters[1].1.copy();
        for step in 0..3 {
            set_gradients(&plain(&parameters), step);
            if step < 2 {
                forebay_c10d::zero_grads(&plain(&parameters)[1..2], true).unwrap();
            }
            optimizer.step(0.1).unwrap();
            assert_eq!(parameters[1].1.equal(&before), step < 2, "{settings:?} step {step}");
        }
        let steps: Vec<_> = optimizer.slots.iter().map(|slot| slot.steps).collect();
        assert_eq!(steps, [3, 1, 3]);
    }
    let twice = vec![("a".to_owned(), Tensor::new()), ("a".to_owned(), Tensor::new())];
    assert!(Optimizer::new(each_kind()[0], twice).is_err());
}

#[test]
fn clipping_bounds_the_norm_of_all_gradients_together() {
    let (parameters, _) = twins();
    let parameters = plain(&parameters);
    let norm = || {
        let squares: f64 =
            parameters.iter().map(|p| p.grad().square().sum(Kind::Double).double_value(&[])).sum();
        squares.sqrt()
    };
    set_gradients(&parameters, 0);
    let before = norm();
    let kept = parameters[0].grad().copy();
    assert!((clip_by_norm(&parameters, before * 2.0).unwrap() - before).abs() < 1e-4);
    assert!(parameters[0].grad().equal(&kept), "below the bound nothing changes");
    clip_by_norm(&parameters, 0.5).unwrap();
    assert!((norm() - 0.5).abs() < 1e-4);
    let direction = kept * (0.5 / before);
    assert!(parameters[0].grad().allclose(&direction, 1e-4, 1e-6, false));
}
