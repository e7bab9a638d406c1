//! `forebay-parity FOLDER MODEL STEPS`: the Rust half of `make parity`, which runs the same training in Rust
//! and in Python and compares the parameters bit for bit. Python's half is `tests/parity/train.py`.
//!
//! Without `RANK` in its environment it writes what both halves start from: the model's first parameters and
//! its batches, as raw numbers. With it (torchrun sets it) it is one rank: it trains and, on rank 0, leaves
//! the parameters in `MODEL.rust.parameters` and the milliseconds of each step in `MODEL.rust.steps`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use forebay_c10d::{Ddp, DdpSettings, ProcessGroup, Store, foreach, zero_grads};
use tch::nn::{self, ModuleT};
use tch::{Device, Kind, Tensor};

type Anything<T> = Result<T, Box<dyn std::error::Error>>;

const TIMEOUT: Duration = Duration::from_secs(120);
/// The same numbers in `tests/parity/train.py`.
const LR: f64 = 0.01;
const MOMENTUM: f64 = 0.9;
/// Different global batches, taken in turn.
const BATCHES: i64 = 4;

/// A network and the shape of its batches.
struct Net {
    vs: nn::VarStore,
    net: Box<dyn ModuleT>,
    /// Rows of a global batch.
    rows: i64,
    image: [i64; 3],
}

impl Net {
    fn new(name: &str) -> Anything<Self> {
        tch::manual_seed(1);
        let vs = nn::VarStore::new(Device::Cpu);
        let root = vs.root();
        let conv = || nn::ConvConfig { padding: 1, ..Default::default() };
        Ok(match name {
            "convnet" => {
                let net = nn::seq_t()
                    .add(nn::conv2d(&root / "0", 1, 8, 3, conv()))
                    .add_fn(|x| x.relu().max_pool2d_default(2))
                    .add(nn::conv2d(&root / "2", 8, 16, 3, conv()))
                    .add_fn(|x| x.relu().max_pool2d_default(2).flatten(1, -1))
                    .add(nn::linear(&root / "4", 784, 64, Default::default()))
                    .add_fn(|x| x.relu())
                    .add(nn::linear(&root / "6", 64, 10, Default::default()));
                Self { vs, net: Box::new(net), rows: 128, image: [1, 28, 28] }
            }
            "resnet18" => {
                let net = tch::vision::resnet::resnet18(&root, 1000);
                Self { vs, net: Box::new(net), rows: 8, image: [3, 64, 64] }
            }
            other => return Err(format!("no model `{other}`: convnet or resnet18").into()),
        })
    }

    /// Parameters with their names, in the order of their creation.
    fn parameters(&self) -> Vec<(String, Tensor)> {
        let all = self.vs.variables();
        let name = |parameter: &Tensor| {
            all.iter()
                .find(|(_, tensor)| tensor.data_ptr() == parameter.data_ptr())
                .map(|(name, _)| name.clone())
        };
        let named = |parameter: Tensor| (name(&parameter).unwrap_or_default(), parameter);
        self.vs.trainable_variables().into_iter().map(named).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        let mut buffers: Vec<_> =
            self.vs.variables().into_iter().filter(|(_, tensor)| !tensor.requires_grad()).collect();
        buffers.sort_by(|a, b| a.0.cmp(&b.0));
        buffers.into_iter().map(|(_, tensor)| tensor).collect()
    }

    fn inputs_shape(&self) -> [i64; 5] {
        let [channels, height, width] = self.image;
        [BATCHES, self.rows, channels, height, width]
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-parity: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Anything<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, name, steps] = arguments.as_slice() else {
        return Err("usage: forebay-parity FOLDER MODEL STEPS".into());
    };
    let file = |what: &str| Path::new(folder).join(format!("{name}.{what}"));
    tch::set_num_threads(1);
    let net = Net::new(name)?;
    if std::env::var_os("RANK").is_none() {
        return export(&net, &file);
    }
    forebay_c10d::init_logging()?;
    train(&net, &file, steps.parse()?)
}

/// Writes names and values of the parameters, and the batches.
fn export(net: &Net, file: &dyn Fn(&str) -> PathBuf) -> Anything<()> {
    let parameters = net.parameters();
    let names: Vec<_> =
        parameters.iter().map(|(name, tensor)| format!("{name} {}\n", tensor.numel())).collect();
    std::fs::write(file("names"), names.concat())?;
    std::fs::write(file("parameters"), bytes(&parameters)?)?;
    let shape = net.inputs_shape();
    let inputs = Tensor::f_randn(shape, (Kind::Float, Device::Cpu))?;
    std::fs::write(file("inputs"), bytes(&[(String::new(), inputs)])?)?;
    let labels = Tensor::f_randint(10, [BATCHES, net.rows], (Kind::Int64, Device::Cpu))?;
    let labels: Vec<i64> = Vec::try_from(labels.flatten(0, -1))?;
    std::fs::write(file("labels"), labels.iter().flat_map(|label| label.to_le_bytes()).collect::<Vec<_>>())?;
    let shape: Vec<_> = shape.iter().map(i64::to_string).collect();
    std::fs::write(file("shape"), shape.join(" "))?;
    Ok(())
}

