//! `forebay load`: fill the cache with a dataset, each node with what it owns, and show how far it is.

use crate::failure::Failure;
use crate::fan_out::{FailedNode, check};
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::survey::ask_each;
use forebay_client::{Access, Dataset, DatasetSpec, Endpoints, Node, survey};
use forebay_proto::ring::{Balance, Ring};
use forebay_proto::{Error, Result, SegmentSet, v1};
use futures::stream::select_all;
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

/// Plain progress lines come no faster than this.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// How long a node of several may take to say that it serves; without an answer the others fill its share.
const ALIVE: Duration = Duration::from_secs(3);

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

/// What one node is to fill.
struct Share {
    node: v1::Node,
    client: Node,
    segments: SegmentSet,
}

impl Load {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let started = Instant::now();
        let mut shown = Progress::new();
        let (last, nodes, failed) = self.fill(&mut shown).await?;
        shown.bar.finish_and_clear();
        let uri = self.dataset.uri.as_str();
        let done = check("loaded", nodes - failed.len(), &failed);
        if done.is_ok() && last.segments_held < last.segments_total {
            return Err(Error::full(format!(
                "{uri}: the cache holds {} of {} segments: give it more room, or load fewer columns",
                last.segments_held, last.segments_total
            ))
            .into());
        }
        let seconds = started.elapsed().as_secs_f64();
        if self.json && failed.len() < nodes {
            write_json(out, &LoadReport { uri, seconds, progress: last, failed })?;
            return done;
        }
        done?;
        writeln!(
            out,
            "{uri}: held, {}, {} decoded, {} from S3, {seconds:.1} s",
            figures::of(last.segments_held, "segment"),
            figures::bytes(last.decoded_bytes_held),
            figures::bytes(last.s3_bytes)
        )?;
        Ok(())
    }

    /// Has each node fill its share, all at once. A node that fails keeps no other from filling its own.
    /// What all of them hold then, how many they were, and those that failed.
    async fn fill(&self, shown: &mut Progress) -> Result<(v1::LoadProgress, usize, Vec<FailedNode>)> {
        let endpoints = self.endpoint.endpoints()?;
        let shares = self.shares(&endpoints).await?;
        let streams = shares.iter().enumerate().map(|(i, share)| {
            let request = v1::LoadRequest {
                dataset: Some(self.dataset.to_wire()),
                columns: self.dataset.columns.clone().unwrap_or_default(),
                segments: share.segments.to_wire().into(),
            };
            let node = share.client.clone();
            let opened = async move {
                let stream = node.reply(node.client().load(request)).await?;
                Ok::<_, Error>(stream.map_err(move |s| node.error(s)))
            };
            opened.try_flatten_stream().map(move |progress| (i, progress)).boxed()
        });
        let mut all = select_all(streams);
        let (mut parts, mut failed) = (vec![v1::LoadProgress::default(); shares.len()], Vec::new());
        while let Some((i, progress)) = all.next().await {
            match progress {
                Ok(progress) => {
                    parts[i] = progress;
                    shown.show(&sum(&parts));
                }
                Err(e) => failed.push(FailedNode::new(&shares[i].node, &e)),
            }
        }
        Ok((sum(&parts), shares.len(), failed))
    }

    /// The nodes that answer, and the segments that each is to fill: those that it owns when the others are
    /// left out.
    async fn shares(&self, endpoints: &Endpoints) -> Result<Vec<Share>> {
        let mut topology = survey::topology(endpoints).await?;
        if topology.nodes.len() < 2 {
            let node = topology.nodes.pop().unwrap_or_default();
            let client = endpoints.answering().await?;
            return Ok(vec![Share { node, client, segments: SegmentSet::all(0) }]);
        }
        let is_alive = |node: Node| async move { Ok(node.is_serving(ALIVE).await.then_some(node)) };
        let alive = ask_each(&topology, Duration::MAX, is_alive).await;
        let (mut nodes, mut clients) = (Vec::new(), Vec::new());
        for (node, client) in alive {
            if let Some(client) = client? {
                nodes.push(node);
                clients.push(client);
            }
        }
        let dataset = Dataset::open(&Access::Endpoint(endpoints.clone()), &self.dataset).await?;
        let manifest = &dataset.manifest;
        let count = manifest.segments().len() as u32;
        let mut owned = vec![SegmentSet::new(count); clients.len()];
        let (ring, balance) = (Ring::new(&nodes), Balance::of(&nodes, [&**manifest]));
        for segment in 0..count {
            if let Some(owner) = balance.owner(&ring, manifest.segment_id(segment)?) {
                owned[owner].insert(segment);
            }
        }
        let shares = nodes.into_iter().zip(clients).zip(owned);
        let shares = shares.map(|((node, client), segments)| Share { node, client, segments });
        Ok(shares.filter(|share| !share.segments.is_empty()).collect())
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
            self.bar.set_position(p.decoded_bytes_held);
            self.bar.set_message(line(p));
        } else if self.line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.line = Some(Instant::now());
            // Progress that nobody reads is no reason to stop.
            writeln!(std::io::stderr(), "{}", line(p)).ok();
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
