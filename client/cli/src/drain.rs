//! `forebay drain` and `forebay undrain`: take a node out of service without an error to anyone, and bring it
//! back.

use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::{Node, survey};
use forebay_proto::{Error, v1};
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The node: its name in the topology, or its URL
    node: String,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

impl Drain {
    /// Drains it, or brings it back.
    pub(crate) async fn run(self, out: Out<'_>, undo: bool) -> Result<(), Failure> {
        let node = self.find(undo).await?;
        let reply = node.reply(node.client().drain(v1::DrainRequest { undo })).await?;
        let v1::DrainReply { streams_ended, streams_left } = reply;
        if self.json {
            let report = json!({
                "node": self.node,
                "draining": !undo,
                "streams_ended": streams_ended,
                "streams_left": streams_left,
            });
            return write_json(out, &report);
        }
        let sent = figures::of(streams_ended, "stream");
        match (undo, streams_left) {
            (true, _) => writeln!(out, "{}: back in service", self.node)?,
            (false, 0) => {
                writeln!(out, "{}: drained, {sent} sent to other nodes; it may be stopped", self.node)?;
            }
            (false, left) => writeln!(
                out,
                "{}: out of the topology, {sent} sent to other nodes; {} of readers that stand still left",
                self.node,
                figures::of(left, "stream")
            )?,
        }
        Ok(())
    }

    /// A node that is drained is no longer in the topology, so a URL is taken at its word. `undo`: the error
    /// says so.
    async fn find(&self, undo: bool) -> Result<Node, Failure> {
        self.endpoint.use_files()?;
        if self.node.contains(':') {
            return Ok(Node::new(&self.node)?);
        }
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        // One that is drained still answers the others, and so is known.
        if let Some(node) = topology.leaving.iter().find(|node| node.name == self.node) {
            return Ok(Node::new(&node.address)?);
        }
        match survey::find(&topology, &self.node) {
            Ok(node) => Ok(Node::new(&node.address)?),
            Err(e) => Err(unknown(e, undo).into()),
        }
    }
}

/// The error of a name that no node has.
fn unknown(e: Error, undo: bool) -> Error {
    match undo {
        true => {
            Error::new(e.kind, format!("{}; one that is out of the topology is named by its URL", e.message))
        }
        false => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_told_first() {
        let e = |undo| unknown(Error::not_found("no node `x`"), undo).message;
        assert_eq!(e(false), "no node `x`");
        assert_eq!(e(true), "no node `x`; one that is out of the topology is named by its URL");
    }
}
