//! `forebay replicas`: set how many nodes hold each segment under a URI, for the whole cluster.

use crate::failure::Failure;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::survey;
use forebay_proto::v1;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Replicas {
    /// Dataset, object, or prefix of several
    uri: String,
    /// How many nodes hold each segment, the owner included; 0: the cluster's default
    replicas: u32,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

impl Replicas {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let Self { uri, replicas, .. } = self;
        let request = v1::SetReplicasRequest { uri: uri.clone(), replicas };
        // Any node can do it: what it sets is the cluster's.
        let endpoints = self.endpoint.endpoints()?;
        let node = endpoints.answering().await?;
        node.reply(node.client().set_replicas(request)).await?;
        if self.json {
            return write_json(out, &json!({"uri": uri, "replicas": replicas}));
        }
        match replicas {
            0 => writeln!(out, "{uri}: as many replicas as the cluster's default says")?,
            1 => writeln!(out, "{uri}: 1 node holds each segment")?,
            n => writeln!(out, "{uri}: {}", several(n, survey::topology(&endpoints).await?.nodes.len()))?,
        }
        Ok(())
    }
}

/// How many nodes of `nodes` hold each segment.
fn several(replicas: u32, nodes: usize) -> String {
    match nodes < replicas as usize {
        true => format!("{replicas} nodes hold each segment, {nodes} now: there are no more"),
        false => format!("{replicas} nodes hold each segment"),
    }
}

#[cfg(test)]
mod tests {
    use super::several;

    #[test]
    fn more_copies_than_nodes_are_told() {
        assert_eq!(several(2, 3), "2 nodes hold each segment");
        assert_eq!(several(9, 3), "9 nodes hold each segment, 3 now: there are no more");
    }
}
