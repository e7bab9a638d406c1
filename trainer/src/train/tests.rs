use super::*;
use std::time::Duration;

use forebay_c10d::Store;
use tch::Device;

use crate::input::Role;
use crate::model::convnet::ConvNet;
use crate::optim::schedule::Shape;

fn group() -> ProcessGroup {
    let timeout = Duration::from_secs(10);
    ProcessGroup::gloo(Store::serve(1, timeout).unwrap(), 0, 1, timeout).unwrap()
}

fn input(rows: i64) -> Input {
    let draw = |most, sizes: &[i64], kind| Tensor::randint(most, sizes, (kind, Device::Cpu));
    let (images, labels) =
        model::seeded(5, || (draw(256, &[rows, 784], Kind::Uint8), draw(10, &[rows], Kind::Int64)));
    Input::new(rows, vec![(Role::Image, images), (Role::Label, labels)], None)
}

fn settings(lr: f64, steps: u64) -> TrainerSettings {
    let optimizer = OptimizerSettings::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 };
    let schedule = Schedule { lr, shape: Shape::OneCycle, warmup_steps: None, steps };
    TrainerSettings { optimizer, schedule, clip_norm: None, accumulate: 1, precision: Precision::Fp32 }
}

fn trainer(group: &ProcessGroup, settings: TrainerSettings) -> Trainer {
    Trainer::new(group, Box::new(ConvNet::new(3, Device::Cpu)), settings).unwrap()
}

#[test]
fn padding_changes_neither_loss_nor_parameters() {
    let group = group();
    let whole = input(8);
    let tensors = [Role::Image, Role::Label].map(|role| (role, whole.get(role).unwrap().shallow_clone()));
    let mask = Tensor::from_slice(&[1f32, 1., 1., 1., 1., 0., 0., 0.]);
    let masked = Input::new(8, tensors.into(), Some(mask));
    let at = At { epoch: 0, step: 0, samples: 5 };
    let mut results = [(masked, 0.0, Tensor::new()), (whole.narrow(0, 5), 0.0, Tensor::new())];
    for (input, loss, parameter) in &mut results {
        let mut trainer = trainer(&group, settings(0.1, 10));
        *loss = trainer.step(input, at).unwrap();
        *parameter = trainer.parameters[0].detach().copy();
    }
    let [padded, real] = results;
    assert!((padded.1 - real.1).abs() < 1e-4, "{} {}", padded.1, real.1);
    assert!(padded.2.allclose(&real.2, 1e-5, 1e-6, false));
}

#[test]
fn training_lowers_the_loss_and_is_reproducible() {
    let group = group();
    let input = input(16);
    let mut hashes = Vec::new();
    for _ in 0..2 {
        let mut trainer = trainer(&group, settings(0.05, 20));
        let at = |step| At { epoch: 0, step, samples: 16 };
        let losses: Vec<_> = (0..20).map(|step| trainer.step(&input, at(step)).unwrap()).collect();
        assert!(losses[19] < losses[0] * 0.8, "{losses:?}");
        hashes.push(model::parameter_hash(trainer.model().vars()));
    }
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], model::parameter_hash(ConvNet::new(3, Device::Cpu).vars()));
}

#[test]
fn a_loss_that_is_not_finite_names_epoch_and_step() {
    let mut trainer = trainer(&group(), settings(1e30, 10));
    let input = input(8);
    let step = |step| trainer.step(&input, At { epoch: 2, step, samples: 8 });
    let error = (0..10).map(step).find_map(Result::err).unwrap().to_string();
    assert!(error.starts_with("epoch 3 step ") && error.contains("--lr (now 1e30)"), "{error}");
    assert!(error.contains("NaN") || error.contains("infinite"), "{error}");
}

#[test]
fn passes_of_any_number_give_the_step_of_all_rows() {
    let group = group();
    let whole = input(13);
    let mask = Tensor::from_slice(&[1f32, 1., 0., 1., 1., 1., 1., 1., 1., 1., 1., 0., 0.]);
    let tensors = [Role::Image, Role::Label].map(|role| (role, whole.get(role).unwrap().shallow_clone()));
    let input = Input::new(13, tensors.into(), Some(mask));
    let run = |accumulate| {
        let mut trainer = trainer(&group, TrainerSettings { accumulate, ..settings(0.05, 4) });
        let losses = trainer.step(&input, At { epoch: 0, step: 0, samples: 10 }).unwrap();
        (losses, trainer.parameters.iter().map(|p| p.detach().copy()).collect::<Vec<_>>())
    };
    let (losses, parameters) = run(1);
    for accumulate in [2, 5, 13, 40] {
        let (others, accumulated) = run(accumulate);
        assert!((losses - others).abs() < 1e-4, "{losses} {others}");
        for (a, b) in parameters.iter().zip(&accumulated) {
            assert!((a - b).abs().max().double_value(&[]) < 1e-6, "{accumulate} passes");
        }
    }
}

