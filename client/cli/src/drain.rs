//! `forebay drain` and `forebay undrain`: take a node out of service without an error to anyone, and bring it
//! back.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::{Node, survey};
use forebay_proto::{Error, Kind, v1};
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

    /// A URL is taken at its word, as is an address that no node is known by: a node that is drained may be
    /// in no topology. `undo`: the error says so.
    async fn find(&self, undo: bool) -> Result<Node, Failure> {
        self.endpoint.use_files().map_err(usage)?;
        if self.node.contains("://") || self.node.starts_with("unix:") {
            return Ok(Node::new(&self.node)?);
        }
        let is_address = self.node.contains(':');
        let endpoints = match self.endpoint.endpoints() {
            Err(_) if is_address => return Ok(Node::new(&self.node)?),
            endpoints => endpoints.map_err(usage)?,
        };
        let topology = survey::topology(&endpoints).await;
        match topology.and_then(|topology| Ok(survey::find(&topology, &self.node)?.address.clone())) {
            Ok(address) => Ok(Node::new(&address)?),
            Err(_) if is_address => Ok(Node::new(&self.node)?),
            Err(e) if e.kind == Kind::NotFound => Err(unknown(e, undo).into()),
            Err(e) => Err(e.into()),
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
