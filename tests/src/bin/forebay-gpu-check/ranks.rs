//! One process per GPU: NCCL and DDP. The process that was asked starts them and reads their exit codes and
//! words.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use forebay_c10d::{
    Compression, Cuda, Ddp, DdpSettings, NcclSettings, Op, ProcessGroup, Result, Store, zero_grads,
};
use tch::nn::{Module, OptimizerConfig};
use tch::{Device, Kind, Tensor, nn};

use crate::Outcome;

/// For the ranks' collectives; and for the ranks themselves, twice that.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Names the check that a rank makes.
const CASE: &str = "FOREBAY_GPU_CHECK";

/// Collectives on GPU tensors, and on CPU tensors of the same group.
pub fn nccl(cuda: Cuda) -> Result<Outcome> {
    start("nccl", cuda)
}

/// DDP: gradients equal those of the whole batch, parameters stay equal on all ranks.
pub fn ddp(cuda: Cuda) -> Result<Outcome> {
    start("ddp", cuda)
}

/// Runs `case` on one rank and, where there is a second GPU, on two.
fn start(case: &str, cuda: Cuda) -> Result<Outcome> {
    let one = ranks(case, 1)?;
    let Outcome::Pass(one) = one else { return Ok(one) };
    if cuda.devices() < 2 {
        println!("SKIP {case}-2-ranks: this machine has one GPU, and NCCL refuses two ranks on one");
        return Ok(Outcome::Pass(one));
    }
    Ok(match ranks(case, 2)? {
        Outcome::Pass(two) => Outcome::Pass(format!("{one}; two ranks: {two}")),
        other => other,
    })
}

