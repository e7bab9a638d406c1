use super::*;
use std::time::Duration;

use forebay_c10d::Store;
use tch::Device;

use crate::input::Role;
use crate::model::mlp::{MlpSettings, Task};
use crate::model::{ModelSettings, Network};
use crate::report::timing::{EpochTimes, Ledger, StepTimes};
use crate::train::optim::OptimizerSettings;
use crate::train::precision::Precision;
use crate::train::schedule::{Schedule, Shape};

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

fn settings(lr: f64, steps: u64) -> Hyperparams {
    let optimizer = OptimizerSettings::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 };
    let schedule = Schedule { lr, shape: Shape::OneCycle, warmup_steps: None, steps };
    Hyperparams { optimizer, schedule, clip_norm: None, accumulate: 1, precision: Precision::Fp32 }
}

fn ddp() -> DdpSettings {
    DdpSettings { sample_every: 1, ..Default::default() }
}

fn trainer(group: &ProcessGroup, settings: Hyperparams) -> Trainer {
    Trainer::new(group, convnet(), settings, &ddp()).unwrap()
}

fn convnet() -> Model {
    ModelSettings::Convnet.build(3, Device::Cpu).unwrap()
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
        *loss = trainer.step(input, at, &mut Stopwatch::start()).unwrap();
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
        let losses: Vec<_> =
            (0..20).map(|step| trainer.step(&input, at(step), &mut Stopwatch::start()).unwrap()).collect();
        assert!(losses[19] < losses[0] * 0.8, "{losses:?}");
        hashes.push(model::parameter_hash(trainer.model().vars()));
    }
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], model::parameter_hash(convnet().vars()));
}

#[test]
fn a_loss_that_is_not_finite_names_epoch_and_step() {
    let mut trainer = trainer(&group(), settings(1e30, 10));
    let input = input(8);
    let step = |step| trainer.step(&input, At { epoch: 2, step, samples: 8 }, &mut Stopwatch::start());
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
        let mut trainer = trainer(&group, Hyperparams { accumulate, ..settings(0.05, 4) });
        let losses =
            trainer.step(&input, At { epoch: 0, step: 0, samples: 10 }, &mut Stopwatch::start()).unwrap();
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

/// Runs `rank` on `world` ranks, each a thread with a group of its own.
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
            let mut trainer = trainer(&group, Hyperparams { accumulate, ..settings(0.05, 4) });
            trainer
                .step(&own, At { epoch: 0, step: 0, samples: ROWS as u64 }, &mut Stopwatch::start())
                .unwrap();
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
        let mut trainer = trainer(&group, Hyperparams { precision, ..settings(0.05, 100) });
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
            trainer.step(&own, At { epoch: 0, step, samples: 8 }, &mut Stopwatch::start()).unwrap();
            let scaler = trainer.scaler.unwrap();
            let sum = |tensor: &Tensor| tensor.abs().sum(Kind::Double).double_value(&[]);
            let state = trainer.optimizer.state().iter().map(|(_, tensor)| sum(tensor)).collect();
            let hash = model::parameter_hash(trainer.model().vars());
            seen.push((scaler.scale, scaler.skipped, hash, state));
        }
        seen
    });
    assert_eq!(seen[0], seen[1], "the ranks go on alike");
    let all = &seen[0];
    let untouched = model::parameter_hash(convnet().vars());
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

/// A device that queues what it is asked for: the host comes back at once, and waits when it asks for a
/// result.
#[test]
fn a_device_that_queues_its_work_is_busy_while_it_is_waited_for() {
    let mut ledger = Ledger::default();
    let began = std::time::Instant::now();
    let (mut watch, mut first) = (Stopwatch::start(), Duration::ZERO);
    // How long the sleeps really took: a busy machine makes them longer.
    let (mut slept, worked) = (Duration::ZERO, std::cell::Cell::new(Duration::ZERO));
    for step in 0..6 {
        let waits = std::time::Instant::now();
        std::thread::sleep(Duration::from_millis(10));
        slept += waits.elapsed();
        watch.lap(Part::DataWait);
        // Forward and backward are queued.
        watch.lap(Part::Forward);
        watch.lap(Part::Backward);
        let busy = |sum: &Tensor| {
            let works = std::time::Instant::now();
            std::thread::sleep(Duration::from_millis(30));
            worked.set(worked.get() + works.elapsed());
            sum.double_value(&[])
        };
        assert_eq!(read(&[Tensor::from(1.5), Tensor::from(2.0)][..1], busy, &mut watch), 1.5);
        watch.lap(Part::Optimizer);
        let times = watch.end();
        ledger.add(times);
        if step == 0 {
            // It counts for nothing.
            (first, slept) = (times.total, Duration::ZERO);
            worked.set(Duration::ZERO);
        }
    }
    let took = began.elapsed();
    let times = ledger.merge(&group(), took).unwrap();
    // About 30 of 40 ms: the waits for the device are in it, those for data are not.
    let share = |part: Duration| part.as_secs_f64() / (took - first).as_secs_f64();
    let (least, most) = (share(worked.get()), 1.0 - share(slept));
    let utilisation = times.accelerator_utilisation.unwrap();
    assert!((least - 1e-9..most + 1e-9).contains(&utilisation), "{utilisation} of {least} to {most}");
    let rank = times.ranks[0];
    assert!(rank.backward_ms >= 30.0 && rank.forward_ms < rank.backward_ms, "{times:?}");
}

