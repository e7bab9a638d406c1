//! `forebay free`: drop a dataset from the cache, from every node of it.

use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::Node;
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
    /// FreeReport in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FreeReport {
    uri: String,
    segments: u64,
    bytes: u64,
}

impl Free {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
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
            return write_json(
                out,
                &FreeReport { uri: self.uri, segments: reply.segments, bytes: reply.bytes },
            );
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
