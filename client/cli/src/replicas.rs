//! `forebay replicas`: set how many nodes hold each segment under a URI, for the whole cluster.

use crate::failure::{Failure, usage};
use crate::output::{Out, write_json};
use crate::presence::{check_uri, is_empty};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::{Access, survey};
use forebay_proto::{Error, v1};
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Replicas {
    /// Dataset, object, or prefix of several
    uri: String,
    /// How many nodes hold each segment, 1 to 16, the owner included; 0: the cluster's default
    #[arg(value_parser = clap::value_parser!(u32).range(0..=16))]
    replicas: u32,
    /// Set it though nothing lies there yet
    #[arg(long)]
    ahead: bool,
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
        check_uri(uri.as_str()).map_err(usage)?;
        let endpoints = self.endpoint.endpoints().map_err(usage)?;
        // The default can be had back for data that is gone. An object store that does not answer keeps
        // nobody.
        let checks = replicas > 0 && !self.ahead;
        if checks && is_empty(&Access::Endpoint(endpoints.clone()), &uri).await == Some(true) {
            return Err(Error::not_found(format!(
                "{uri}: nothing lies there: correct the URI, or give --ahead to set it for data that is still to come"
            ))
            .into());
        }
        // Any node can do it: what it sets is the cluster's.
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