#[test]
fn a_step_is_counted_without_a_gap() {
    let mut trainer = trainer(&group(), settings(0.05, 10));
    let input = input(64);
    let mut all = Vec::new();
    for step in 0..4 {
        let mut watch = Stopwatch::start();
        trainer.step(&input, At { epoch: 0, step, samples: 64 }, &mut watch).unwrap();
        let times = watch.end();
        assert_eq!(times.exchange, Exchange::default());
        all.push(times);
    }
    let gapless = |times: &StepTimes| {
        let gap = times.total - times.compute();
        gap < Duration::from_millis(1) && gap < times.total / 10
    };
    // A busy machine may stop the thread between two parts, but not in each step.
    assert!(all.iter().any(gapless), "{all:?}");
}

/// A network whose forward pass takes longer by a time that it is told.
#[derive(Debug)]
struct Slow {
    network: Box<dyn Network>,
    pauses: std::cell::RefCell<std::vec::IntoIter<u64>>,
}

impl Network for Slow {
    fn forward(&self, input: &Input, training: bool) -> Result<Tensor> {
        std::thread::sleep(Duration::from_millis(self.pauses.borrow_mut().next().unwrap_or(0)));
        self.network.forward(input, training)
    }
}

/// Trains two ranks for two short epochs of `STEPS`; rank r waits for data, and then takes longer in its
/// forward pass, by `data(r, step)` and `forward(r, step)` ms. Gives what each epoch's report says.
fn epochs_of(
    buffers: bool,
    data: impl Fn(usize, u64) -> u64 + Send + Sync + 'static,
    forward: impl Fn(usize, u64) -> u64 + Send + Sync + 'static,
) -> Vec<EpochTimes> {
    const STEPS: u64 = 8;
    let ranks = on_ranks(2, move |group| {
        let rank = group.rank();
        let (settings, input) = match buffers {
            true => {
                let features = Tensor::ones([4, 3], (Kind::Float, Device::Cpu));
                let labels = Tensor::from_slice(&[0i64, 1, 0, 1]);
                let input = Input::new(4, vec![(Role::Features, features), (Role::Label, labels)], None);
                let mlp =
                    MlpSettings { features: 3, hidden: vec![8], task: Task::Classification, outputs: 2 };
                (ModelSettings::Mlp(mlp), input)
            }
            false => (ModelSettings::Convnet, input(4)),
        };
        let pauses: Vec<_> = (0..2 * STEPS).map(|step| forward(rank, step)).collect();
        let mut model = settings.build(3, Device::Cpu).unwrap();
        model.network = Box::new(Slow { network: model.network, pauses: pauses.into_iter().into() });
        let mut trainer = Trainer::new(&group, model, self::settings(0.01, 99), &ddp()).unwrap();
        let mut seen = Vec::new();
        for epoch in 0..2 {
            let (mut ledger, mut watch, began) =
                (Ledger::default(), Stopwatch::start(), std::time::Instant::now());
            for step in 0..STEPS {
                std::thread::sleep(Duration::from_millis(data(rank, epoch * STEPS + step)));
                watch.lap(Part::DataWait);
                trainer.step(&input, At { epoch, step, samples: 8 }, &mut watch).unwrap();
                ledger.add(watch.end());
            }
            seen.push(ledger.merge(&group, began.elapsed()).unwrap());
        }
        seen
    });
    assert_eq!(ranks[0], ranks[1], "all ranks come to the same");
    ranks.into_iter().next().unwrap()
}

/// What both ranks take for a step: much, beside what a busy machine adds by chance.
const BOTH_MS: u64 = 50;

/// For what a busy machine can spoil: it must go well once in several runs.
fn any_of(runs: usize, run: impl Fn()) {
    let well = |_| std::panic::catch_unwind(std::panic::AssertUnwindSafe(&run)).is_ok();
    assert!((0..runs).any(well), "none of {runs} runs went well");
}

#[test]
fn a_slow_rank_is_named_in_short_epochs() {
    any_of(5, || {
        let slow_network = |rank: usize, _| BOTH_MS + 40 * rank as u64;
        for times in epochs_of(false, |_, _| 0, slow_network) {
            let found = times.straggler.clone().unwrap_or_else(|| panic!("{times:?}"));
            assert!((found.rank, found.part) == (1, "forward") && found.slower_by_ms > 30.0, "{times:?}");
            // The fast rank's gradients wait for the slow one's.
            assert!(
                times.ranks[0].communication_ms > 30.0 && times.ranks[1].communication_ms < 30.0,
                "{times:?}"
            );
        }
    });
    // Where there are buffers, rank 1 waits for rank 0's in its forward pass.
    any_of(5, || {
        let slow_data = |rank: usize, _| 40 * (1 - rank as u64);
        for times in epochs_of(true, slow_data, |_, _| BOTH_MS) {
            let found = times.straggler.clone().unwrap_or_else(|| panic!("{times:?}"));
            assert!((found.rank, found.part) == (0, "data wait") && found.slower_by_ms > 30.0, "{times:?}");
            assert!(times.ranks[1].forward_ms > BOTH_MS as f64 + 30.0, "{times:?}");
        }
    });
}

#[test]
fn a_slow_first_pass_is_held_against_nobody() {
    any_of(3, || {
        let first = |rank: usize, step| BOTH_MS + if (rank, step) == (1, 0) { 600 } else { 0 };
        for times in epochs_of(false, |_, _| 0, first) {
            // What a busy machine does to one rank in all steps is a few ms of each.
            let of_a_pass = times.straggler.clone().filter(|found| found.slower_by_ms > 30.0);
            assert_eq!(of_a_pass, None, "{times:?}");
        }
    });
}
