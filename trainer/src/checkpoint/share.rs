//! Gives every rank what rank 0 read.

use anyhow::{Context, Result, ensure};
use forebay_c10d::ProcessGroup;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::meta::Meta;
use super::state::{Checkpoint, NamedTensors};

/// What travels ahead of the tensors.
#[derive(Serialize, Deserialize)]
struct Head {
    meta: Meta,
    weights: Vec<TensorShape>,
    training: Vec<TensorShape>,
}

/// A tensor's name, kind and sizes.
#[derive(Serialize, Deserialize)]
struct TensorShape(String, String, Vec<i64>);

/// The kinds that a checkpoint's files can hold.
const KINDS: [Kind; 10] = [
    Kind::Bool,
    Kind::Uint8,
    Kind::Int8,
    Kind::Int16,
    Kind::Int,
    Kind::Int64,
    Kind::BFloat16,
    Kind::Half,
    Kind::Float,
    Kind::Double,
];

/// Rank 0's checkpoint, if it has one, on every rank. Collective.
pub fn share(group: &ProcessGroup, own: Option<Checkpoint>) -> Result<Option<Checkpoint>> {
    if group.world() == 1 {
        return Ok(own);
    }
    let first = group.rank() == 0;
    let head = match &own {
        Some(checkpoint) => serde_json::to_vec(&Head {
            meta: checkpoint.meta.clone(),
            weights: shapes(&checkpoint.weights),
            training: shapes(&checkpoint.training),
        })?,
        None => Vec::new(),
    };
    let mut length = Tensor::from_slice(&[head.len() as i64]);
    group.broadcast(&mut length, 0)?;
    let length = length.int64_value(&[0]);
    if length == 0 {
        return Ok(None);
    }
    let mut bytes = if first { Tensor::from_slice(&head) } else { empty(length) };
    group.broadcast(&mut bytes, 0)?;
    let head: Head =
        serde_json::from_slice(&Vec::<u8>::try_from(&bytes)?).context("the checkpoint's head")?;
    let (weights, training) = match own {
        Some(checkpoint) => (Some(checkpoint.weights), Some(checkpoint.training)),
        None => (None, None),
    };
    Ok(Some(Checkpoint {
        weights: tensors(group, &head.weights, weights)?,
        training: tensors(group, &head.training, training)?,
        meta: head.meta,
    }))
}

fn shapes(tensors: &NamedTensors) -> Vec<TensorShape> {
    let shape = |(name, tensor): &(String, Tensor)| {
        TensorShape(name.clone(), format!("{:?}", tensor.kind()), tensor.size())
    };
    tensors.iter().map(shape).collect()
}

fn empty(bytes: i64) -> Tensor {
    Tensor::zeros([bytes], (Kind::Uint8, Device::Cpu))
}

/// Tensors travel as bytes, for gloo does not know every kind.
fn tensors(group: &ProcessGroup, shapes: &[TensorShape], own: Option<NamedTensors>) -> Result<NamedTensors> {
    let mut all = Vec::with_capacity(shapes.len());
    for (at, TensorShape(name, kind, sizes)) in shapes.iter().enumerate() {
        let known = KINDS.into_iter().find(|known| format!("{known:?}") == *kind);
        let kind = known.with_context(|| format!("`{name}` is of the unknown kind {kind}"))?;
        let elements: i64 = sizes.iter().product();
        ensure!(elements >= 0, "`{name}` has the shape {sizes:?}");
        if elements == 0 {
            all.push((name.clone(), Tensor::zeros(sizes, (kind, Device::Cpu))));
            continue;
        }
        let mut bytes = match &own {
            Some(own) => own[at].1.reshape([-1]).view_dtype(Kind::Uint8),
            None => empty(elements * kind.elt_size_in_bytes() as i64),
        };
        group.broadcast(&mut bytes, 0)?;
        all.push((name.clone(), bytes.view_dtype(kind).reshape(sizes)));
    }
    Ok(all)
}
