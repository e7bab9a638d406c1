//! The models, behind one type: what a step, an evaluation and a checkpoint need to know of any of them.
//!
//! A model is made from [`ModelSettings`], which are plain data: they are kept in checkpoints, and equal
//! settings mean the same tensors. [`resolve`] makes them from the flags and a dataset's schema, together
//! with the columns that the model takes; it is where a model and a dataset that do not fit are refused.
//!
//! Parameters start from the seed, alike on every rank and on every device: they are drawn on the CPU.
//!
//! * [`convnet`]: 28 x 28 digits. [`resnet`]: images. [`mlp`]: tables. [`gpt`]: tokens.
//! * [`args`]: the flags.

pub(crate) mod args;
pub(crate) mod convnet;
pub(crate) mod gpt;
pub(crate) mod mlp;
pub(crate) mod resnet;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Debug;

use anyhow::Result;
use arrow::datatypes::Schema;
use forebay_client::loader::Packing;
use serde::{Deserialize, Serialize};
use tch::nn::{BatchNormConfig, Init, VarStore};
use tch::{Device, Kind, Tensor};

use crate::input::{Columns, Input, Role};
use crate::train::optim::NamedTensor;
use args::{ModelArgs, ModelName};
use gpt::GptSettings;
use mlp::{MlpSettings, Task};
use resnet::{Depth, ResnetSettings};

/// The layers of a model.
pub trait Network: Debug {
    /// The output for a batch of `B` rows: logits `[B, classes]` of images (`[B, 784]` bytes for the convnet,
    /// `[B, C, H, W]` bytes for the ResNets) or of features `[B, F]`; numbers `[B, 1]` for a regression;
    /// logits `[B, T, vocab]` of tokens `[B, T + 1]`. `training` turns on batch statistics.
    fn forward(&self, input: &Input, training: bool) -> Result<Tensor>;
}

/// A network with its parameters, its loss and its measure of quality.
#[derive(Debug)]
pub struct Model {
    settings: ModelSettings,
    vars: VarStore,
    pub(crate) network: Box<dyn Network>,
}

impl Model {
    /// What it was made from.
    pub fn settings(&self) -> &ModelSettings {
        &self.settings
    }

    /// Where its parameters and buffers live.
    pub fn vars(&self) -> &VarStore {
        &self.vars
    }

    /// As [`Network::forward`].
    pub fn forward(&self, input: &Input, training: bool) -> Result<Tensor> {
        self.network.forward(input, training)
    }

    /// The loss of each row, `[B]`, from the output of [`Model::forward`]. That of a text is the mean over
    /// its tokens.
    pub fn row_losses(&self, output: &Tensor, input: &Input) -> Result<Tensor> {
        match self.metric() {
            Metric::Accuracy => cross_entropies(output, input.get(Role::Label)?),
            Metric::SquaredError => {
                Ok((output.squeeze_dim(1).to_kind(Kind::Float) - input.get(Role::Label)?).square())
            }
            Metric::Perplexity => {
                let targets = input.get(Role::Tokens)?.narrow(1, 1, output.size()[1]).to_kind(Kind::Int64);
                let losses = cross_entropies(&output.flatten(0, 1), &targets.flatten(0, 1))?;
                let losses = losses.view_as(&targets);
                Ok(match (input.find(Role::Documents), input.find(Role::Lengths)) {
                    (Some(documents), _) => mean_within(&losses, documents),
                    (None, Some(lengths)) => mean_of_first(&losses, &(lengths - 1)),
                    (None, None) => losses.mean_dim(1, false, Kind::Float),
                })
            }
        }
    }

    /// The score of each row that the evaluation averages, `[B]`, from the output of [`Model::forward`]: 1
    /// for a class that is found and 0 for another, else the loss.
    pub fn row_scores(&self, output: &Tensor, input: &Input) -> Result<Tensor> {
        match self.metric() {
            Metric::Accuracy => {
                Ok(output.f_argmax(-1, false)?.f_eq_tensor(input.get(Role::Label)?)?.to_kind(Kind::Float))
            }
            _ => self.row_losses(output, input),
        }
    }

