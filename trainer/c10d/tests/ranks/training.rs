//! The reducer: gradients against those of one process on the whole batch, under every setting.

use forebay_c10d::{Compression, Ddp, DdpSettings, ProcessGroup, Result, zero_grads};
use tch::nn::{Module, OptimizerConfig};
use tch::{Device, Kind, Tensor, nn};

use crate::{floats, run_well, say};

/// A small model, with a different start on each rank on purpose: the constructor of `Ddp` must level them.
pub fn model(rank: usize, width: i64) -> (nn::VarStore, nn::Sequential) {
    tch::manual_seed(100 + rank as i64);
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let net = nn::seq()
        .add(nn::linear(&root / "a", 16, width, Default::default()))
        .add_fn(|x| x.tanh())
        .add(nn::linear(&root / "b", width, 4, Default::default()));
    (vs, net)
}

pub fn batch(seed: i64) -> (Tensor, Tensor) {
    tch::manual_seed(seed);
    let x = Tensor::randn([32, 16], (Kind::Float, Device::Cpu));
    let y = x.slice(1, 0, 4, 1).sin();
    (x, y)
}

pub fn part(tensor: &Tensor, group: &ProcessGroup) -> Tensor {
    let rows = tensor.size()[0] / group.world() as i64;
    tensor.narrow(0, group.rank() as i64 * rows, rows)
}

pub fn loss(net: &nn::Sequential, x: &Tensor, y: &Tensor) -> Tensor {
    (net.forward(x) - y).square().mean(Kind::Float)
}

fn worst(ours: &[Tensor], theirs: &[Tensor]) -> f64 {
    let difference = |(a, b): (&Tensor, &Tensor)| (a.grad() - b.grad()).abs().max().double_value(&[]);
    ours.iter().zip(theirs).map(difference).fold(0.0, f64::max)
}

/// The same parameters without DDP, to be trained on whole batches.
fn reference(vs: &nn::VarStore) -> (nn::VarStore, nn::Sequential) {
    let (mut copy, net) = model(0, 64);
    copy.copy(vs).unwrap();
    (copy, net)
}

fn bits(parameters: &[Tensor]) -> String {
    let bits: Vec<_> =
        parameters.iter().flat_map(|p| floats(&p.detach().flatten(0, -1))).map(f32::to_bits).collect();
    let hash =
        bits.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

pub fn gradients(group: &ProcessGroup) -> Result<()> {
    let (vs, net) = model(group.rank(), 64);
    let parameters = vs.trainable_variables();
    let settings = DdpSettings { bucket_bytes: 1 << 10, first_bucket_bytes: 256, ..Default::default() };
    let ddp = Ddp::new(group, &parameters, &[], &settings)?;
    let mut optimizer = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&vs, 0.05).unwrap();
    let mut worst_difference = 0f64;
    for step in 0..5 {
        let (x, y) = batch(step);
        zero_grads(&parameters, step % 2 == 0)?;
        let local = ddp.forward(|| loss(&net, &part(&x, group), &part(&y, group)))?;
        ddp.backward(&local)?;
        let (whole, whole_net) = reference(&vs);
        loss(&whole_net, &x, &y).backward();
        worst_difference = worst_difference.max(worst(&parameters, &whole.trainable_variables()));
        optimizer.step();
    }
    let sizes = ddp.bucket_sizes()?;
    let stats = ddp.stats()?;
    say(format!("close {}", worst_difference < 1e-6));
    say(format!("buckets {} of {} bytes", sizes.len() > 1, sizes.iter().sum::<i64>()));
    let measured = [stats.last, stats.mean].iter().all(|times| {
        times.forward_compute_ns > 0 && times.backward_compute_ns > 0 && times.backward_comm_ns > 0
    });
    say(format!("measured {} {measured}", stats.iteration));
    say(bits(&parameters));
    Ok(())
}

#[test]
fn gradients_of_two_ranks_equal_those_of_the_whole_batch() {
    let said = run_well("gradients", 2);
    assert_eq!(said[0], said[1], "the ranks' parameters are equal bit for bit");
    assert_eq!(said[0][..3], ["close true", "buckets true of 5392 bytes", "measured 5 true"]);
}

pub fn accumulate(group: &ProcessGroup) -> Result<()> {
    let (vs, net) = model(group.rank(), 64);
    let parameters = vs.trainable_variables();
    let ddp = Ddp::new(group, &parameters, &[], &DdpSettings::default())?;
    let (whole, whole_net) = reference(&vs);
    let pass = |seed| -> Result<()> {
        let (x, y) = batch(seed);
        loss(&whole_net, &x, &y).backward();
        let local = ddp.forward(|| loss(&net, &part(&x, group), &part(&y, group)))?;
        ddp.backward(&local)
    };
    ddp.no_sync(|| (0..3).try_for_each(pass))?;
    let local: Vec<_> = group.all_gather_bytes(&parameters[0].grad().double_value(&[0]).to_le_bytes())?;
    say(format!("local {}", local[0] != local[1]));
    pass(3)?;
    say(format!("close {}", worst(&parameters, &whole.trainable_variables()) < 1e-5));
    Ok(())
}

#[test]
fn no_sync_accumulates_locally_and_the_next_pass_reduces_the_sum() {
    for said in run_well("accumulate", 2) {
        assert_eq!(said, ["local true", "close true"]);
    }
}

