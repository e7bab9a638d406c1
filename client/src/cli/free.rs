//! `forebay free`: drop a dataset from the cache, from every node of it.

use super::failure::Failure;
use super::{EndpointArgs, Out, figures, write_json};
use crate::access::Node;
use crate::survey;
use clap::Args;
use forebay_proto::v1;
use serde::Serialize;

#[derive(Debug, Args)]
pub(super) struct Free {
    /// Dataset to drop
    uri: String,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    uri: String,
    segments: u64,
    bytes: u64,
}

impl Free {
    pub(super) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        let mut reply = v1::FreeReply::default();
        for node in &topology.nodes {
            let node = Node::new(&node.address)?;
            let request = v1::FreeRequest { uri: self.uri.clone() };
            let freed = node.client().free(request).await.map_err(|s| node.error(s))?.into_inner();
            reply.segments += freed.segments;
            reply.bytes += freed.bytes;
        }
        if self.json {
            return write_json(out, &Answer { uri: self.uri, segments: reply.segments, bytes: reply.bytes });
        }
        match reply.segments {
            0 => writeln!(out, "{}: the cache held nothing of it", self.uri)?,
            n => writeln!(
                out,
                "{}: freed {}, {}",
                self.uri,
                figures::of(n, "segment"),
                figures::bytes(reply.bytes)
            )?,
        }
        Ok(())
    }
}
