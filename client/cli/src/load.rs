//! `forebay load`: fill the cache with a dataset, or with objects byte for byte, each node with what it owns,
//! and show how far it is.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::open::open;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::fan_out::FailedNode;
use forebay_client::fill::{Filled, fill};
use forebay_client::objects::Objects;
use forebay_client::objects::fill::FilledObjects;
use forebay_client::{Access, DatasetSpec, delay};
use forebay_proto::{Error, v1};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Plain progress lines come no faster than this.
const LINE_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// The objects under the URI byte for byte, whatever they are, rather than a dataset
    #[arg(long)]
    raw: bool,
    /// Answer in JSON, when done
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct RawReport<'a> {
    uri: &'a str,
    seconds: f64,
    #[serde(flatten)]
    filled: FilledObjects,
}

#[derive(Serialize)]
struct LoadReport<'a> {
    uri: &'a str,
    seconds: f64,
    #[serde(flatten)]
    progress: v1::LoadProgress,
    failed: Vec<FailedNode>,
}

impl Load {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let started = Instant::now();
        let endpoints = self.endpoint.endpoints().map_err(usage)?;
        if self.raw {
            return self.load_raw(&Access::Endpoint(endpoints), started, out).await;
        }
        let dataset = open(&Access::Endpoint(endpoints.clone()), &self.dataset).await?;
        let mut shown = Progress::new(store_of(dataset.manifest.uri()));
        let done = AtomicU64::new(0);
        let filling = fill(&endpoints, &dataset, |progress| {
            done.store(progress.segments_read + progress.s3_bytes, Relaxed);
            shown.show(progress);
        });
        let waiting = delay::watch(
            &dataset.access,
            || done.load(Relaxed),
            |waited, why| {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                // Nobody may be there to be told.
                writeln!(std::io::stderr(), "forebay: no data for {} s{why}", waited.as_secs()).ok();
            },
        );
        let filled = tokio::select! {
            filled = filling => filled?,
            never = waiting => match never {},
        };
        shown.bar.finish_and_clear();
        let uri = self.dataset.uri.as_str();
        let done = filled.check(uri);
        if filled.failed.is_empty() {
            done.clone()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let Filled { progress, nodes, failed } = filled;
        // Of a dataset without rows no node has a share.
        if self.json && (failed.is_empty() || failed.len() < nodes) {
            write_json(out, &LoadReport { uri, seconds, progress, failed })?;
            return Ok(done?);
        }
        done?;
        writeln!(
            out,
            "{uri}: held, {}, {} decoded, {} from {}, {seconds:.1} s",
            figures::of(progress.segments_held, "segment"),
            figures::bytes(progress.decoded_bytes_held),
            figures::bytes(progress.s3_bytes),
            shown.store
        )?;
        Ok(())
    }
}

impl Load {
    async fn load_raw(&self, access: &Access, started: Instant, out: Out<'_>) -> Result<(), Failure> {
        let uri = self.dataset.uri.as_str();
        let store = store_of(uri);
        let mut shown = Progress::new(store);
        if self.dataset != (DatasetSpec { uri: uri.to_owned(), ..Default::default() }) {
            let why = "load --raw takes a URI, and no flags that choose rows or columns";
            return Err(Failure::Usage(Error::invalid(why)));
        }
        let show = |p: &FilledObjects| shown.update([p.blocks_read, p.blocks], || raw_line(p, store));
        let filled = Objects::new(access).fill(uri, show).await?;
        shown.bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            write_json(out, &RawReport { uri, seconds, filled })?;
            return Ok(filled.check(uri)?);
        }
        filled.check(uri)?;
        writeln!(
            out,
            "{uri}: held, {} in {}, {}, {} from {store}, {seconds:.1} s",
            figures::of(filled.objects, "object"),
            figures::of(filled.blocks, "block"),
            figures::bytes(filled.bytes),
            figures::bytes(filled.s3_bytes)
        )?;
        Ok(())
    }
}

/// Where bytes come from, for people.
fn store_of(uri: &str) -> &'static str {
    if uri.starts_with("file:") { "files" } else { "S3" }
}

fn raw_line(p: &FilledObjects, store: &str) -> String {
    format!(
        "{} of {} blocks held, {} of {}, {} from {store}",
        figures::count(p.blocks_held),
        figures::count(p.blocks),
        figures::bytes(p.bytes_held),
        figures::bytes(p.bytes),
        figures::bytes(p.s3_bytes)
    )
}

/// A bar on a terminal, a line now and then elsewhere; both on standard error.
struct Progress {
    bar: ProgressBar,
    /// Where bytes come from.
    store: &'static str,
    /// The time of the last line.
    line: Option<Instant>,
}

impl Progress {
    fn new(store: &'static str) -> Self {
        let style = "{bar:40} {percent:>3} %  {msg}  {elapsed} (eta {eta})";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: ProgressBar::new(0).with_style(style), store, line: None }
    }

    fn show(&mut self, p: &v1::LoadProgress) {
        let read = p.decoded_bytes_total * p.segments_read / p.segments_total.max(1);
        let store = self.store;
        self.update([read, p.decoded_bytes_total], || line(p, store));
    }

    /// So much of so much is done.
    fn update(&mut self, [done, all]: [u64; 2], line: impl Fn() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_length(all);
            self.bar.set_position(done);
            self.bar.set_message(line());
        } else if self.line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.line = Some(Instant::now());
            // Progress that nobody reads is no reason to stop.
            writeln!(std::io::stderr(), "{}", line()).ok();
        }
    }
}

fn line(p: &v1::LoadProgress, store: &str) -> String {
    let lost = match p.segments_read.saturating_sub(p.segments_held) {
        0 => String::new(),
        _ => format!(", {} read", figures::count(p.segments_read)),
    };
    format!(
        "{} of {} segments held{lost}, {} of {}, {} from {store}",
        figures::count(p.segments_held),
        figures::count(p.segments_total),
        figures::bytes(p.decoded_bytes_held),
        figures::bytes(p.decoded_bytes_total),
        figures::bytes(p.s3_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_apart_from_what_was_read() {
        let p = v1::LoadProgress {
            segments_total: 20,
            segments_held: 4,
            decoded_bytes_total: 424_000_000,
            decoded_bytes_held: 85_000_000,
            s3_bytes: 319_000_000,
            segments_read: 18,
            dirs_full: 0,
        };
        let told = |uri| line(&p, store_of(uri));
        let held = "4 of 20 segments held, 18 read, 85.0 MB of 424.0 MB, 319.0 MB";
        assert_eq!(told("s3://b/d"), format!("{held} from S3"));
        assert_eq!(told("file:///d"), format!("{held} from files"));
    }
}
