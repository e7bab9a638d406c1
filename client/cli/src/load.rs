//! `forebay load`: fill the cache with a dataset, each node with what it owns, and show how far it is.

use crate::failure::Failure;
use crate::figures;
use crate::open::open;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::fan_out::FailedNode;
use forebay_client::fill::{Filled, fill};
use forebay_client::{Access, DatasetSpec};
use forebay_proto::v1;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

/// Plain progress lines come no faster than this.
const LINE_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON, when done
    #[arg(long)]
    json: bool,
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
        let mut shown = Progress::new();
        let endpoints = self.endpoint.endpoints()?;
        let dataset = open(&Access::Endpoint(endpoints.clone()), &self.dataset).await?;
        let filled = fill(&endpoints, &dataset, |progress| shown.show(progress)).await?;
        shown.bar.finish_and_clear();
        let uri = self.dataset.uri.as_str();
        let done = filled.check(uri);
        if filled.failed.is_empty() {
            done.clone()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let Filled { progress, nodes, failed } = filled;
        if self.json && failed.len() < nodes {
            write_json(out, &LoadReport { uri, seconds, progress, failed })?;
            return Ok(done?);
        }
        done?;
        writeln!(
            out,
            "{uri}: held, {}, {} decoded, {} from S3, {seconds:.1} s",
            figures::of(progress.segments_held, "segment"),
            figures::bytes(progress.decoded_bytes_held),
            figures::bytes(progress.s3_bytes)
        )?;
        Ok(())
    }
}

/// A bar on a terminal, a line now and then elsewhere; both on standard error.
struct Progress {
    bar: ProgressBar,
    /// The time of the last line.
    line: Option<Instant>,
}

impl Progress {
    fn new() -> Self {
        let style = "{bar:40} {percent:>3} %  {msg}  {elapsed} (eta {eta})";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: ProgressBar::new(0).with_style(style), line: None }
    }

    fn show(&mut self, p: &v1::LoadProgress) {
        if !self.bar.is_hidden() {
            self.bar.set_length(p.decoded_bytes_total);
            self.bar.set_position(p.decoded_bytes_total * p.segments_read / p.segments_total.max(1));
            self.bar.set_message(line(p));
        } else if self.line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.line = Some(Instant::now());
            // Progress that nobody reads is no reason to stop.
            writeln!(std::io::stderr(), "{}", line(p)).ok();
        }
    }
}

fn line(p: &v1::LoadProgress) -> String {
    let lost = match p.segments_read.saturating_sub(p.segments_held) {
        0 => String::new(),
        _ => format!(", {} read", figures::count(p.segments_read)),
    };
    format!(
        "{} of {} segments held{lost}, {} of {}, {} from S3",
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
        assert_eq!(line(&p), "4 of 20 segments held, 18 read, 85.0 MB of 424.0 MB, 319.0 MB from S3");
    }
}
