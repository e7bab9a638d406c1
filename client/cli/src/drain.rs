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
        match topology.and_then(|topology| Ok(place(&topology, &self.node)?.to_owned())) {
            Ok(address) => Ok(Node::new(&address)?),
            Err(_) if is_address => Ok(Node::new(&self.node)?),
            Err(e) if e.kind == Kind::NotFound => Err(unknown(e, undo).into()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Where a node is that somebody names, by its name or its address. One that is drained still answers the
/// others, and so is known.
fn place<'a>(topology: &'a v1::Topology, wanted: &str) -> Result<&'a str, Error> {
    let all = || topology.leaving.iter().chain(&topology.nodes);
    let is_there = |node: &&v1::Node| node.address.split_once("://").is_some_and(|(_, at)| at == wanted);
    match all().find(|node| node.name == wanted).or_else(|| all().find(is_there)) {
        Some(node) => Ok(&node.address),
        None => survey::find(topology, wanted).map(|node| node.address.as_str()),
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
    fn a_name_that_looks_like_an_address_is_the_node_s_own_url() {
        let node = |name: &str, address: &str| v1::Node {
            name: name.into(),
            address: address.into(),
            ..Default::default()
        };
        // Names by default: hosts and ports, whatever is spoken there.
        let nodes = vec![node("10.0.0.1:7070", "https://10.0.0.1:7070"), node("b", "https://b:7070")];
        let leaving = vec![node("10.0.0.3:7070", "https://10.0.0.3:7070"), node("d", "https://d:7070")];
        let topology = v1::Topology { nodes, leaving, ..Default::default() };
        for (wanted, address) in [
            ("10.0.0.1:7070", "https://10.0.0.1:7070"),
            ("b", "https://b:7070"),
            ("b:7070", "https://b:7070"),
            ("10.0.0.3:7070", "https://10.0.0.3:7070"),
            ("d", "https://d:7070"),
            ("d:7070", "https://d:7070"),
        ] {
            assert_eq!(place(&topology, wanted).map_err(|e| e.message).as_deref(), Ok(address), "{wanted}");
        }
        assert_eq!(place(&topology, "10.0.0.9:7070").unwrap_err().kind, Kind::NotFound);
    }

    #[test]
    fn a_wrong_name_is_told_first() {
        let e = |undo| unknown(Error::not_found("no node `x`"), undo).message;
        assert_eq!(e(false), "no node `x`");
        assert_eq!(e(true), "no node `x`; one that is out of the topology is named by its URL");
    }
}
