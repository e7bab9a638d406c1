use super::*;
use std::time::Duration;

use forebay_c10d::{DdpSettings, ProcessGroup, Store};
use tch::nn::ModuleT;

use crate::input::image::Normalise;
use crate::report::timing::Stopwatch;
use crate::train::hyperparams::Hyperparams;
use crate::train::optim::OptimizerSettings;
use crate::train::precision::Precision;
use crate::train::schedule::{Schedule, Shape};
use crate::train::step::{At, Trainer};
use forebay_images::{ImageSettings, ImageSource};

const CPU: Device = Device::Cpu;

fn resnet(depth: Depth, size: i64) -> ModelSettings {
    let image = ImageSettings { source: ImageSource::Encoded, channels: 3, size };
    let normalise = Normalise { mean: vec![0.5; 3], std: vec![0.25; 3] };
    ModelSettings::Resnet(ResnetSettings { depth, classes: 4, image, normalise })
}

fn mlp(task: Task) -> ModelSettings {
    let outputs = if task == Task::Classification { 3 } else { 1 };
    ModelSettings::Mlp(MlpSettings { features: 5, hidden: vec![16, 16], task, outputs })
}

fn gpt() -> ModelSettings {
    ModelSettings::Gpt(GptSettings {
        vocab: 23,
        context: 12,
        layers: 2,
        heads: 2,
        width: 16,
        pad_token: None,
        pack: false,
    })
}

/// Rows that have something to learn in them.
fn input(settings: &ModelSettings, rows: i64) -> Input {
    seeded(9, || drawn(settings, rows))
}

fn drawn(settings: &ModelSettings, rows: i64) -> Input {
    let tensors = match settings {
        ModelSettings::Convnet => vec![
            (Role::Image, Tensor::randint(256, [rows, 784], (Kind::Uint8, CPU))),
            (Role::Label, Tensor::randint(10, [rows], (Kind::Int64, CPU))),
        ],
        ModelSettings::Resnet(resnet) => {
            let size = resnet.image.size;
            let labels = Tensor::arange(rows, (Kind::Int64, CPU)).remainder(resnet.classes);
            // Each class is a shade.
            let noise = Tensor::randint(60, [rows, 3, size, size], (Kind::Int64, CPU));
            let images = (labels.view([-1, 1, 1, 1]) * 60 + noise).to_kind(Kind::Uint8);
            vec![(Role::Image, images), (Role::Label, labels)]
        }
        ModelSettings::Mlp(mlp) => {
            let features = Tensor::randn([rows, mlp.features], (Kind::Float, CPU)) * 100.0 + 30.0;
            let sum = features.sum_dim_intlist(1, false, Kind::Float) / 200.0;
            let label = match mlp.task {
                Task::Classification => sum.clamp(0.0, 2.0).to_kind(Kind::Int64),
                Task::Regression => sum,
            };
            vec![(Role::Features, features), (Role::Label, label)]
        }
        ModelSettings::Gpt(gpt) => {
            // Each token is the one before and its row's step.
            let steps = Tensor::arange(rows, (Kind::Int64, CPU)).remainder(3).view([-1, 1]) + 1;
            let places = Tensor::arange(gpt.context + 1, (Kind::Int64, CPU));
            vec![(Role::Tokens, (steps * places).remainder(gpt.vocab).to_kind(Kind::Int))]
        }
    };
    Input::new(rows, tensors, None)
}

fn trainer(group: &ProcessGroup, settings: &ModelSettings, lr: f64, accumulate: u64) -> Trainer {
    trainer_in(Precision::Fp32, group, settings, lr, accumulate)
}

fn trainer_in(
    precision: Precision,
    group: &ProcessGroup,
    settings: &ModelSettings,
    lr: f64,
    accumulate: u64,
) -> Trainer {
    let decay_all = false;
    let optimizer = OptimizerSettings::AdamW { betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.01, decay_all };
    let schedule = Schedule { lr, shape: Shape::Constant, warmup_steps: None, steps: 100 };
    let settings_ = Hyperparams { optimizer, schedule, clip_norm: Some(10.0), accumulate, precision };
    Trainer::new(group, settings.build(3, CPU).unwrap(), settings_, &DdpSettings::default()).unwrap()
}

fn group() -> ProcessGroup {
    let timeout = Duration::from_secs(30);
    ProcessGroup::gloo(Store::serve(1, timeout).unwrap(), 0, 1, timeout).unwrap()
}

