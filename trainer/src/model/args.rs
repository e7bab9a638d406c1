//! The flags that say what is trained, and on which columns.

use clap::{Args, ValueEnum};

/// Which model, of which size, on which columns.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// What to train
    #[arg(long, value_enum, default_value_t)]
    pub model: ModelName,
    /// Column of images: 784 unsigned bytes each for the convnet, 28 x 28, row by row
    #[arg(long, value_name = "NAME", default_value = "image")]
    pub image_column: String,
    /// Column of labels: integers from 0 on
    #[arg(long, value_name = "NAME", default_value = "label")]
    pub label_column: String,
}

/// The models there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// A small convolutional network for 28 x 28 greyscale digits
    #[default]
    Convnet,
}

impl ModelArgs {
    /// Refuses what contradicts itself.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.image_column != self.label_column,
            "--image-column and --label-column name the same column"
        );
        Ok(())
    }

    /// The columns that the model reads.
    pub fn column_names(&self) -> Vec<String> {
        match self.model {
            ModelName::Convnet => vec![self.image_column.clone(), self.label_column.clone()],
        }
    }
}
