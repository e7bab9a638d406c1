//! The models: so far a small convolutional network for 28 x 28 greyscale digits.
//!
//! A model takes the loader's bytes as they are (`[rows, 784]`, unsigned) and normalises them itself, so that an
//! epoch moves one byte per pixel. Parameters start from the seed, alike on every rank.

use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

/// Pixels of one image: 28 rows of 28.
pub const PIXELS: i64 = SIDE * SIDE;
/// Classes of the label: the digits.
pub const CLASSES: i64 = 10;

const SIDE: i64 = 28;
/// Mean and standard deviation of MNIST's training pixels, divided by 255.
const MEAN: f64 = 0.1307;
const STD: f64 = 0.3081;

/// Two convolutions and two linear layers: 52,138 parameters, 98.9 % of MNIST after three epochs.
#[derive(Debug)]
pub struct ConvNet {
    vs: nn::VarStore,
    conv1: nn::Conv2D,
    conv2: nn::Conv2D,
    hidden: nn::Linear,
    out: nn::Linear,
}

impl ConvNet {
    /// A fresh network, its parameters drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        tch::manual_seed(seed as i64);
        let vs = nn::VarStore::new(Device::Cpu);
        let root = vs.root();
        let conv = |stride| nn::ConvConfig { stride, padding: 1, ..Default::default() };
        let conv1 = nn::conv2d(&root / "conv1", 1, 8, 3, conv(1));
        let conv2 = nn::conv2d(&root / "conv2", 8, 16, 3, conv(1));
        let hidden = nn::linear(&root / "hidden", 16 * 7 * 7, 64, Default::default());
        let out = nn::linear(&root / "out", 64, CLASSES, Default::default());
        Self { vs, conv1, conv2, hidden, out }
    }

    /// Where the parameters live; an optimizer is built over it.
    pub fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    /// The parameters, in the order of their creation, which is the same on every rank.
    pub fn parameters(&self) -> Vec<Tensor> {
        self.vs.trainable_variables()
    }

    /// Logits `[rows, 10]` of images `[rows, 784]` of bytes.
    pub fn logits(&self, images: &Tensor) -> Tensor {
        // (x / 255 - mean) / std in one multiplication and one addition; the bytes themselves are shared memory and
        // stay as they are.
        let x = images.to_kind(Kind::Float).view([-1, 1, SIDE, SIDE]);
        let x = x * (1.0 / (255.0 * STD)) - MEAN / STD;
        let x = self.conv1.forward(&x).relu().max_pool2d_default(2);
        let x = self.conv2.forward(&x).relu().max_pool2d_default(2);
        let x = x.flatten(1, -1);
        self.out.forward(&self.hidden.forward(&x).relu())
    }

    /// FNV-1a over the bits of all parameters: equal on two ranks exactly when their parameters are (up to chance).
    pub fn parameter_hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        for parameter in self.parameters() {
            let flat = parameter.detach().flatten(0, -1);
            let mut values = vec![0f32; flat.numel()];
            flat.copy_data(&mut values, flat.numel());
            for byte in values.iter().flat_map(|value| value.to_le_bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        hash
    }
}

/// The cross entropy of each row, `[rows]`, for logits `[rows, 10]` and labels `[rows]`.
pub fn row_losses(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_loss::<Tensor>(labels, None, tch::Reduction::None, -100, 0.0)
}