/// First and last loss per row.
fn train(precision: Precision, settings: &ModelSettings, rows: i64, steps: u64, lr: f64) -> (f64, f64) {
    let group = group();
    let mut trainer = trainer_in(precision, &group, settings, lr, 1);
    let input = input(settings, rows);
    let at = |step| At { epoch: 0, step, samples: rows as u64 };
    let losses: Vec<_> = (0..steps)
        .map(|step| trainer.step(&input, at(step), &mut Stopwatch::start()).unwrap() / rows as f64)
        .collect();
    (losses[0], losses[losses.len() - 1])
}

#[test]
fn each_model_learns() {
    for (settings, rows, steps, lr, share) in [
        (mlp(Task::Classification), 32, 40, 0.01, 0.75),
        (mlp(Task::Regression), 32, 40, 0.02, 0.6),
        (gpt(), 12, 40, 0.01, 0.8),
        (resnet(Depth::Resnet18, 32), 8, 6, 0.001, 0.8),
    ] {
        let (first, last) = train(Precision::Fp32, &settings, rows, steps, lr);
        assert!(last < share * first, "{}: {first} -> {last}", settings.name());
    }
}

#[test]
fn sixteen_bits_learn_as_well() {
    for (precision, settings) in [
        (Precision::Bf16, gpt()),
        (Precision::Fp16, gpt()),
        (Precision::Bf16, mlp(Task::Classification)),
        (Precision::Fp16, mlp(Task::Classification)),
    ] {
        let rows = if settings == gpt() { 12 } else { 32 };
        let (first, last) = train(precision, &settings, rows, 40, 0.01);
        assert!(last < 0.8 * first, "{precision:?} {}: {first} -> {last}", settings.name());
        let (full, _) = train(Precision::Fp32, &settings, rows, 1, 0.01);
        assert!((first - full).abs() < 0.02 * full, "{precision:?}: {first} against {full}");
        assert_ne!(first, full, "{precision:?} changes nothing");
    }
}

#[test]
fn resnet50_runs_forward_and_backward() {
    let settings = resnet(Depth::Resnet50, 64);
    let group = group();
    let mut trainer = trainer(&group, &settings, 1e-3, 1);
    let before = parameter_hash(trainer.model().vars());
    let loss = trainer
        .step(&input(&settings, 2), At { epoch: 0, step: 0, samples: 2 }, &mut Stopwatch::start())
        .unwrap();
    assert!(loss.is_finite());
    assert_ne!(parameter_hash(trainer.model().vars()), before);
}

/// Parameters and buffers of torchvision's models of these sizes.
#[test]
fn resnets_have_torchvisions_shapes() {
    for (depth, count, tensors) in [(Depth::Resnet18, 11_689_512, 62), (Depth::Resnet50, 25_557_032, 161)] {
        let ModelSettings::Resnet(settings) = resnet(depth, 32) else { unreachable!() };
        let model =
            ModelSettings::Resnet(ResnetSettings { classes: 1000, ..settings }).build(1, CPU).unwrap();
        let parameters = parameters(model.vars());
        assert_eq!(parameters.len(), tensors);
        assert_eq!(parameters.iter().map(|(_, tensor)| tensor.numel()).sum::<usize>(), count);
        assert_eq!(parameters[0].0, "conv1.weight");
        let names: Vec<_> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"layer4.1.bn2.bias") && names.contains(&"layer2.0.downsample.0.weight"));
        let buffers = buffers(model.vars());
        assert!(buffers.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(
            buffers.len(),
            2 * names
                .iter()
                .filter(|name| name.contains("bn") || name.ends_with("downsample.1.weight"))
                .filter(|name| name.ends_with("weight"))
                .count()
        );
    }
}

