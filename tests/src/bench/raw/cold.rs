//! A cold object read from its beginning to its end, behind an object store that is 30 ms away, beside a
//! direct reader with as many requests at once.

use super::load::get_once;
use super::scale::{RawScale, judge};
use super::stage::{client_of, with_endpoint};
use crate::bench::stages::runtime;
use crate::harness::check::Findings;
use crate::harness::differential::bytes_of;
use crate::harness::process::{Run, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::s3_client::S3Ask;
use crate::harness::slow::{SlowProxy, Slowness};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::time::Instant;

/// What a node has under way at once: 64 MiB in blocks of 4 MiB.
pub const REQUESTS: usize = 16;

const BLOCK: usize = 4 << 20;

/// Runs it.
pub fn run(scale: &RawScale) -> anyhow::Result<Findings> {
    let (s3, folder, runtime) = (S3Server::start(), tempfile::tempdir()?, runtime()?);
    let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
    let size = scale.cold_bytes;
    s3.put("cold", bytes_of(1, size));
    let options = ServerOptions::for_endpoint(&s3, &proxy.endpoint).args(["--cache-bytes", "8GB"]);
    let node = with_endpoint(options, folder.path())?.try_start()?;
    let client = client_of(&node)?;
    let (mut ours, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let free = Run::find("forebay")?.args(["free", &s3.uri("cold"), "--endpoint", &node.endpoint]);
        free.stdout()?;
        let ask = client.sign(&S3Ask::new("GET", format!("/{}/cold", s3.bucket)))?;
        let start = Instant::now();
        let bytes = get_once(&client.endpoint, &ask)?;
        anyhow::ensure!(bytes == size as u64, "{bytes} bytes of {size}");
        ours.push(size as f64 / 1e6 / start.elapsed().as_secs_f64());
        let store = s3.client(&proxy.endpoint)?;
        let start = Instant::now();
        let read = runtime.block_on(async {
            let path = Path::from("cold");
            let starts = (0..size).step_by(BLOCK);
            let get = |at: usize| {
                let (store, path) = (&store, &path);
                async move { store.get_range(path, at as u64..(at + BLOCK).min(size) as u64).await }
            };
            let blocks = stream::iter(starts.map(get)).buffered(REQUESTS);
            blocks.try_fold(0, |sum, bytes| async move { Ok(sum + bytes.len()) }).await
        })?;
        anyhow::ensure!(read == size, "{read} bytes of {size}");
        direct.push(size as f64 / 1e6 / start.elapsed().as_secs_f64());
    }
    node.try_stop()?;
    let mut found = Findings::default();
    let ratios: Vec<f64> = ours.iter().zip(&direct).map(|(ours, direct)| ours / direct).collect();
    let direct = Row::of("raw_direct_mb_per_s", "MB/s", &direct);
    found.rows.push(Row::of("raw_cold_mb_per_s", "MB/s", &ours).against("reading directly", direct.value));
    found.rows.push(direct);
    judge(&mut found, Row::of("raw_cold_vs_direct", "ratio", &ratios), Some(0.9), None);
    Ok(found)
}
