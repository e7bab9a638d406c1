//! A multi-layer perceptron for tables: numbers in columns to a class, or to a number.
//!
//! Columns of a table live on different scales, so the first layer is a batch norm over them.

use anyhow::{Result, ensure};
use arrow::datatypes::Schema;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tch::nn::{self, Module, ModuleT};

use super::args::ModelArgs;
use super::{DataFacts, ModelSettings, Network};
use crate::input::schema::{kind_of, numbers};
use crate::input::{Columns, Input, Role, Takes};

/// What the model predicts from a table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// A class: the label is an integer from 0 on
    #[default]
    Classification,
    /// A number
    Regression,
}

/// The size of an MLP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlpSettings {
    /// Numbers of a row.
    pub features: i64,
    /// Widths of the layers between.
    pub hidden: Vec<i64>,
    /// Whether the outputs are scores of classes, or one number.
    pub task: Task,
    /// Numbers that come out: the classes, or 1.
    pub outputs: i64,
}

/// A batch norm over the features, and linear layers behind it.
#[derive(Debug)]
pub struct Mlp {
    norm: nn::BatchNorm,
    layers: Vec<nn::Linear>,
}

/// The model for a dataset of this schema, and what it takes of it.
pub(super) fn resolve(
    args: &ModelArgs,
    facts: &DataFacts,
    schema: &Schema,
    uri: &str,
) -> Result<(ModelSettings, Columns)> {
    ensure!(
        !args.feature_columns.is_empty(),
        "the mlp needs --feature-columns: the columns it reads, as in a,b,c"
    );
    let mut columns = Columns::default();
    let mut features = 0;
    for name in &args.feature_columns {
        columns = columns.with(Role::Features, name, "--feature-columns", Takes::Numbers);
        features += numbers(kind_of(schema, name, uri)?).unwrap_or(0);
    }
    let (outputs, label) = match args.task {
        Task::Classification => (facts.classes, Takes::Class { classes: facts.classes }),
        Task::Regression => (1, Takes::Number),
    };
    columns = columns.with(Role::Label, &args.label_column, "--label-column", label);
    let settings = MlpSettings { features, hidden: args.hidden.clone(), task: args.task, outputs };
    Ok((ModelSettings::Mlp(settings), columns))
}

impl Mlp {
    /// A fresh network, its parameters drawn from libtorch's generator.
    pub(super) fn fresh(root: &nn::Path<'_>, settings: &MlpSettings) -> Self {
        let norm = nn::batch_norm1d(root / "norm", settings.features, super::batch_norm());
        let widths: Vec<_> =
            [settings.features].iter().chain(&settings.hidden).chain([&settings.outputs]).copied().collect();
        let layer = |(index, pair): (usize, &[i64])| {
            nn::linear(root / format!("layer{index}"), pair[0], pair[1], Default::default())
        };
        let layers = widths.windows(2).enumerate().map(layer).collect();
        Self { norm, layers }
    }
}

impl Network for Mlp {
    /// Logits `[B, classes]`, or numbers `[B, 1]`.
    fn forward(&self, input: &Input, training: bool) -> Result<Tensor> {
        let mut x = self.norm.forward_t(input.get(Role::Features)?, training);
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&if index == 0 { x } else { x.relu() });
        }
        Ok(x)
    }
}