/// tch's own ResNets are another implementation of the same networks, with parameters of the same names.
#[test]
fn resnets_compute_what_tchs_do() {
    for depth in [Depth::Resnet18, Depth::Resnet50] {
        let settings = resnet(depth, 64);
        let ours = settings.build(3, CPU).unwrap();
        let vs = VarStore::new(CPU);
        // It draws its parameters too: by itself it would change those of a model built beside it.
        let theirs = seeded(3, || -> Box<dyn ModuleT> {
            match depth {
                Depth::Resnet18 => Box::new(tch::vision::resnet::resnet18(&vs.root(), 4)),
                Depth::Resnet50 => Box::new(tch::vision::resnet::resnet50(&vs.root(), 4)),
            }
        });
        let into = vs.variables();
        let own: Vec<_> = parameters(ours.vars()).into_iter().chain(buffers(ours.vars())).collect();
        assert_eq!(own.len(), into.len());
        for (name, tensor) in &own {
            tch::no_grad(|| into[name].shallow_clone().copy_(tensor));
        }
        let input = input(&settings, 4);
        let x = (input.get(Role::Image).unwrap() - 127.5) / 63.75;
        for training in [false, true] {
            let output = ours.forward(&input, training).unwrap();
            let expected = theirs.forward_t(&x, training);
            let (most, apart) = (expected.abs().max(), (&output - &expected).abs().max());
            assert!(output.size() == [4, 4] && most.double_value(&[]) > 0.0, "{depth:?}");
            assert!(
                apart.double_value(&[]) <= 1e-5 * most.double_value(&[]),
                "{depth:?} {training}: {apart:?}"
            );
            if training {
                ours.row_losses(&output, &input).unwrap().mean(Kind::Float).backward();
                expected.cross_entropy_for_logits(input.get(Role::Label).unwrap()).backward();
            }
        }
        let of = |tensor: &Tensor| tensor.grad().abs().max().double_value(&[]);
        let largest = parameters(ours.vars()).iter().map(|(_, tensor)| of(tensor)).fold(0.0, f64::max);
        for (name, tensor) in parameters(ours.vars()) {
            let apart = (tensor.grad() - into[&name].grad()).abs().max().double_value(&[]);
            assert!(largest > 0.0 && apart <= 1e-5 * largest, "{depth:?} {name}: {apart} of {largest}");
        }
        // What the training pass has left in the batch norms.
        for (name, tensor) in buffers(ours.vars()) {
            assert!(tensor.allclose(&into[&name], 1e-5, 1e-6, false), "{depth:?} {name}");
        }
    }
}

#[test]
fn a_batch_norm_learns_its_buffers_in_training_only() {
    let settings = resnet(Depth::Resnet18, 32);
    let group = group();
    let mut trainer = trainer(&group, &settings, 1e-3, 1);
    let mean = || buffers(trainer.model().vars()).swap_remove(0).1.copy();
    let (fresh, input) = (mean(), input(&settings, 4));
    drop(tch::no_grad(|| trainer.model().forward(&input, false)).unwrap());
    assert!(mean().equal(&fresh));
    trainer.step(&input, At { epoch: 0, step: 0, samples: 4 }, &mut Stopwatch::start()).unwrap();
    assert!(!buffers(trainer.model().vars()).swap_remove(0).1.equal(&fresh));
    let error = trainer
        .step(&input.narrow(0, 1), At { epoch: 0, step: 1, samples: 1 }, &mut Stopwatch::start())
        .unwrap_err();
    assert!(error.to_string().starts_with("a pass of 1 rows is too small"), "{error}");
}

#[test]
fn accumulated_passes_equal_one_large_one() {
    let group = group();
    for (settings, rows) in [(gpt(), 7), (ModelSettings::Convnet, 7)] {
        let gradients = |accumulate| {
            let mut trainer = trainer(&group, &settings, 1e-3, accumulate);
            trainer
                .step(
                    &input(&settings, rows),
                    At { epoch: 0, step: 0, samples: rows as u64 },
                    &mut Stopwatch::start(),
                )
                .unwrap();
            let parameters = trainer.model().vars().trainable_variables();
            parameters.iter().map(|parameter| parameter.grad().copy()).collect::<Vec<_>>()
        };
        let whole = gradients(1);
        for accumulate in [2, 3, 7] {
            for (a, b) in whole.iter().zip(&gradients(accumulate)) {
                let difference = (a - b).abs().max().double_value(&[]);
                assert!(difference < 1e-6, "{} in {accumulate}: {difference}", settings.name());
            }
        }
    }
}

#[test]
fn settings_are_data() {
    for settings in [
        ModelSettings::Convnet,
        resnet(Depth::Resnet18, 32),
        resnet(Depth::Resnet50, 224),
        mlp(Task::Regression),
        gpt(),
    ] {
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<ModelSettings>(&text).unwrap(), settings, "{text}");
        let model = settings.build(5, CPU).unwrap();
        assert_eq!(*model.settings(), settings);
        assert_eq!(parameter_hash(model.vars()), parameter_hash(settings.build(5, CPU).unwrap().vars()));
        let parameters = parameters(model.vars());
        assert!(parameters.iter().all(|(name, _)| !name.is_empty()));
        let mut names: Vec<_> = parameters.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), parameters.len());
    }
    let wrong =
        GptSettings { vocab: 3, context: 4, layers: 1, heads: 3, width: 16, pad_token: None, pack: false };
    let error = ModelSettings::Gpt(wrong).build(1, CPU).unwrap_err().to_string();
    assert_eq!(error, "--width 16 cannot be shared evenly by 3 --heads");
}

