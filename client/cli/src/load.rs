//! `forebay load`: fill the cache with a dataset, each node with what it owns, and show how far it is.

use crate::dataset_args::DatasetArgs;
use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::Access;
use forebay_client::Dataset;
use forebay_client::Endpoints;
use forebay_client::Node;
use forebay_client::args::EndpointArgs;
use forebay_client::survey;
use forebay_proto::ring::{Balance, Ring};
use forebay_proto::{Error, Result, v1};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::select_all;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Plain progress lines come no faster than this.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// How long a node of several may take to say that it serves; else the others fill its share.
const ALIVE: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    dataset: DatasetArgs,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// LoadReport in JSON, when done
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct LoadReport<'a> {
    uri: &'a str,
    seconds: f64,
    segments_total: u64,
    segments_held: u64,
    decoded_bytes_total: u64,
    decoded_bytes_held: u64,
    s3_bytes: u64,
}

impl Load {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let started = Instant::now();
        let mut shown = Progress::new();
        let last = self.fill(&mut shown).await?;
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
            let answer = LoadReport {
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

impl Load {
    /// Has each node fill what it owns, all at once; answers with the sums at the end.
    async fn fill(&self, shown: &mut Progress) -> Result<v1::LoadProgress> {
        let endpoints = self.endpoint.endpoints()?;
        let shares = self.shares(&endpoints).await?;
        let mut parts = vec![v1::LoadProgress::default(); shares.len()];
        let mut streams = Vec::new();
        for (i, (node, segments)) in shares.into_iter().enumerate() {
            let request = v1::LoadRequest {
                dataset: Some(self.dataset.spec().to_wire()),
                columns: self.dataset.columns.clone().unwrap_or_default(),
                segments: segments.into(),
            };
            let stream = node.client().load(request).await.map_err(|s| node.error(s))?.into_inner();
            streams.push(stream.map(move |p| (i, p.map_err(|s| node.error(s)))));
        }
        let mut all = select_all(streams);
        while let Some((i, progress)) = all.next().await {
            parts[i] = progress?;
            shown.show(&sum(&parts));
        }
        Ok(sum(&parts))
    }

    /// The nodes that answer, and which segments each shall fill, as a ticket's bits; empty = all.
    async fn shares(&self, endpoints: &Endpoints) -> Result<Vec<(Node, Vec<u8>)>> {
        let mut topology = survey::topology(endpoints).await?;
        if topology.nodes.len() < 2 {
            return Ok(vec![(endpoints.answering().await?, Vec::new())]);
        }
        let alive = join_all(topology.nodes.iter().map(|node| async {
            let node = Node::new(&node.address)?;
            Ok(node.is_serving(ALIVE).await.then_some(node))
        }));
        let alive = alive.await.into_iter().collect::<Result<Vec<_>>>()?;
        let mut alive = alive.into_iter();
        let mut nodes = Vec::new();
        topology.nodes.retain(|_| alive.next().flatten().map(|node| nodes.push(node)).is_some());
        let dataset = Dataset::open(&Access::Endpoint(endpoints.clone()), &self.dataset.spec()).await?;
        let manifest = dataset.manifest();
        let count = manifest.segments().len();
        let mut bits = vec![vec![0u8; count.div_ceil(8)]; nodes.len()];
        let (ring, balance) = (Ring::new(&topology.nodes), Balance::of(&topology.nodes, [&**manifest]));
        for segment in 0..count {
            if let Some(owner) = balance.owner(&ring, manifest.segment_id(segment as u32)?) {
                bits[owner][segment / 8] |= 1 << (segment % 8);
            }
        }
        let owns = |(_, bits): &(Node, Vec<u8>)| bits.iter().any(|byte| *byte > 0);
        Ok(nodes.into_iter().zip(bits).filter(owns).collect())
    }
}

fn sum(parts: &[v1::LoadProgress]) -> v1::LoadProgress {
    parts.iter().fold(v1::LoadProgress::default(), |a, b| v1::LoadProgress {
        segments_total: a.segments_total + b.segments_total,
        segments_held: a.segments_held + b.segments_held,
        decoded_bytes_total: a.decoded_bytes_total + b.decoded_bytes_total,
        decoded_bytes_held: a.decoded_bytes_held + b.decoded_bytes_held,
        s3_bytes: a.s3_bytes + b.s3_bytes,
    })
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
