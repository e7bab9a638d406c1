//! `forebay free`: drop a dataset from the cache, on every node of it.

use crate::failure::Failure;
use crate::fan_out::{ask_all, check};
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::{Node, survey};
use forebay_proto::v1;
use serde_json::json;

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

impl Free {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        let uri = &self.uri;
        let (replies, failed) = ask_all(&topology, |node: Node| async move {
            node.reply(node.client().free(v1::FreeRequest { uri: uri.clone() })).await
        })
        .await;
        let segments: u64 = replies.iter().map(|reply| reply.segments).sum();
        let bytes: u64 = replies.iter().map(|reply| reply.bytes).sum();
        let done = check("freed", replies.len(), &failed);
        match (self.json, segments) {
            _ if replies.is_empty() => {}
            (true, _) => {
                let report = json!({"uri": uri, "segments": segments, "bytes": bytes, "failed": failed});
                write_json(out, &report)?;
            }
            (false, 0) => writeln!(out, "{uri}: the cache held nothing of it")?,
            (false, n) => {
                writeln!(out, "{uri}: freed {}, {}", figures::of(n, "segment"), figures::bytes(bytes))?;
            }
        }
        done
    }
}
