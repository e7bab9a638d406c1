//! `forebay-ddp-figures FOLDER`: what `make bench-train` reports of DDP, measured on two ranks over Gloo,
//! into `FOLDER/train-ddp.json`.
//!
//! * `comm_overlap_share`: of the time that gradients of a model of 11.5 million parameters travel, the share
//!   during which the backward pass still computes; c10d's own logger measured it, over the passes after the
//!   first ten.
//! * `accumulation_worst_difference`: gradients of k micro-steps (`no_sync`) against those of the whole batch
//!   at once, the largest difference relative to the largest gradient, for k = 2, 4 and 8.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use forebay_c10d::{Ddp, DdpSettings, ProcessGroup, Store, zero_grads};
use forebay_tests::harness::origin;
use serde_json::{Value, json};
use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

type Anything<T> = Result<T, Box<dyn std::error::Error>>;

const TIMEOUT: Duration = Duration::from_secs(300);
const WORLD: usize = 2;
/// Eight layers of 1,200 x 1,200, and their biases.
const WIDTH: i64 = 1200;
const LAYERS: usize = 8;
/// Rows of each rank: enough computing to hide the communication behind, as in real training.
const ROWS: i64 = 256;
const WARM_UP: usize = 10;
const PASSES: usize = 20;

fn main() -> ExitCode {
    let done = match std::env::var("RANK") {
        Ok(rank) => one_rank(&rank),
        Err(_) => measure(),
    };
    if let Err(error) = done {
        eprintln!("forebay-ddp-figures: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Starts the ranks and writes the report from what the first one prints.
fn measure() -> Anything<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder] = arguments.as_slice() else { return Err("usage: forebay-ddp-figures FOLDER".into()) };
    let store = Store::serve(WORLD, TIMEOUT)?;
    let port = store.port()?.to_string();
    let start = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .envs([("RANK", rank.to_string()), ("MASTER_PORT", port.clone())])
            .envs([("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo"), ("TORCH_CPP_LOG_LEVEL", "ERROR")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    };
    let ranks = (0..WORLD).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut rows = None;
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("rank {rank} ended with {}", output.status).into());
        }
        rows.get_or_insert(String::from_utf8(output.stdout)?);
    }
    let file = Path::new(folder).join("train-ddp.json");
    std::fs::create_dir_all(folder)?;
    let rows = rows.unwrap_or_default();
    print!("{rows}");
    let rows: Vec<&str> = rows.lines().collect();
    let rows = rows.into_iter().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let parameters = LAYERS as i64 * WIDTH * (WIDTH + 1);
    let report = json!({
        "name": "train-ddp", "commit": origin::commit(), "machine": origin::machine(), "rows": rows,
        "settings": {"ranks": WORLD, "backend": "gloo", "parameters": parameters, "rows": ROWS},
    });
    std::fs::write(&file, format!("{report:#}\n"))?;
    println!("report: {}", file.display());
    Ok(())
}

fn one_rank(rank: &str) -> Anything<()> {
    forebay_c10d::init_logging()?;
    tch::set_num_threads(1);
    let (rank, port) = (rank.parse()?, std::env::var("MASTER_PORT")?.parse()?);
    let group =
        ProcessGroup::gloo(Store::tcp("127.0.0.1", port, WORLD, false, TIMEOUT)?, rank, WORLD, TIMEOUT)?;
    let shares = overlap(&group)?;
    println!("{}", row("comm_overlap_share", "share of communication", shares));
    let worst = [2, 4, 8].map(|parts| accumulation(&group, parts));
    let worst = worst.into_iter().collect::<Anything<Vec<f64>>>()?;
    let largest = worst.iter().copied().fold(0.0, f64::max);
    println!("{}", row("accumulation_worst_difference", "of the largest gradient", vec![largest]));
    group.barrier()?;
    Ok(())
}

/// A row of the report, as JSON.
fn row(name: &str, unit: &str, mut runs: Vec<f64>) -> String {
    runs.sort_by(f64::total_cmp);
    let (median, last) = (runs[runs.len() / 2], runs[runs.len() - 1]);
    format!(
        "{{\"name\": \"{name}\", \"value\": {median:e}, \"unit\": \"{unit}\", \"n\": {}, \"min\": {:e}, \"max\": {last:e}}}",
        runs.len(),
        runs[0]
    )
}

fn network(layers: usize, width: i64, seed: i64) -> (nn::VarStore, nn::Sequential) {
    tch::manual_seed(seed);
    let vs = nn::VarStore::new(Device::Cpu);
    let mut net = nn::seq();
    for layer in 0..layers {
        let path = vs.root() / layer.to_string();
        net = net.add(nn::linear(path, width, width, Default::default())).add_fn(|x| x.relu());
    }
    (vs, net)
}

fn loss(net: &nn::Sequential, x: &Tensor) -> Tensor {
    (net.forward(x) - x.sin()).square().mean(Kind::Float)
}

/// The share of each pass.
fn overlap(group: &ProcessGroup) -> Anything<Vec<f64>> {
    let (vs, net) = network(LAYERS, WIDTH, 1);
    let parameters = vs.trainable_variables();
    let settings = DdpSettings { sample_every: 1, ..Default::default() };
    let ddp = Ddp::new(group, &parameters, &[], &settings)?;
    let x = Tensor::randn([ROWS, WIDTH], (Kind::Float, Device::Cpu));
    let mut shares = Vec::new();
    for pass in 0..WARM_UP + PASSES {
        zero_grads(&parameters, true)?;
        let loss = ddp.forward(|| loss(&net, &x))?;
        ddp.backward(&loss)?;
        let last = ddp.stats()?.last;
        if pass >= WARM_UP && last.backward_comm_ns > 0 {
            shares.push(last.backward_overlap_ns as f64 / last.backward_comm_ns as f64);
        }
    }
    if shares.is_empty() {
        return Err("c10d's logger measured no communication".into());
    }
    Ok(shares)
}

/// The largest difference between the gradients of `parts` micro-steps and of the whole batch at once.
fn accumulation(group: &ProcessGroup, parts: i64) -> Anything<f64> {
    let (vs, net) = network(3, 128, 2);
    let parameters = vs.trainable_variables();
    let ddp = Ddp::new(group, &parameters, &[], &DdpSettings::default())?;
    tch::manual_seed(3);
    let whole = Tensor::randn([128, 128], (Kind::Float, Device::Cpu));
    let mine = whole.chunk(WORLD as i64, 0).swap_remove(group.rank());
    let pass = |x: &Tensor, parts: i64| -> Anything<()> {
        let loss = ddp.forward(|| loss(&net, x) / parts as f64)?;
        Ok(ddp.backward(&loss)?)
    };
    pass(&mine, 1)?;
    let at_once: Vec<_> = parameters.iter().map(|p| p.grad().copy()).collect();
    zero_grads(&parameters, false)?;
    let mut pieces = mine.chunk(parts, 0);
    let last = pieces.pop().ok_or("no rows")?;
    ddp.no_sync(|| pieces.iter().try_for_each(|piece| pass(piece, parts)))?;
    pass(&last, parts)?;
    let most = |tensors: &mut dyn Iterator<Item = Tensor>| {
        tensors.map(|tensor| tensor.abs().max().double_value(&[])).fold(0.0, f64::max)
    };
    let difference = most(&mut parameters.iter().zip(&at_once).map(|(p, whole)| p.grad() - whole));
    Ok(difference / most(&mut at_once.iter().map(Tensor::shallow_clone)))
}