fn train(net: &Net, file: &dyn Fn(&str) -> PathBuf, steps: i64) -> Anything<()> {
    let group = join()?;
    let shape = net.inputs_shape();
    let inputs = floats(&file("inputs"))?.f_view(shape)?;
    let labels: Vec<_> = std::fs::read(file("labels"))?
        .chunks_exact(8)
        .map(|b| b.try_into().map(i64::from_le_bytes))
        .collect::<Result<_, _>>()?;
    let labels = Tensor::from_slice(&labels).f_view([shape[0], shape[1]])?;
    let rows = net.rows / group.world() as i64;
    let part = |batches: &Tensor, step: i64| {
        batches.get(step % BATCHES).narrow(0, group.rank() as i64 * rows, rows).contiguous()
    };

    let named = net.parameters();
    load(&named, &floats(&file("parameters"))?)?;
    let parameters: Vec<_> = named.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
    let ddp = Ddp::new(&group, &parameters, &net.buffers(), &DdpSettings::default())?;
    let mut momenta: Vec<Tensor> = Vec::new();
    let mut milliseconds = Vec::new();
    for step in 0..steps {
        let (x, y) = (part(&inputs, step), part(&labels, step));
        let began = Instant::now();
        zero_grads(&parameters, true)?;
        let loss = ddp.forward(|| {
            let logits = net.net.forward_t(&x, true);
            logits.cross_entropy_loss::<Tensor>(&y, None, tch::Reduction::Mean, -100, 0.0)
        })?;
        ddp.backward(&loss)?;
        // SGD as torch.optim.SGD has it: the first momentum is the gradient itself.
        let gradients: Vec<_> = parameters.iter().map(Tensor::grad).collect();
        if momenta.is_empty() {
            momenta = gradients.iter().map(|gradient| gradient.detach().copy()).collect();
        } else {
            foreach::scale(&momenta, MOMENTUM)?;
            foreach::add_scaled(&momenta, &gradients, 1.0)?;
        }
        foreach::add_scaled(&parameters, &momenta, -LR)?;
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3);
    }
    group.barrier()?;
    if group.rank() == 0 {
        std::fs::write(file("rust.parameters"), bytes(&named)?)?;
        let lines: Vec<_> = milliseconds.iter().map(|value| format!("{value:.4}\n")).collect();
        std::fs::write(file("rust.steps"), lines.concat())?;
    }
    Ok(())
}

/// torchrun's contract.
fn join() -> Anything<ProcessGroup> {
    let text =
        |key: &str| std::env::var(key).map_err(|_| format!("{key} is not set: start ranks by torchrun"));
    let (rank, world): (usize, usize) = (text("RANK")?.parse()?, text("WORLD_SIZE")?.parse()?);
    let agent = std::env::var("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|value| value == "True");
    let (host, port) = (text("MASTER_ADDR")?, text("MASTER_PORT")?.parse()?);
    let store = Store::tcp(&host, port, world, rank == 0 && !agent, TIMEOUT)?;
    Ok(ProcessGroup::gloo(store, rank, world, TIMEOUT)?)
}

/// The values of all tensors, one after the other.
fn bytes(named: &[(String, Tensor)]) -> Anything<Vec<u8>> {
    let mut all = Vec::new();
    for (_, tensor) in named {
        let values: Vec<f32> = Vec::try_from(tensor.detach().contiguous().flatten(0, -1))?;
        all.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(all)
}

fn floats(file: &Path) -> Anything<Tensor> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let values: Vec<f32> =
        bytes.chunks_exact(4).map(|b| b.try_into().map(f32::from_le_bytes)).collect::<Result<_, _>>()?;
    Ok(Tensor::from_slice(&values))
}

/// Puts `values`, one parameter after the other, into the parameters.
fn load(named: &[(String, Tensor)], values: &Tensor) -> Anything<()> {
    let mut start = 0;
    for (_, parameter) in named {
        let count = parameter.numel() as i64;
        let value = values.f_narrow(0, start, count)?.f_view(parameter.size().as_slice())?;
        tch::no_grad(|| parameter.shallow_clone().f_copy_(&value).map(drop))?;
        start += count;
    }
    Ok(())
}
