//! A small GPT: a decoder-only transformer that predicts the next token (Radford et al. 2019, GPT-2; the
//! attention is that of Vaswani et al. 2017, section 3.2).
//!
//! As in GPT-2: the layer norms stand before attention and MLP (`x + f(norm(x))`) and one more behind the
//! last block; the MLP is 4 times as wide inside, with GELU; positions are learnt; the output layer shares
//! its weights with the embedding. GPT-2's smallest has 12 layers, 12 heads, a width of 768 and a context of
//! 1,024; the flags' defaults are far smaller.
//!
//! Each row is `T + 1` tokens, `[B, T + 1]` with `T` = `context`: the first `T` of them are read, the last
//! `T` are to be predicted. Inside, a batch is `[B, T, width]`. A row's loss is the mean over its tokens;
//! padding, which can only stand behind them, is neither predicted nor seen by them. A row of fewer than two
//! tokens has nothing to predict, and a loss of 0.
//!
//! Where documents are packed, a row is a sequence of several: positions begin again with each, a token sees
//! those of its own document alone, and the first one of a document is not predicted.

use anyhow::{Result, bail, ensure};
use arrow::datatypes::{DataType, Schema};
use serde::{Deserialize, Serialize};
use tch::nn::{self, Init, Module};
use tch::{Kind, Tensor};

use super::args::ModelArgs;
use super::{ModelSettings, Network};
use crate::input::schema::{kind_of, shape};
use crate::input::{Columns, Input, Role, Takes};

/// The spread of fresh weights, as in GPT-2.
const INIT_STD: f64 = 0.02;

/// The size of a GPT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptSettings {
    /// Number of different tokens.
    pub vocab: i64,
    /// Tokens read at once.
    pub context: i64,
    /// Transformer blocks.
    pub layers: i64,
    /// Attention heads of each.
    pub heads: i64,
    /// Numbers that stand for a token inside; a multiple of `heads`.
    pub width: i64,
    /// What stands behind the end of rows that are shorter than the context, if they may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pad_token: Option<i64>,
    /// Whether rows are packed to sequences as long as the context.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pack: bool,
}

/// The transformer. Its output layer is the embedding of `tokens`.
#[derive(Debug)]
pub struct Gpt {
    settings: GptSettings,
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<TransformerBlock>,
    norm: nn::LayerNorm,
}

#[derive(Debug)]
struct TransformerBlock {
    norm_1: nn::LayerNorm,
    attention: nn::Linear,
    attention_out: nn::Linear,
    norm_2: nn::LayerNorm,
    hidden: nn::Linear,
    hidden_out: nn::Linear,
}

/// The model for a dataset of this schema, and what it takes of it.
pub(super) fn resolve(args: &ModelArgs, schema: &Schema, uri: &str) -> Result<(ModelSettings, Columns)> {
    let ModelArgs { context, vocab, layers, heads, width, pack, .. } = *args;
    let name = &args.token_column;
    let kind = kind_of(schema, name, uri)?;
    let length = match kind {
        DataType::FixedSizeList(_, length) => i64::from(*length),
        DataType::List(_) | DataType::LargeList(_) => match context {
            Some(context) => context + 1,
            None => bail!(
                "the rows of column `{name}` of {uri} are of varying length: say --context N. Rows of more than \
                 N + 1 tokens are cut, shorter ones are padded with --pad-token; with --pack they make sequences of N"
            ),
        },
        other => bail!(
            "column `{name}` of {uri} is {}, but the gpt takes tokens as integers of a fixed length, such as \
             Int32[{}]: choose another --token-column",
            shape(other),
            context.unwrap_or(256) + 1
        ),
    };
    let is_ragged = !matches!(kind, DataType::FixedSizeList(..));
    ensure!(
        is_ragged || !pack,
        "the rows of column `{name}` of {uri} are {}, all of one length: there is nothing to --pack",
        shape(kind)
    );
    let pad_token = is_ragged.then_some(args.pad_token);
    let context = context.unwrap_or(length - 1);
    let settings = GptSettings { vocab, context, layers, heads, width, pad_token, pack };
    settings.check()?;
    let takes = match pad_token {
        Some(pad) if pack => Takes::PackedTokens { length: context, vocab, pad },
        Some(pad) => Takes::RaggedTokens { length: context + 1, vocab, pad },
        None => Takes::Tokens { length: context + 1, vocab },
    };
    let columns = Columns::default().with(Role::Tokens, name, "--token-column", takes);
    Ok((ModelSettings::Gpt(settings), columns))
}

impl GptSettings {
    /// Refuses a size that cannot be.
    pub fn check(&self) -> Result<()> {
        let Self { vocab, context, layers, heads, width, pad_token, .. } = *self;
        let sizes =
            [("vocab", vocab), ("context", context), ("layers", layers), ("heads", heads), ("width", width)];
        for (name, value) in sizes {
            ensure!(value > 0, "the gpt needs --{name} of at least 1, not {value}");
        }
        let pad = pad_token.unwrap_or(0);
        ensure!(
            (0..vocab).contains(&pad),
            "--pad-token {pad} is no token: --vocab {vocab} ends at {}",
            vocab - 1
        );
        ensure!(width % heads == 0, "--width {width} cannot be shared evenly by {heads} --heads");
        Ok(())
    }
}

