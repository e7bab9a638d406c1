//! `forebay pin` and `forebay unpin`: keep what lies under a URI in the cache, on every node of it, and let it go again.

use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::Node;
use forebay_client::args::EndpointArgs;
use forebay_client::survey;
use forebay_proto::{Kind, v1};
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// What to pin or unpin: a dataset, an object, or a prefix of several
    uri: String,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// PinReport in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PinReport {
    uri: String,
    files: u64,
    bytes: u64,
}

impl Pin {
    /// Pins, or with `pinned` = false unpins.
    pub(crate) async fn run(self, pinned: bool, out: Out<'_>) -> Result<(), Failure> {
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        let (mut files, mut bytes, mut had, mut lacked) = (0, 0, false, None);
        for node in &topology.nodes {
            let node = Node::new(&node.address)?;
            let request = v1::PinRequest { uri: self.uri.clone() };
            let mut client = node.client();
            let reply = match pinned {
                true => client.pin(request).await,
                false => client.unpin(request).await,
            };
            match reply.map_err(|s| node.error(s)) {
                Ok(reply) => {
                    let reply = reply.into_inner();
                    (files, bytes, had) = (files + reply.files, bytes + reply.bytes, true);
                }
                // One that joined after it was pinned, or was unpinned before.
                Err(e) if !pinned && e.kind == Kind::NotFound => lacked = Some(e),
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(e) = lacked.filter(|_| !had) {
            return Err(e.into());
        }
        if self.json {
            return write_json(out, &PinReport { uri: self.uri, files, bytes });
        }
        let what = if pinned { "pinned" } else { "no longer pinned" };
        let held = match files {
            0 => "nothing of it is held yet".to_owned(),
            n => format!("{} in {} held", figures::bytes(bytes), figures::of(n, "file")),
        };
        writeln!(out, "{}: {what}, {held}", self.uri)?;
        Ok(())
    }
}