fn ranks(case: &str, world: usize) -> Result<Outcome> {
    let store = Store::serve(world, TIMEOUT)?;
    let port = store.port()?.to_string();
    let failed = |error: std::io::Error| Outcome::Fail(format!("start a rank: {error}"));
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Ok(failed(error)),
    };
    let mut children = Vec::new();
    for rank in 0..world {
        let child = Command::new(&program)
            .envs([(CASE, case), ("MASTER_PORT", &port)])
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn();
        match child {
            Ok(child) => children.push(child),
            Err(error) => return Ok(failed(error)),
        }
    }
    let deadline = Instant::now() + 2 * TIMEOUT;
    while children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
        if Instant::now() > deadline {
            for child in &mut children {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
            }
            return Ok(Outcome::Fail(format!("{world} ranks did not end within {:?}", 2 * TIMEOUT)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut words = Vec::new();
    for (rank, child) in children.into_iter().enumerate() {
        let output = match child.wait_with_output() {
            Ok(output) => output,
            Err(error) => return Ok(failed(error)),
        };
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() {
            return Ok(Outcome::Fail(format!("rank {rank} of {world}: {} {said}", output.status)));
        }
        words.push(said);
    }
    let equal = words.iter().all(|said| *said == words[0]);
    Ok(Outcome::of(equal, if equal { words.remove(0) } else { format!("the ranks differ: {words:?}") }))
}

/// A process that `ranks` has started.
pub struct Rank {
    case: String,
    rank: usize,
    world: usize,
    port: u16,
}

impl Rank {
    pub fn from_env() -> Option<Self> {
        let case = std::env::var(CASE).ok()?;
        let number = |key: &str| std::env::var(key).ok()?.parse::<usize>().ok();
        let port = u16::try_from(number("MASTER_PORT")?).ok()?;
        Some(Self { case, rank: number("RANK")?, world: number("WORLD_SIZE")?, port })
    }

    /// Makes the check; prints what was seen, which must be the same on all ranks.
    pub fn run(&self) -> ExitCode {
        let seen = self.join().and_then(|group| match self.case.as_str() {
            "nccl" => collectives(&group, Device::Cuda(self.rank)),
            _ => train(&group, Device::Cuda(self.rank)),
        });
        match seen {
            Ok(Ok(seen)) => {
                println!("{seen}");
                ExitCode::SUCCESS
            }
            Ok(Err(wrong)) => {
                println!("{wrong}");
                ExitCode::FAILURE
            }
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        }
    }

    fn join(&self) -> Result<ProcessGroup> {
        let cuda = Cuda::load()?;
        let store = Store::tcp("127.0.0.1", self.port, self.world, false, TIMEOUT)?;
        let settings = NcclSettings { high_priority_stream: true, ..Default::default() };
        let group = ProcessGroup::gloo(store, self.rank, self.world, TIMEOUT)?;
        cuda.nccl(&group, self.rank, TIMEOUT, &settings)?;
        Ok(group)
    }
}

/// What was right, or what was wrong.
type Seen = std::result::Result<String, String>;

fn collectives(group: &ProcessGroup, gpu: Device) -> Result<Seen> {
    let world = group.world() as f64;
    let mut wrong = Vec::new();
    for kind in [Kind::Float, Kind::BFloat16, Kind::Half, Kind::Int64] {
        let mut value = Tensor::full([1 << 20], group.rank() as i64 + 1, (kind, gpu));
        group.all_reduce(&mut value, Op::Sum)?;
        let sum = value.narrow(0, 0, 1).to_kind(Kind::Double).sum(Kind::Double).double_value(&[]);
        if sum != world * (world + 1.0) / 2.0 {
            wrong.push(format!("all_reduce of {kind:?} gave {sum}"));
        }
    }
    let mut mean = Tensor::full([8], group.rank() as f64, (Kind::Float, gpu));
    group.all_reduce(&mut mean, Op::Avg)?;
    let mut root = Tensor::full([8], group.rank() as f64 + 5.0, (Kind::Float, gpu));
    group.broadcast(&mut root, 0)?;
    let all = group.all_gather(&Tensor::full([2], group.rank() as f64, (Kind::Float, gpu)))?;
    let first = |tensor: &Tensor| tensor.to_kind(Kind::Double).double_value(&[0]);
    for (name, seen, expected) in [
        ("the mean", first(&mean), (world - 1.0) / 2.0),
        ("broadcast", first(&root), 5.0),
        ("all_gather", first(&all[all.len() - 1]), world - 1.0),
    ] {
        if seen != expected {
            wrong.push(format!("{name} gave {seen}, not {expected}"));
        }
    }
    let host = group.all_gather_i64(&[group.rank() as i64])?;
    if host.len() != group.world() {
        wrong.push("Gloo beside NCCL gave another world".into());
    }
    group.barrier()?;
    let text = format!("{} rank(s): sums, mean, broadcast, all_gather, Gloo beside it", group.world());
    Ok(if wrong.is_empty() { Ok(text) } else { Err(wrong.join("; ")) })
}

const WIDTH: i64 = 512;

fn model(device: Device, seed: i64) -> (nn::VarStore, nn::Sequential) {
    tch::manual_seed(seed);
    let vs = nn::VarStore::new(device);
    let root = vs.root();
    let layer = |name: &str| nn::linear(&root / name, WIDTH, WIDTH, Default::default());
    let net =
        nn::seq().add(layer("a")).add_fn(|x| x.relu()).add(layer("b")).add_fn(|x| x.relu()).add(layer("c"));
    (vs, net)
}

fn loss(net: &nn::Sequential, x: &Tensor) -> Tensor {
    (net.forward(x) - x.sin()).square().mean(Kind::Float)
}

fn train(group: &ProcessGroup, gpu: Device) -> Result<Seen> {
    let mut seen = Vec::new();
    for (name, compression, most) in [("fp32", Compression::None, 1e-4), ("bf16", Compression::Bf16, 2e-2)] {
        let (vs, net) = model(gpu, 10 + group.rank() as i64);
        let parameters = vs.trainable_variables();
        let settings =
            DdpSettings { bucket_bytes: 1 << 20, compression, sample_every: 1, ..Default::default() };
        let ddp = Ddp::new(group, &parameters, &[], &settings)?;
        let Ok(mut optimizer) = (nn::Sgd { momentum: 0.9, ..Default::default() }).build(&vs, 0.01) else {
            return Ok(Err("no optimizer".into()));
        };
        let mut worst = 0f64;
        for step in 0..6 {
            tch::manual_seed(100 + step);
            let whole = Tensor::randn([64, WIDTH], (Kind::Float, gpu));
            let rows = 64 / group.world() as i64;
            zero_grads(&parameters, false)?;
            let local = ddp.forward(|| loss(&net, &whole.narrow(0, group.rank() as i64 * rows, rows)))?;
            ddp.backward(&local)?;
            let (mut copy, copy_net) = model(gpu, 0);
            if copy.copy(&vs).is_err() {
                return Ok(Err("no copy of the model".into()));
            }
            loss(&copy_net, &whole).backward();
            for (ours, theirs) in parameters.iter().zip(copy.trainable_variables()) {
                let scale = theirs.grad().abs().max().double_value(&[]);
                worst = worst.max((ours.grad() - theirs.grad()).abs().max().double_value(&[]) / scale);
            }
            optimizer.step();
        }
        // TF32 and the order of summation make the difference; wrong gradients are off by their own size.
        if worst > most {
            return Ok(Err(format!("{name}: gradients are off by {worst:e} of the largest")));
        }
        let stats = ddp.stats()?;
        if stats.last.backward_compute_ns == 0 || stats.last.backward_comm_ns == 0 {
            return Ok(Err(format!("{name}: the logger measured nothing: {stats:?}")));
        }
        let sums: Vec<f64> =
            parameters.iter().map(|p| p.to_kind(Kind::Double).sum(Kind::Double).double_value(&[])).collect();
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let all = group.all_gather_bytes(&bytes)?;
        if all.iter().any(|theirs| *theirs != bytes) {
            return Ok(Err(format!("{name}: the ranks' parameters differ")));
        }
        seen.push(name);
    }
    Ok(Ok(format!("{} rank(s), {}: gradients and parameters agree", group.world(), seen.join(" and "))))
}