/// Every setting on the same batches: the worst difference to the whole batch's gradients.
pub fn settings(group: &ProcessGroup) -> Result<()> {
    let plain = DdpSettings { bucket_bytes: 1 << 10, first_bucket_bytes: 256, ..Default::default() };
    let all = [
        ("plain", plain.clone()),
        ("one bucket", DdpSettings::default()),
        ("copies", DdpSettings { gradient_as_bucket_view: false, ..plain.clone() }),
        ("static", DdpSettings { static_graph: true, ..plain.clone() }),
        (
            "static copies",
            DdpSettings { static_graph: true, gradient_as_bucket_view: false, ..plain.clone() },
        ),
        ("find unused", DdpSettings { find_unused: true, ..plain.clone() }),
        ("fp16", DdpSettings { compression: Compression::Fp16, ..plain.clone() }),
        ("bf16", DdpSettings { compression: Compression::Bf16, ..plain.clone() }),
    ];
    for (name, settings) in all {
        let (vs, net) = model(group.rank(), 64);
        let parameters = vs.trainable_variables();
        let ddp = Ddp::new(group, &parameters, &[], &settings)?;
        let (mut worst_difference, mut largest) = (0f64, 0f64);
        for step in 0..4 {
            let (x, y) = batch(step);
            zero_grads(&parameters, false)?;
            let local = ddp.forward(|| loss(&net, &part(&x, group), &part(&y, group)))?;
            ddp.backward(&local)?;
            let (whole, whole_net) = reference(&vs);
            loss(&whole_net, &x, &y).backward();
            let whole = whole.trainable_variables();
            worst_difference = worst_difference.max(worst(&parameters, &whole));
            let top = |p: &Tensor| p.grad().abs().max().double_value(&[]);
            largest = whole.iter().map(top).fold(largest, f64::max);
        }
        say(format!("{name} {:e}", worst_difference / largest));
    }
    Ok(())
}

#[test]
fn every_setting_gives_the_gradients_of_the_whole_batch() {
    let said = run_well("settings", 2);
    assert_eq!(said[0], said[1]);
    assert_eq!(said[0].len(), 8);
    for line in &said[0] {
        let (name, difference) = line.rsplit_once(' ').unwrap();
        let difference: f64 = difference.parse().unwrap();
        // bf16 keeps 8 bits, fp16 11; the rest is the order of summation.
        let (least, most) = match name {
            "bf16" => (1e-5, 1e-2),
            "fp16" => (1e-6, 2e-3),
            _ => (0.0, 1e-5),
        };
        assert!(difference >= least && difference < most, "{line}");
    }
}

/// A layer that each rank leaves out in turn: an error without `find_unused`, and right with it.
pub fn unused(group: &ProcessGroup) -> Result<()> {
    for find_unused in [true, false] {
        let (vs, net) = model(group.rank(), 64);
        let extra = nn::linear(vs.root() / "extra", 16, 4, Default::default());
        let parameters = vs.trainable_variables();
        let settings = DdpSettings { find_unused, ..Default::default() };
        let ddp = Ddp::new(group, &parameters, &[], &settings)?;
        let pass = |step: i64| -> Result<()> {
            let (x, y) = batch(step);
            let (x, y) = (part(&x, group), part(&y, group));
            zero_grads(&parameters, true)?;
            let local = ddp.forward(|| {
                let output = net.forward(&x);
                let output =
                    if step % 2 == group.rank() as i64 { output + extra.forward(&x) } else { output };
                (output - &y).square().mean(Kind::Float)
            })?;
            ddp.backward(&local)
        };
        match (0..4).try_for_each(pass) {
            Ok(()) => {
                let reduced = extra.ws.grad().abs().sum(Kind::Float).double_value(&[]) > 0.0;
                say(format!("{find_unused} ok {reduced}"));
            }
            Err(error) => say(format!("{find_unused} {error}")),
        }
    }
    Ok(())
}

#[test]
fn unused_parameters_are_found_or_refused() {
    let said = run_well("unused", 2);
    assert!(said.iter().all(|said| said[0] == "true ok true" && said.len() == 2), "{said:?}");
    let refused = |said: &Vec<String>| said[1].contains("finished reduction in the prior iteration");
    assert!(said.iter().any(refused), "{said:?}");
}

/// Running statistics: every rank starts each synchronised pass from rank 0's.
pub fn buffers(group: &ProcessGroup) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(vs.root(), 4, Default::default());
    let weights = vs.trainable_variables();
    let mean = || vs.variables()["running_mean"].shallow_clone();
    let buffers = ["running_mean", "running_var"].map(|name| vs.variables()[name].shallow_clone());
    let ddp = Ddp::new(group, &weights, &buffers, &DdpSettings::default())?;
    let pass = |seen: &mut Vec<f32>| -> Result<()> {
        // Each rank sees other values, so the statistics part after each pass.
        let x = Tensor::ones([8, 4], (Kind::Float, Device::Cpu)) * (group.rank() as f64 + 1.0);
        let local = ddp.forward(|| {
            seen.push(floats(&mean())[0]);
            tch::nn::ModuleT::forward_t(&norm, &x, true).mean(Kind::Float)
        })?;
        ddp.backward(&local)
    };
    let mut seen = Vec::new();
    pass(&mut seen)?;
    ddp.no_sync(|| (0..2).try_for_each(|_| pass(&mut seen)))?;
    (0..2).try_for_each(|_| pass(&mut seen))?;
    say(seen.iter().map(|value| format!("{value:.4}")).collect::<Vec<_>>().join(" "));
    Ok(())
}

#[test]
fn buffers_are_rank_0s_before_each_pass_that_follows_a_synchronised_one() {
    let said = run_well("buffers", 2);
    // mean <- 0.9 mean + 0.1 x, with x = 1 on rank 0 and 2 on rank 1. The first pass of `no_sync` still takes
    // rank 0's, for the pass before was synchronised; the second one and the pass after it do not, as in
    // Python.
    assert_eq!(said[0], ["0.0000 0.1000 0.1900 0.2710 0.3439"]);
    assert_eq!(said[1], ["0.0000 0.1000 0.2900 0.4610 0.3439"]);
}
