//! `forebay load`: fill the cache with a dataset, and show how far it is.

use super::failure::Failure;
use super::{DatasetArgs, EndpointArgs, Out, figures, write_json};
use clap::Args;
use forebay_proto::{Error, v1};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Plain progress lines come no faster than this.
const LINE_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct Load {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON, when done
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    uri: &'a str,
    seconds: f64,
    segments_total: u64,
    segments_held: u64,
    decoded_bytes_total: u64,
    decoded_bytes_held: u64,
    s3_bytes: u64,
}

impl Load {
    pub(super) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let node = self.endpoint.endpoints()?.answering().await?;
        let started = Instant::now();
        let request = v1::LoadRequest {
            dataset: Some(self.dataset.spec().to_wire()),
            columns: self.dataset.columns.clone().unwrap_or_default(),
        };
        let mut stream = node.client().load(request).await.map_err(|s| node.error(s))?.into_inner();
        let mut shown = Progress::new();
        let mut last = v1::LoadProgress::default();
        while let Some(p) = stream.message().await.map_err(|s| node.error(s))? {
            shown.show(&p);
            last = p;
        }
        shown.done();
        let uri = self.dataset.uri.as_str();
        if last.segments_held < last.segments_total {
            return Err(Error::full(format!(
                "{uri}: the cache holds {} of {} segments: give it more room, or load fewer columns",
                last.segments_held, last.segments_total
            ))
            .into());
        }
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let answer = Answer {
                uri,
                seconds,
                segments_total: last.segments_total,
                segments_held: last.segments_held,
                decoded_bytes_total: last.decoded_bytes_total,
                decoded_bytes_held: last.decoded_bytes_held,
                s3_bytes: last.s3_bytes,
            };
            return write_json(out, &answer);
        }
        writeln!(
            out,
            "{uri}: held, {}, {} decoded, {} from S3, {seconds:.1} s",
            figures::of(last.segments_held, "segment"),
            figures::bytes(last.decoded_bytes_held),
            figures::bytes(last.s3_bytes)
        )?;
        Ok(())
    }
}

/// A bar on a terminal, a line now and then elsewhere; both on standard error.
enum Progress {
    Bar(ProgressBar),
    Lines(Option<Instant>),
}

impl Progress {
    fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Progress::Lines(None);
        }
        let bar = ProgressBar::new(0);
        let style = "{bar:40} {percent:>3} %  {msg}  {elapsed} (eta {eta})";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress::Bar(bar)
    }

    fn show(&mut self, p: &v1::LoadProgress) {
        match self {
            Progress::Bar(bar) => {
                bar.set_length(p.decoded_bytes_total);
                bar.set_position(p.decoded_bytes_held);
                bar.set_message(line(p));
            }
            Progress::Lines(last) if last.is_none_or(|at| at.elapsed() >= LINE_EVERY) => {
                *last = Some(Instant::now());
                // Progress that nobody reads is no reason to stop.
                writeln!(std::io::stderr(), "{}", line(p)).ok();
            }
            Progress::Lines(_) => {}
        }
    }

    fn done(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn line(p: &v1::LoadProgress) -> String {
    format!(
        "{} of {} segments, {} of {}, {} from S3",
        figures::count(p.segments_held),
        figures::count(p.segments_total),
        figures::bytes(p.decoded_bytes_held),
        figures::bytes(p.decoded_bytes_total),
        figures::bytes(p.s3_bytes)
    )
}