/// Runs `rank` on so many ranks, each a thread with a group of its own.
fn on_ranks<R: Send + 'static>(
    world: usize,
    rank: impl Fn(ProcessGroup) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let timeout = Duration::from_secs(60);
    let store = Store::serve(world, timeout).unwrap();
    let (port, rank) = (store.port().unwrap(), std::sync::Arc::new(rank));
    let one = |number: usize| {
        let rank = rank.clone();
        std::thread::spawn(move || {
            let store = Store::tcp("127.0.0.1", port, world, false, timeout).unwrap();
            rank(ProcessGroup::gloo(store, number, world, timeout).unwrap())
        })
    };
    let threads: Vec<_> = (0..world).map(one).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn gradients(trainer: &Trainer) -> Vec<Tensor> {
    trainer.parameters.iter().map(|parameter| parameter.grad().copy()).collect()
}

#[test]
fn passes_on_two_ranks_add_up_to_the_gradient_of_the_big_batch() {
    const ROWS: i64 = 24;
    let of = |world: usize, accumulate: u64| {
        on_ranks(world, move |group| {
            let rows = ROWS / world as i64;
            let own = input(ROWS).narrow(group.rank() as i64 * rows, rows);
            let mut trainer = trainer(&group, TrainerSettings { accumulate, ..settings(0.05, 4) });
            trainer.step(&own, At { epoch: 0, step: 0, samples: ROWS as u64 }).unwrap();
            gradients(&trainer)
        })
    };
    let big = of(1, 1).remove(0);
    let largest = big.iter().map(|gradient| gradient.abs().max().double_value(&[])).fold(0.0, f64::max);
    assert!(largest > 1e-3, "{largest}");
    // Twelve rows on each rank: in passes of four rows, of one, and of two and three.
    for accumulate in [3, 12, 5] {
        for ours in of(2, accumulate) {
            let difference = |(a, b): (&Tensor, &Tensor)| (a - b).abs().max().double_value(&[]);
            let worst = ours.iter().zip(&big).map(difference).fold(0.0, f64::max) / largest;
            assert!(worst < 1e-6, "{accumulate} passes: {worst:e}");
        }
    }
}

#[test]
fn a_step_whose_gradients_overflow_on_one_rank_is_skipped_on_all() {
    /// What a rank was after a step: scale, steps skipped, parameters, the optimizer's state.
    type Seen = (f64, i64, u64, Vec<f64>);
    const FIRST: f64 = (1u64 << 30) as f64;
    let seen = on_ranks(2, |group| -> Vec<Seen> {
        let precision = Precision::Fp16;
        let mut trainer = trainer(&group, TrainerSettings { precision, ..settings(0.05, 100) });
        let state: Vec<_> =
            trainer.state().iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect();
        let scaled = |(name, tensor): (String, Tensor)| match name.as_str() {
            "scaler.scale" => (name, Tensor::from_slice(&[FIRST])),
            _ => (name, tensor),
        };
        let state: Vec<_> = state.into_iter().map(scaled).collect();
        trainer.load(&trainer.weights(), &state, 0).unwrap();
        // Rank 0 has padding alone, so that all that overflows is rank 1's.
        let whole = input(8);
        let tensors = [Role::Image, Role::Label].map(|role| (role, whole.get(role).unwrap().shallow_clone()));
        let mask = Tensor::ones([8], (Kind::Float, Device::Cpu)) * group.rank() as f64;
        let own = Input::new(8, tensors.into(), Some(mask));
        let mut seen = Vec::new();
        for step in 0..40 {
            trainer.step(&own, At { epoch: 0, step, samples: 8 }).unwrap();
            let scaler = trainer.scaler.unwrap();
            let sum = |tensor: &Tensor| tensor.abs().sum(Kind::Double).double_value(&[]);
            let state = trainer.optimizer.state().iter().map(|(_, tensor)| sum(tensor)).collect();
            let hash = model::parameter_hash(trainer.model().vars());
            seen.push((scaler.scale(), scaler.skipped(), hash, state));
        }
        seen
    });
    assert_eq!(seen[0], seen[1], "the ranks go on alike");
    let all = &seen[0];
    let untouched = model::parameter_hash(ConvNet::new(3, Device::Cpu).vars());
    let (mut scale, mut skipped, mut hash, mut state) = (FIRST, 0, untouched, vec![0.0; all[0].3.len()]);
    for (step, now) in all.iter().enumerate() {
        match now.1 - skipped {
            // Nothing moves but the scale.
            1 => assert_eq!((now.0, now.2, &now.3), (scale / 2.0, hash, &state), "step {step}"),
            taken => assert!(taken == 0 && now.0 == scale && now.2 != hash, "step {step}"),
        }
        (scale, skipped, hash, state) = now.clone();
    }
    assert!((10..30).contains(&skipped), "{skipped} steps were skipped");
}
