//! Residual networks for images `[B, C, H, W]` (He et al. 2015), with the layers, names and first values of
//! torchvision's.
//!
//! Table 1 of the paper: a stem (7 x 7 convolution, stride 2, 64 channels; 3 x 3 max pooling, stride 2), then
//! four stages of 64, 128, 256 and 512 channels at 1/4, 1/8, 1/16 and 1/32 of the side, then the mean of each
//! channel and a linear layer. ResNet-18 has 2, 2, 2, 2 blocks of two 3 x 3 convolutions; ResNet-50 has 3, 4,
//! 6, 3 bottlenecks of 1 x 1, 3 x 3 and 1 x 1, the last one 4 times as wide. As in torchvision a bottleneck's
//! stride is in its 3 x 3 convolution.

use anyhow::Result;
use arrow::datatypes::Schema;
use forebay_images::ImageSettings;
use serde::{Deserialize, Serialize};
use tch::nn::{self, Init, Module, ModuleT};
use tch::{Device, Tensor};

use super::args::ModelArgs;
use super::{DataFacts, ModelSettings, Network};
use crate::input::image::{self, Normalise, files_in};
use crate::input::{Columns, Input, Role, Takes};

/// How deep a ResNet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Depth {
    /// 18 layers: 11.7 million parameters with 1,000 classes.
    Resnet18,
    /// 50 layers: 25.6 million parameters with 1,000 classes.
    Resnet50,
}

/// The size of a ResNet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResnetSettings {
    /// How many blocks the stages have, and of which kind.
    pub depth: Depth,
    /// Outputs of the last layer, one for each class.
    pub classes: i64,
    /// The images that it takes.
    pub image: ImageSettings,
    /// How bytes become numbers.
    pub normalise: Normalise,
}

/// The network, which normalises the bytes of images by itself.
#[derive(Debug)]
pub struct Resnet {
    /// Mean and deviation of each channel, `[1, channels, 1, 1]`, in bytes.
    mean: Tensor,
    deviation: Tensor,
    stem: Convolution,
    blocks: Vec<ResidualBlock>,
    out: nn::Linear,
}

/// A convolution and the batch norm behind it.
#[derive(Debug)]
struct Convolution {
    conv: nn::Conv2D,
    norm: nn::BatchNorm,
}

#[derive(Debug)]
struct ResidualBlock {
    convolutions: Vec<Convolution>,
    /// Where the shape changes.
    shortcut: Option<Convolution>,
}

/// The model for a dataset of this schema, and what it takes of it.
pub(super) fn resolve(
    args: &ModelArgs,
    depth: Depth,
    facts: &DataFacts,
    schema: &Schema,
    uri: &str,
) -> Result<(ModelSettings, Columns)> {
    let column = files_in(&args.image_column, schema);
    let image = image::resolve(&args.image, &column, schema, uri)?;
    let classes = facts.classes;
    let normalise = Normalise::of(&args.image, image.channels)?;
    let columns = Columns::default()
        .with(Role::Image, &column, "--image-column", Takes::Image(image.clone()))
        .with(Role::Label, &args.label_column, "--label-column", Takes::Class { classes });
    Ok((ModelSettings::Resnet(ResnetSettings { depth, classes, image, normalise }), columns))
}

impl Depth {
    /// Blocks of each of the four stages.
    fn blocks(self) -> [i64; 4] {
        match self {
            Self::Resnet18 => [2, 2, 2, 2],
            Self::Resnet50 => [3, 4, 6, 3],
        }
    }

    /// How many times wider than its inside a block's output is.
    fn expansion(self) -> i64 {
        match self {
            Self::Resnet18 => 1,
            Self::Resnet50 => 4,
        }
    }
}

impl Resnet {
    /// A fresh network, its parameters drawn from libtorch's generator.
    pub(super) fn fresh(root: &nn::Path<'_>, settings: &ResnetSettings, device: Device) -> Self {
        let depth = settings.depth;
        let stem = Convolution::new(root / "conv1", root / "bn1", settings.image.channels, 64, (7, 2));
        let mut blocks = Vec::new();
        let mut from = 64;
        for (stage, count) in depth.blocks().into_iter().enumerate() {
            let inside = 64 << stage;
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let path = root / format!("layer{}", stage + 1) / index.to_string();
                blocks.push(ResidualBlock::new(&path, depth, from, inside, stride));
                from = inside * depth.expansion();
            }
        }
        let out = nn::linear(root / "fc", from, settings.classes, Default::default());
        let bytes = |values: &[f64]| {
            let values: Vec<_> = values.iter().map(|value| (255.0 * value) as f32).collect();
            Tensor::from_slice(&values).view([1, -1, 1, 1]).to_device(device)
        };
        let (mean, deviation) = (bytes(&settings.normalise.mean), bytes(&settings.normalise.std));
        Self { mean, deviation, stem, blocks, out }
    }
}

impl Convolution {
    /// `size` is the kernel's side and the stride.
    fn new(conv: nn::Path<'_>, norm: nn::Path<'_>, from: i64, to: i64, (side, stride): (i64, i64)) -> Self {
        let ws_init = Init::Kaiming {
            dist: nn::init::NormalOrUniform::Normal,
            fan: nn::init::FanInOut::FanOut,
            non_linearity: nn::init::NonLinearity::ReLU,
        };
        let config = nn::ConvConfig { stride, padding: side / 2, bias: false, ws_init, ..Default::default() };
        Self {
            conv: nn::conv2d(conv, from, to, side, config),
            norm: nn::batch_norm2d(norm, to, super::batch_norm()),
        }
    }

    fn forward(&self, x: &Tensor, training: bool) -> Tensor {
        self.norm.forward_t(&self.conv.forward(x), training)
    }
}

impl ResidualBlock {
    fn new(path: &nn::Path<'_>, depth: Depth, from: i64, inside: i64, stride: i64) -> Self {
        let to = inside * depth.expansion();
        let sizes = match depth {
            Depth::Resnet18 => vec![(from, inside, (3, stride)), (inside, to, (3, 1))],
            Depth::Resnet50 => {
                vec![(from, inside, (1, 1)), (inside, inside, (3, stride)), (inside, to, (1, 1))]
            }
        };
        let convolution = |(index, (from, to, size)): (usize, (i64, i64, (i64, i64)))| {
            let number = index + 1;
            Convolution::new(path / format!("conv{number}"), path / format!("bn{number}"), from, to, size)
        };
        let convolutions = sizes.into_iter().enumerate().map(convolution).collect();
        let shortcut = (stride != 1 || from != to).then(|| {
            let path = path / "downsample";
            Convolution::new(&path / "0", &path / "1", from, to, (1, stride))
        });
        Self { convolutions, shortcut }
    }

    fn forward(&self, x: &Tensor, training: bool) -> Tensor {
        let mut y = x.shallow_clone();
        for (index, convolution) in self.convolutions.iter().enumerate() {
            y = convolution.forward(&if index == 0 { y } else { y.relu() }, training);
        }
        match &self.shortcut {
            Some(shortcut) => (y + shortcut.forward(x, training)).relu(),
            None => (y + x).relu(),
        }
    }
}

impl Network for Resnet {
    /// Logits `[B, classes]` of images `[B, channels, height, width]` of bytes.
    fn forward(&self, input: &Input, training: bool) -> Result<Tensor> {
        let x = (input.get(Role::Image)? - &self.mean) / &self.deviation;
        let x = self.stem.forward(&x, training).relu().max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&x, training));
        Ok(self.out.forward(&x.adaptive_avg_pool2d([1, 1]).flatten(1, -1)))
    }
}