    /// What the average of the scores measures. It follows from the model, of an mlp from its task.
    pub fn metric(&self) -> Metric {
        match self.settings {
            ModelSettings::Mlp(MlpSettings { task: Task::Regression, .. }) => Metric::SquaredError,
            ModelSettings::Gpt(_) => Metric::Perplexity,
            _ => Metric::Accuracy,
        }
    }
}

/// The settings of a model: which one, and of which size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ModelSettings {
    /// A [`convnet::ConvNet`]; it comes in one size.
    Convnet,
    /// A [`resnet::Resnet`] of some depth, for images of some kind.
    Resnet(ResnetSettings),
    /// A [`mlp::Mlp`] with layers of some widths, for a task.
    Mlp(MlpSettings),
    /// A [`gpt::Gpt`] of some width and depth, for a context.
    Gpt(GptSettings),
}

/// How a model's quality is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The share of rows whose class is found.
    Accuracy,
    /// The mean of the squared errors of a regression, in the square of the label's unit.
    SquaredError,
    /// e to the mean loss of a token.
    Perplexity,
}

impl Metric {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::SquaredError => "squared error",
            Self::Perplexity => "perplexity",
        }
    }

    /// The measure from the mean of all rows' scores.
    pub fn of_mean(self, mean: f64) -> f64 {
        match self {
            Self::Accuracy | Self::SquaredError => mean,
            Self::Perplexity => mean.exp(),
        }
    }

    /// For people: `98.88 %`.
    pub fn say(self, value: f64) -> String {
        match self {
            Self::Accuracy => format!("{:.2} %", 100.0 * value),
            Self::SquaredError | Self::Perplexity => format!("{value:.4}"),
        }
    }
}

impl ModelSettings {
    /// The model's name, as `--model` takes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Convnet => "convnet",
            Self::Resnet(ResnetSettings { depth: Depth::Resnet18, .. }) => "resnet18",
            Self::Resnet(_) => "resnet50",
            Self::Mlp(_) => "mlp",
            Self::Gpt(_) => "gpt",
        }
    }

    /// A fresh model on `device`, its parameters drawn from `seed`.
    pub fn build(&self, seed: u64, device: Device) -> Result<Model> {
        let mut vars = VarStore::new(Device::Cpu);
        let root = vars.root();
        let network = seeded(seed, || -> Result<Box<dyn Network>> {
            Ok(match self {
                Self::Convnet => Box::new(convnet::ConvNet::fresh(&root)),
                Self::Resnet(settings) => Box::new(resnet::Resnet::fresh(&root, settings, device)),
                Self::Mlp(settings) => Box::new(mlp::Mlp::fresh(&root, settings)),
                Self::Gpt(settings) => Box::new(gpt::Gpt::fresh(&root, *settings)?),
            })
        })?;
        vars.set_device(device);
        Ok(Model { settings: self.clone(), vars, network })
    }

    /// Rows that a pass of training needs at least: a batch norm knows no spread of one.
    pub fn rows_min(&self) -> i64 {
        match self {
            Self::Resnet(_) | Self::Mlp(_) => 2,
            Self::Convnet | Self::Gpt(_) => 1,
        }
    }
}

/// What the training data says about a model's settings where the flags do not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DataFacts {
    /// How many classes the label has, if it has any: what `--classes` says, or one more than its largest
    /// value.
    pub classes: i64,
    /// The means of columns whose nulls they stand for.
    pub means: HashMap<String, f64>,
    /// How the documents are packed, if they are.
    pub packing: Option<Packing>,
}

/// The model that the flags ask for on a dataset of this schema, and what it takes of it. The error names the
/// shape that the dataset has and the one that the model takes.
pub fn resolve(
    args: &ModelArgs,
    facts: &DataFacts,
    schema: &Schema,
    uri: &str,
) -> Result<(ModelSettings, Columns)> {
    let (model, columns) = unfilled(args, facts, schema, uri)?;
    Ok((model, columns.filled(&args.fill, &facts.means)?))
}

