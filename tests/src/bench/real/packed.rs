//! A small gpt on ragged lists of tokens, through a warm node: documents packed into sequences beside
//! documents padded to the context, one a row.

use crate::bench::train::trainer;
use crate::harness::check::Findings;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use anyhow::Context;
use arrow::array::{ArrayRef, ListArray};
use arrow::datatypes::Int32Type;
use serde::Deserialize;
use std::sync::Arc;

const DOCUMENTS: f64 = 3_000.0;
const OBJECTS: usize = 4;
const VOCABULARY: usize = 97;

/// The least and the most tokens of a document; half of them have fewer than 70.
const TOKENS: (f64, f64) = (1.0, 4_000.0);

const LINE: &str = "--model gpt --vocab 97 --context 256 --layers 2 --heads 4 --width 64 --batch 16 --optimizer adamw \
                    --lr 0.001 --epochs 2";

/// An epoch, as the trainer reports it.
#[derive(Debug, Clone, Copy, Deserialize)]
struct TextEpoch {
    tokens_per_s: f64,
    padding_share: f64,
    samples: u64,
    loss: f64,
}

pub fn run(rounds: u32, scale: f64) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let each = ((DOCUMENTS * scale) as usize).div_ceil(OBJECTS);
    for object in 0..OBJECTS {
        s3.put(&format!("documents/{object}.parquet"), documents(object * each..(object + 1) * each)?);
    }
    let node = ServerOptions::for_s3(&s3).try_start()?;
    let uri = s3.uri("documents");
    Run::find("forebay")?.args(["load", &uri, "--endpoint", &node.endpoint]).stdout()?;
    let (mut packed, mut padded, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        // The order turns, so that neither is always first.
        let one = |packs| train(&node, &uri, packs);
        let (first, second) = (one(round % 2 == 0)?, one(round % 2 == 1)?);
        let (of_packed, of_padded) = if round % 2 == 0 { (first, second) } else { (second, first) };
        for epochs in [&of_packed, &of_padded] {
            let [before, after] = epochs[..] else { anyhow::bail!("two epochs, not {epochs:?}") };
            anyhow::ensure!(
                after.samples == (each * OBJECTS) as u64,
                "an epoch of {} documents",
                after.samples
            );
            anyhow::ensure!(after.loss < before.loss, "nothing was learnt: {epochs:?}");
        }
        // The second epoch: the first one warms the process up.
        packed.push(of_packed[1].tokens_per_s);
        padded.push(of_padded[1].tokens_per_s);
        shares.push((of_packed[1].padding_share, of_padded[1].padding_share));
    }
    node.try_stop()?;
    let mut found = Findings::default();
    let of_padded = Row::of("real_padded_tokens_per_s", "tokens/s", &padded);
    let of_packed = Row::of("real_packed_tokens_per_s", "tokens/s", &packed);
    let (share_of_packed, share_of_padded): (Vec<f64>, Vec<f64>) = shares.into_iter().unzip();
    found.rows.extend([
        of_packed.against("one document a row, padded", of_padded.value),
        of_padded,
        Row::of("real_packed_padding", "share of the places", &share_of_packed),
        Row::of("real_padded_padding", "share of the places", &share_of_padded),
    ]);
    Ok(found)
}

/// An object of documents whose lengths are spread as those of web pages are: most short, some long.
fn documents(rows: std::ops::Range<usize>) -> anyhow::Result<Vec<u8>> {
    let mut dice = fastrand::Rng::with_seed(rows.start as u64);
    let texts: Vec<_> = rows
        .map(|row| {
            // The mean of some even draws is near a normal one; its power of e is spread like lengths.
            let normal = (0..12).map(|_| dice.f64()).sum::<f64>() - 6.0;
            let length = (4.2 + 0.9 * normal).exp().clamp(TOKENS.0, TOKENS.1) as usize;
            Some(
                (0..length)
                    .map(|at| Some(((row + at * (1 + row % 3)) % VOCABULARY) as i32))
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(texts));
    super::files::parquet(vec![("tokens".to_owned(), list)], 500)
}

/// The epochs of a training run.
fn train(node: &Server, uri: &str, packs: bool) -> anyhow::Result<Vec<TextEpoch>> {
    let folder = tempfile::tempdir()?;
    let mut line: Vec<&str> = vec!["--train", uri, "--endpoint", &node.endpoint];
    line.extend(LINE.split_whitespace());
    line.extend(packs.then_some("--pack"));
    let (report, _) = trainer::report(line, folder.path())?;
    serde_json::from_value(report["epochs"].clone()).context("the epochs of the trainer's report")
}
