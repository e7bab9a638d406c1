//! The flags that choose the model and the columns that it reads.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use super::mlp::Task;
use crate::input::fill::FillRule;
use crate::input::image::ImageArgs;

/// Which model, of which size, on which columns.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// What to train
    #[arg(long, value_enum, default_value_t)]
    pub model: ModelName,
    /// Column of images: raw pixels, or JPEG or PNG files, also in a struct with a field `bytes`; for the
    /// convnet 784 bytes each, 28 x 28, row by row. Any column may be a field of a struct: image.bytes
    #[arg(long, value_name = "NAME", default_value = "image")]
    pub image_column: String,
    /// Column of labels: integers from 0 on, or numbers with --task regression
    #[arg(long, value_name = "NAME", default_value = "label")]
    pub label_column: String,
    /// Number of classes of the label [default: as many as the training dataset has; 10 for the convnet]
    #[arg(long, value_name = "N")]
    pub classes: Option<i64>,
    /// Columns that the mlp reads: numbers, booleans, dates and times, or lists of them of a fixed length
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    pub feature_columns: Vec<String>,
    /// What stands for nulls and NaNs: a number, or the mean of the column in the training dataset; for one
    /// column, as in price=0 or age=mean, or for all features that have no rule of their own, as in 0
    #[arg(long, value_name = "COLUMN=VALUE,..", value_delimiter = ',', allow_hyphen_values = true)]
    pub fill: Vec<FillRule>,
    /// What the mlp finds
    #[arg(long, value_enum, default_value_t)]
    pub task: Task,
    /// Widths of the mlp's inner layers
    #[arg(long, value_name = "N,M,..", value_delimiter = ',', default_value = "64,64")]
    pub hidden: Vec<i64>,
    /// Column of tokens for the gpt: lists of integers, one more per row than the context is long; with
    /// --context of any length: longer rows are cut, shorter ones padded
    #[arg(long, value_name = "NAME", default_value = "tokens")]
    pub token_column: String,
    /// Token behind the end of rows that are shorter than the context; nothing is learnt of it
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub pad_token: i64,
    /// Pack rows of any length: the gpt's documents make sequences of exactly --context tokens, with nothing
    /// seen or predicted across their borders
    #[arg(long, requires = "context")]
    pub pack: bool,
    /// Number of different tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub vocab: i64,
    /// Tokens that the gpt reads at once [default: what the column holds, less one]
    #[arg(long, value_name = "N")]
    pub context: Option<i64>,
    /// Blocks of the gpt
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub layers: i64,
    /// Attention heads of each block
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub heads: i64,
    /// Width of the gpt: a multiple of the heads
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub width: i64,
    #[command(flatten)]
    pub image: ImageArgs,
}

/// What `--model` takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// A small convolutional network for 28 x 28 greyscale digits
    #[default]
    Convnet,
    /// A residual network of 18 layers, for images
    Resnet18,
    /// A residual network of 50 layers, for images
    Resnet50,
    /// A multi-layer perceptron, for tables
    Mlp,
    /// A small decoder-only transformer, for tokens
    Gpt,
}

impl ModelArgs {
    /// Refuses what contradicts itself.
    pub fn check(&self) -> Result<()> {
        self.image.check()?;
        ensure!(!self.pack || self.model == ModelName::Gpt, "--pack is for the documents of a --model gpt");
        ensure!(self.classes.is_none_or(|n| n > 1), "--classes must be at least 2");
        ensure!(self.hidden.iter().all(|width| *width > 0), "--hidden must be widths of at least 1");
        let names = self.columns();
        for (index, (flag, name)) in names.iter().enumerate() {
            if let Some((other, _)) = names[..index].iter().find(|(_, own)| own == name) {
                anyhow::bail!("{other} and {flag} name the same column");
            }
        }
        Ok(())
    }

    /// Whether the number of classes is to be found in the data.
    pub fn infers_classes(&self) -> bool {
        let has_classes = match self.model {
            ModelName::Resnet18 | ModelName::Resnet50 => true,
            ModelName::Mlp => self.task == Task::Classification,
            ModelName::Convnet | ModelName::Gpt => false,
        };
        has_classes && self.classes.is_none()
    }

    /// The columns that the model reads, or fields of them by their paths.
    pub fn column_names(&self) -> Vec<String> {
        self.columns().into_iter().map(|(_, name)| name.to_owned()).collect()
    }

    /// The same with the flags that choose them.
    fn columns(&self) -> Vec<(&'static str, &str)> {
        let label = ("--label-column", self.label_column.as_str());
        match self.model {
            ModelName::Convnet | ModelName::Resnet18 | ModelName::Resnet50 => {
                vec![("--image-column", &self.image_column), label]
            }
            ModelName::Mlp => {
                let features = self.feature_columns.iter().map(|name| ("--feature-columns", name.as_str()));
                features.chain([label]).collect()
            }
            ModelName::Gpt => vec![("--token-column", &self.token_column)],
        }
    }
}
