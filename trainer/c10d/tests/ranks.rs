//! Real processes, real sockets: each test starts this binary again, once per rank, and reads what the ranks print.
//!
//! A rank process runs only the test `rank_process`, which does nothing unless `FOREBAY_CASE` names a case.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_c10d::{Ddp, DdpSettings, Op, ProcessGroup, Result, Store, zero_grads};
use tch::nn::{Module, OptimizerConfig};
use tch::{Device, Kind, Tensor, nn};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The group's timeout in the case where a peer stays silent.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

/// One rank that ran to its end.
struct Finished {
    output: Output,
    seconds: f64,
}

impl Finished {
    /// The lines that the case printed by `say`.
    fn said(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.output.stdout);
        text.lines().filter_map(|line| line.split_once("SAY ")).map(|(_, said)| said.to_owned()).collect()
    }
}

fn run(case: &str, world: usize) -> Vec<Finished> {
    let store = Store::serve(world, TIMEOUT).unwrap();
    let port = store.port().unwrap().to_string();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .envs([("FOREBAY_CASE", case), ("MASTER_PORT", &port), ("OMP_NUM_THREADS", "1")])
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string())])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let began = Instant::now();
    let children: Vec<_> = (0..world).map(start).collect();
    let wait = |child: Child| Finished {
        output: child.wait_with_output().unwrap(),
        seconds: began.elapsed().as_secs_f64(),
    };
    children.into_iter().map(wait).collect()
}

fn run_well(case: &str, world: usize) -> Vec<Vec<String>> {
    let finished = run(case, world);
    for (rank, one) in finished.iter().enumerate() {
        let error = String::from_utf8_lossy(&one.output.stderr);
        assert!(one.output.status.success(), "rank {rank} of `{case}`: {:?} {error}", one.said());
    }
    finished.iter().map(Finished::said).collect()
}

fn say(text: impl std::fmt::Display) {
    println!("\nSAY {text}");
}