impl Gpt {
    /// A fresh network, its parameters drawn from libtorch's generator.
    pub(super) fn fresh(root: &nn::Path<'_>, settings: GptSettings) -> Result<Self> {
        settings.check()?;
        let normal = Init::Randn { mean: 0.0, stdev: INIT_STD };
        let GptSettings { vocab, context, layers, width, .. } = settings;
        let tokens = (root / "wte").var("weight", &[vocab, width], normal);
        let positions = (root / "wpe").var("weight", &[context, width], normal);
        let blocks = (0..layers)
            .map(|index| TransformerBlock::new(root / "h" / index.to_string(), &settings))
            .collect();
        let norm = nn::layer_norm(root / "ln_f", vec![width], Default::default());
        Ok(Self { settings, tokens, positions, blocks, norm })
    }
}

/// What several documents in a sequence mean for a transformer.
#[derive(Debug)]
struct Documents {
    /// The place of each token in its document, or the part of it that the sequence has: `[B, T]`.
    places: Tensor,
    /// Which tokens each one sees: those of its own document up to itself, `[B, 1, T, T]` of booleans.
    seen: Tensor,
}

impl Documents {
    /// Of the numbers of documents, `[B, T + 1]`. Padding counts as one of them.
    fn new(numbers: &Tensor) -> Result<Self> {
        let [_, length] = numbers.size()[..] else { bail!("documents are numbered by [B, T + 1]") };
        let numbers = numbers.narrow(1, 0, length - 1);
        let places = Tensor::f_arange(length - 1, (Kind::Int64, numbers.device()))?;
        let (before, after) = (numbers.narrow(1, 0, length - 2), numbers.narrow(1, 1, length - 2));
        let is_begun = after.f_ne_tensor(&before)?;
        let begins = places.narrow(0, 1, length - 2).f_mul(&is_begun)?;
        let begins = begins.f_constant_pad_nd([1, 0])?.f_cummax(1)?.0;
        let is_own = numbers.unsqueeze(2).f_eq_tensor(&numbers.unsqueeze(1))?;
        Ok(Self { places: places - begins, seen: is_own.f_tril(0)?.unsqueeze(1) })
    }
}

impl TransformerBlock {
    fn new(path: nn::Path<'_>, settings: &GptSettings) -> Self {
        let width = settings.width;
        let linear = |path: nn::Path<'_>, from: i64, to: i64, stdev: f64| {
            let config = nn::LinearConfig {
                ws_init: Init::Randn { mean: 0.0, stdev },
                bs_init: Some(Init::Const(0.0)),
                bias: true,
            };
            nn::linear(path, from, to, config)
        };
        let norm = |name: &str| nn::layer_norm(&path / name, vec![width], Default::default());
        // What adds to the residual stream starts smaller the more of it there is.
        let residual = INIT_STD / ((2 * settings.layers) as f64).sqrt();
        Self {
            norm_1: norm("ln_1"),
            attention: linear(&path / "attn" / "c_attn", width, 3 * width, INIT_STD),
            attention_out: linear(&path / "attn" / "c_proj", width, width, residual),
            norm_2: norm("ln_2"),
            hidden: linear(&path / "mlp" / "c_fc", width, 4 * width, INIT_STD),
            hidden_out: linear(&path / "mlp" / "c_proj", 4 * width, width, residual),
        }
    }

    /// `[B, T, width]` to the same. `seen`: as [`Documents::seen`].
    fn forward(&self, x: &Tensor, heads: i64, seen: Option<&Tensor>) -> Result<Tensor> {
        let x = x + self.attend(&self.norm_1.forward(x), heads, seen)?;
        let hidden = self.hidden.forward(&self.norm_2.forward(&x)).f_gelu("tanh")?;
        Ok(&x + self.hidden_out.forward(&hidden))
    }

    fn attend(&self, x: &Tensor, heads: i64, seen: Option<&Tensor>) -> Result<Tensor> {
        let [rows, context, width] = x.size()[..] else { bail!("the attention takes [B, T, width]") };
        let parts = self.attention.forward(x).f_chunk(3, -1)?;
        let by_head = |part: &Tensor| part.view([rows, context, heads, width / heads]).transpose(1, 2);
        let [q, k, v] = [by_head(&parts[0]), by_head(&parts[1]), by_head(&parts[2])];
        let mixed =
            Tensor::f_scaled_dot_product_attention(&q, &k, &v, seen, 0.0, seen.is_none(), None, false)?;
        Ok(self.attention_out.forward(&mixed.transpose(1, 2).reshape([rows, context, width])))
    }
}

impl Network for Gpt {
    /// Logits `[B, T, vocab]` of tokens `[B, T + 1]`.
    fn forward(&self, input: &Input, _training: bool) -> Result<Tensor> {
        let read = input.get(Role::Tokens)?.narrow(1, 0, self.settings.context).to_kind(Kind::Int64);
        let x = Tensor::f_embedding(&self.tokens, &read, -1, false, false)?;
        let documents = input.find(Role::Documents).map(Documents::new).transpose()?;
        let mut x = match &documents {
            None => x + &self.positions,
            Some(Documents { places, .. }) => {
                x + Tensor::f_embedding(&self.positions, places, -1, false, false)?
            }
        };
        let seen = documents.as_ref().map(|documents| &documents.seen);
        for block in &self.blocks {
            x = block.forward(&x, self.settings.heads, seen)?;
        }
        Ok(self.norm.forward(&x).f_linear::<&Tensor>(&self.tokens, None)?)
    }
}
