//! A million keys listed page by page: what the node's memory grows by.

use super::scale::{RawScale, judge};
use super::stage::RawStage;
use crate::harness::check::Findings;
use crate::harness::report::Row;
use crate::harness::s3_client::S3Ask;
use anyhow::Context;
use std::time::Instant;

/// Pages between two looks at the memory.
const LOOK: usize = 20;

/// Runs it.
pub fn run(scale: &RawScale) -> anyhow::Result<Findings> {
    let stage = RawStage::start(|options| options)?;
    for n in 0..scale.keys {
        stage.s3.put(&format!("many/{n:09}/some-name-of-a-usual-length.bin"), "x");
    }
    let client = stage.client()?;
    let resident = || -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", stage.node.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a size")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1000.0)
    };
    let (mut token, mut keys, mut pages, mut most) = (String::new(), 0, 0, 0.0_f64);
    let (before, start) = (resident()?, Instant::now());
    loop {
        let target = format!("/{}?list-type=2&prefix=many/{token}", stage.s3.bucket);
        let reply = stage.runtime.block_on(client.send(&S3Ask::new("GET", target)))?;
        anyhow::ensure!(reply.status == 200, "{reply:?}");
        let text = std::str::from_utf8(&reply.body)?;
        (keys, pages) = (keys + text.matches("<Key>").count(), pages + 1);
        if pages % LOOK == 0 {
            most = most.max(resident()? - before);
        }
        let next = text.split_once("<NextContinuationToken>").and_then(|(_, rest)| rest.split_once("</"));
        match next {
            Some((next, _)) => token = format!("&continuation-token={next}"),
            None => break,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    anyhow::ensure!(keys == scale.keys, "{keys} keys listed");
    let mut found = Findings::default();
    found.value("raw_list_keys_per_s", "keys/s", keys as f64 / seconds);
    most = most.max(resident()? - before);
    judge(&mut found, Row::of("raw_list_memory_mb", "MB", &[most]), None, Some(20.0));
    Ok(found)
}