#[test]
fn rank_process() {
    let Ok(case) = std::env::var("FOREBAY_CASE") else { return };
    let number = |key: &str| std::env::var(key).unwrap().parse::<usize>().unwrap();
    let (rank, world) = (number("RANK"), number("WORLD_SIZE"));
    let timeout = if case == "silent" { SHORT_TIMEOUT } else { TIMEOUT };
    let store = Store::tcp("127.0.0.1", number("MASTER_PORT") as u16, world, false, timeout).unwrap();
    let group = ProcessGroup::gloo(store, rank, world, timeout).unwrap();
    match case.as_str() {
        "collectives" => collectives(&group),
        "gradients" => gradients(&group),
        "accumulate" => accumulate(&group),
        "death" => death(&group),
        "silent" => silent(&group),
        "shapes" => shapes(&group),
        "refusals" => refusals(&group),
        other => panic!("no case {other}"),
    }
    .unwrap();
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

fn collectives(group: &ProcessGroup) -> Result<()> {
    let mine = || Tensor::from_slice(&[group.rank() as f32 + 1.0, 10.0]);
    for op in [Op::Sum, Op::Avg, Op::Min, Op::Max] {
        let mut tensor = mine();
        group.all_reduce(&mut tensor, op)?;
        say(format!("{op:?} {:?}", floats(&tensor)));
    }
    let mut tensor = Tensor::from_slice(&[group.rank() as i64 * 7]);
    group.broadcast(&mut tensor, 1)?;
    say(format!("broadcast {}", tensor.int64_value(&[0])));
    say(format!("integers {:?}", group.all_gather_i64(&[group.rank() as i64, i64::MIN])?));
    let bytes = vec![group.rank() as u8; group.rank() * 3];
    say(format!("bytes {:?}", group.all_gather_bytes(&bytes)?));
    say(format!("nothing {:?}", group.all_gather_bytes(&[])?));
    // Nobody passes the barrier before the last has come.
    let began = Instant::now();
    if group.rank() == 1 {
        std::thread::sleep(Duration::from_millis(300));
    }
    group.barrier()?;
    say(format!("barrier {}", began.elapsed() >= Duration::from_millis(250)));
    Ok(())
}

#[test]
fn collectives_give_every_rank_the_right_values() {
    for said in run_well("collectives", 2) {
        assert_eq!(
            said,
            [
                "Sum [3.0, 20.0]",
                "Avg [1.5, 10.0]",
                "Min [1.0, 10.0]",
                "Max [2.0, 10.0]",
                "broadcast 7",
                &format!("integers {:?}", [[0, i64::MIN], [1, i64::MIN]]),
                "bytes [[], [1, 1, 1]]",
                "nothing [[], []]",
                "barrier true",
            ]
        );
    }
}

/// A small model, with a different start on each rank on purpose: the constructor of `Ddp` must level them.
fn model(rank: usize, width: i64) -> (nn::VarStore, nn::Sequential) {
    tch::manual_seed(100 + rank as i64);
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let net = nn::seq()
        .add(nn::linear(&root / "a", 16, width, Default::default()))
        .add_fn(|x| x.tanh())
        .add(nn::linear(&root / "b", width, 4, Default::default()));
    (vs, net)
}

fn batch(seed: i64) -> (Tensor, Tensor) {
    tch::manual_seed(seed);
    let x = Tensor::randn([32, 16], (Kind::Float, Device::Cpu));
    let y = x.slice(1, 0, 4, 1).sin();
    (x, y)
}

fn part(tensor: &Tensor, group: &ProcessGroup) -> Tensor {
    let rows = tensor.size()[0] / group.world() as i64;
    tensor.narrow(0, group.rank() as i64 * rows, rows)
}

fn loss(net: &nn::Sequential, x: &Tensor, y: &Tensor) -> Tensor {
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

fn gradients(group: &ProcessGroup) -> Result<()> {
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
    say(format!("measured {}", stats.iterations > 0 && stats.backward_compute_ns > 0));
    say(bits(&parameters));
    Ok(())
}

#[test]
fn gradients_of_two_ranks_equal_those_of_the_whole_batch() {
    let said = run_well("gradients", 2);
    assert_eq!(said[0], said[1], "the ranks' parameters are equal bit for bit");
    assert_eq!(said[0][..3], ["close true", "buckets true of 5392 bytes", "measured true"]);
}

fn accumulate(group: &ProcessGroup) -> Result<()> {
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

/// Trains until the peer's death shows; the rank itself then ends well, having said what it saw.
fn death(group: &ProcessGroup) -> Result<()> {
    let (vs, net) = model(group.rank(), 64);
    let parameters = vs.trainable_variables();
    let ddp = Ddp::new(group, &parameters, &[], &DdpSettings::default())?;
    let step = |number: i64| -> Result<()> {
        let (x, y) = batch(number);
        zero_grads(&parameters, true)?;
        let local = ddp.forward(|| loss(&net, &part(&x, group), &part(&y, group)))?;
        ddp.backward(&local)
    };
    for number in 0..100 {
        if group.rank() == 1 && number == 3 {
            std::process::exit(9);
        }
        if let Err(error) = step(number) {
            say(format!("{number} {} {error}", error.peer_lost()));
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn a_peer_that_dies_is_an_error_within_seconds() {
    let finished = run("death", 2);
    assert_eq!(finished[1].output.status.code(), Some(9));
    let said = finished[0].said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("3 true rank 0 of 2: "), "{said:?}");
    assert!(finished[0].seconds < 10.0, "took {} s", finished[0].seconds);
}

fn silent(group: &ProcessGroup) -> Result<()> {
    if group.rank() == 1 {
        std::thread::sleep(SHORT_TIMEOUT * 2);
        return Ok(());
    }
    let error = group.barrier().unwrap_err();
    say(format!("{} {error}", error.peer_lost()));
    Ok(())
}

#[test]
fn a_peer_that_stays_silent_is_an_error_after_the_timeout() {
    let said = run_well("silent", 2);
    assert!(said[0].len() == 1 && said[0][0].starts_with("true rank 0 of 2: barrier: "), "{said:?}");
}

fn shapes(group: &ProcessGroup) -> Result<()> {
    let (vs, _net) = model(group.rank(), 64 + group.rank() as i64);
    match Ddp::new(group, &vs.trainable_variables(), &[], &DdpSettings::default()) {
        Ok(_) => say("accepted"),
        Err(error) => say(error),
    }
    Ok(())
}

#[test]
fn parameters_of_different_shapes_are_refused() {
    let said = run("shapes", 2).iter().flat_map(Finished::said).collect::<Vec<_>>();
    assert!(said.iter().all(|line| line != "accepted"), "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("make the reducer: ") && line.contains("params[0]")),
        "{said:?}"
    );
}

fn refusals(group: &ProcessGroup) -> Result<()> {
    let mut integers = Tensor::from_slice(&[1i64]);
    say(group.all_reduce(&mut integers, Op::Avg).unwrap_err());
    say(group.broadcast(&mut integers, 1).unwrap_err());
    say(group.all_reduce(&mut Tensor::new(), Op::Sum).unwrap_err());
    say(Ddp::new(group, &[], &[], &DdpSettings::default()).unwrap_err());
    let frozen = [Tensor::from_slice(&[1f32])];
    say(Ddp::new(group, &frozen, &[], &DdpSettings::default()).unwrap_err());
    Ok(())
}

#[test]
fn bad_arguments_are_errors_that_name_the_operation() {
    let said = run_well("refusals", 1).remove(0);
    assert_eq!(
        said,
        [
            "rank 0 of 1: all_reduce: an average wants floating point, not Long",
            "rank 0 of 1: broadcast: root 1 is not below the world size 1",
            "rank 0 of 1: all_reduce: the tensor is undefined",
            "rank 0 of 1: make the reducer: the model has no parameters",
            "rank 0 of 1: make the reducer: a parameter is not a leaf that requires a gradient",
        ]
    );
}

#[test]
fn a_rank_outside_the_world_is_refused() {
    let store = Store::serve(1, TIMEOUT).unwrap();
    let error = ProcessGroup::gloo(store, 2, 2, TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "rank: 2 is not below the world size 2");
}
