//! `forebay free`: drop a dataset from the cache, on every node of it.

use crate::failure::Failure;
use crate::fan_out::{FailedNode, FanOut, check};
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::survey;
use forebay_proto::v1;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct Free {
    /// Dataset to drop
    uri: String,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FreeReport {
    uri: String,
    segments: u64,
    bytes: u64,
    failed: Vec<FailedNode>,
}

impl Free {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        let uri = &self.uri;
        let FanOut { replies, failed } = FanOut::ask(&topology, |node| async move {
            let request = v1::FreeRequest { uri: uri.clone() };
            let reply = node.client().free(request).await.map_err(|s| node.error(s))?;
            Ok(reply.into_inner())
        })
        .await;
        let segments: u64 = replies.iter().map(|reply| reply.segments).sum();
        let bytes: u64 = replies.iter().map(|reply| reply.bytes).sum();
        let Self { uri, json, .. } = self;
        let done = check("freed", replies.len(), &failed);
        match (json, segments) {
            _ if replies.is_empty() => {}
            (true, _) => write_json(out, &FreeReport { uri, segments, bytes, failed })?,
            (false, 0) => writeln!(out, "{uri}: the cache held nothing of it")?,
            (false, n) => {
                writeln!(out, "{uri}: freed {}, {}", figures::of(n, "segment"), figures::bytes(bytes))?;
            }
        }
        done
    }
}