#[test]
fn padding_of_a_text_is_neither_learnt_nor_counted() {
    let ModelSettings::Gpt(settings) = gpt() else { unreachable!() };
    let model = gpt().build(5, CPU).unwrap();
    let tokens = seeded(6, || Tensor::randint(23, [3, settings.context + 1], (Kind::Int64, CPU)));
    let loss = |tokens: &Tensor, lengths: Option<&[i64]>| -> Vec<f32> {
        let mut tensors = vec![(Role::Tokens, tokens.shallow_clone())];
        tensors.extend(lengths.map(|lengths| (Role::Lengths, Tensor::from_slice(lengths))));
        let input = Input::new(tokens.size()[0], tensors, None);
        let output = tch::no_grad(|| model.forward(&input, false).unwrap());
        model.row_losses(&output, &input).unwrap().try_into().unwrap()
    };
    let whole = settings.context + 1;
    let all = loss(&tokens, None);
    assert_eq!(loss(&tokens, Some(&[whole; 3])), all);
    // A shorter row, whatever stands behind it: the mean over its own tokens. None of one token or less.
    let padded = tokens.copy();
    let _ = padded.narrow(1, 5, whole - 5).fill_(7);
    let lengths = [5, 1, 0];
    let short = loss(&tokens, Some(&lengths));
    assert_eq!(short, loss(&padded, Some(&lengths)));
    assert!(short[0] > 0.0 && short[0] != all[0] && short[1..] == [0.0, 0.0], "{short:?}");
}

#[test]
fn packed_documents_are_what_they_are_alone() {
    let model = gpt().build(3, CPU).unwrap();
    let (vocab, context, wide) = (23, 12, 13);
    // One that goes on in the second sequence, one of a single token, and padding.
    let documents: [&[i64]; 4] =
        [&[3, 1, 4, 1, 5], &[9], &[2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8], &[4, 6, 2, 6, 4]];
    let sequences = [vec![(0, 0..5), (1, 0..1), (2, 0..6)], vec![(2, 6..13), (3, 0..4)]];
    let (mut tokens, mut numbers) = (vec![0i64; 2 * wide], vec![-1i32; 2 * wide]);
    let (mut logits_alone, mut losses_alone) = (Vec::new(), Vec::new());
    for (sequence, parts) in sequences.into_iter().enumerate() {
        let (mut place, mut losses) = (0, Vec::new());
        for (number, (document, part)) in parts.into_iter().enumerate() {
            // A token behind the end of a full sequence is predicted by it, and read by the next one.
            let behind = usize::from(place + part.len() == context);
            let text = &documents[document][part.start..(part.end + behind).min(documents[document].len())];
            let first = sequence * wide + place;
            tokens[first..first + text.len()].copy_from_slice(text);
            numbers[first..first + text.len()].fill(number as i32);
            let mut row = vec![22; wide];
            row[..text.len()].copy_from_slice(text);
            let row = Tensor::from_slice(&row).view([1, wide as i64]);
            let input = Input::new(1, vec![(Role::Tokens, row)], None);
            let logits = tch::no_grad(|| model.forward(&input, false).unwrap()).squeeze_dim(0);
            let targets = Tensor::from_slice(&text[1..]);
            let predicted = logits.narrow(0, 0, targets.numel() as i64);
            losses.extend(Vec::<f32>::try_from(cross_entropies(&predicted, &targets).unwrap()).unwrap());
            logits_alone.push((sequence, place, logits.narrow(0, 0, part.len() as i64)));
            place += part.len();
        }
        losses_alone.push(losses.iter().sum::<f32>() / losses.len() as f32);
    }
    let shape = [2, wide as i64];
    let tensors = vec![
        (Role::Tokens, Tensor::from_slice(&tokens).view(shape)),
        (Role::Documents, Tensor::from_slice(&numbers).view(shape)),
    ];
    let input = Input::new(2, tensors, None);
    let packed = tch::no_grad(|| model.forward(&input, false).unwrap());
    assert_eq!(packed.size(), [2, context as i64, vocab]);
    for (sequence, place, alone) in logits_alone {
        let within = packed.get(sequence as i64).narrow(0, place as i64, alone.size()[0]);
        let difference = (within - alone).abs().max().double_value(&[]);
        assert!(difference < 1e-5, "sequence {sequence} from {place}: {difference}");
    }
    let losses = Vec::<f32>::try_from(model.row_losses(&packed, &input).unwrap()).unwrap();
    for (packed, alone) in losses.iter().zip(&losses_alone) {
        assert!((packed - alone).abs() < 1e-5, "{losses:?} against {losses_alone:?}");
    }
}