/// As [`resolve`], but with nothing in place of nulls.
pub fn unfilled(
    args: &ModelArgs,
    facts: &DataFacts,
    schema: &Schema,
    uri: &str,
) -> Result<(ModelSettings, Columns)> {
    let (model, columns) = match args.model {
        ModelName::Convnet => (ModelSettings::Convnet, convnet::columns(args)),
        ModelName::Resnet18 => resnet::resolve(args, Depth::Resnet18, facts, schema, uri)?,
        ModelName::Resnet50 => resnet::resolve(args, Depth::Resnet50, facts, schema, uri)?,
        ModelName::Mlp => mlp::resolve(args, facts, schema, uri)?,
        ModelName::Gpt => gpt::resolve(args, schema, uri)?,
    };
    columns.check(schema, uri)?;
    Ok((model, columns))
}

/// Runs `f`, whose random numbers follow from `seed`. libtorch has one generator for all threads of the
/// process, so only one at a time may draw from a seed.
pub(crate) fn seeded<R>(seed: u64, f: impl FnOnce() -> R) -> R {
    static DRAWING: Mutex<()> = Mutex::new(());
    let _drawing = DRAWING.lock();
    tch::manual_seed(seed as i64);
    f()
}

/// The parameters with their names, in the order of their creation, which is the same on every rank.
pub fn parameters(vars: &VarStore) -> Vec<NamedTensor> {
    let names: HashMap<_, _> =
        vars.variables().into_iter().map(|(name, tensor)| (tensor.data_ptr() as usize, name)).collect();
    let named = |parameter: Tensor| {
        // Every trainable variable of a `VarStore` has its name there.
        let name = names.get(&(parameter.data_ptr() as usize)).cloned().unwrap_or_default();
        (name, parameter)
    };
    vars.trainable_variables().into_iter().map(named).collect()
}

/// What a model keeps besides its parameters (running means and the like), sorted by name.
pub fn buffers(vars: &VarStore) -> Vec<NamedTensor> {
    let trained: Vec<_> =
        vars.trainable_variables().iter().map(|tensor| tensor.data_ptr() as usize).collect();
    let is_buffer = |(_, tensor): &NamedTensor| !trained.contains(&(tensor.data_ptr() as usize));
    let mut buffers: Vec<_> = vars.variables().into_iter().filter(is_buffer).collect();
    buffers.sort_by(|a, b| a.0.cmp(&b.0));
    buffers
}

/// FNV-1a over the bits of all parameters: equal on two ranks exactly when their parameters are (up to
/// chance).
pub fn parameter_hash(vars: &VarStore) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for parameter in vars.trainable_variables() {
        let flat = parameter.detach().to_device(Device::Cpu).to_kind(Kind::Float).flatten(0, -1);
        let mut values = vec![0f32; flat.numel()];
        flat.copy_data(&mut values, flat.numel());
        for byte in values.iter().flat_map(|value| value.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// The cross entropy of each row, `[B]`, for logits `[B, classes]` and labels `[B]`.
fn cross_entropies(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    Ok(logits.f_cross_entropy_loss::<Tensor>(labels, None, tch::Reduction::None, -100, 0.0)?)
}

/// The mean of the first values of each row, `[B]`, of `[B, T]` values and `[B]` counts; 0 where there are
/// none.
fn mean_of_first(values: &Tensor, counts: &Tensor) -> Tensor {
    let places = Tensor::arange(values.size()[1], (Kind::Int64, values.device()));
    let is_behind = places.ge_tensor(&counts.unsqueeze(1));
    values.masked_fill(&is_behind, 0).sum_dim_intlist(1, false, Kind::Float) / counts.clamp_min(1)
}

/// The mean of those values of each row, `[B]`, of `[B, T]`, that are of a token of the same document as the
/// one before it, by `[B, T + 1]` numbers of documents; 0 where there are none.
fn mean_within(values: &Tensor, documents: &Tensor) -> Tensor {
    let length = values.size()[1];
    let before = documents.narrow(1, 0, length);
    let is_within = before.eq_tensor(&documents.narrow(1, 1, length)).logical_and(&before.ge(0));
    let counts = is_within.sum_dim_intlist(1, false, Kind::Int64);
    values.masked_fill(&is_within.logical_not(), 0).sum_dim_intlist(1, false, Kind::Float)
        / counts.clamp_min(1)
}

/// As PyTorch starts batch norms: tch draws their weights at random.
fn batch_norm() -> BatchNormConfig {
    BatchNormConfig { ws_init: Init::Const(1.0), ..Default::default() }
}

#[cfg(test)]
mod tests;
