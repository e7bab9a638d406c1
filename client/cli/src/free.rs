//! `forebay free`: drop a dataset from the cache, on every node of it.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::output::{Out, write_json};
use crate::presence::check_uri;
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::fan_out::{self, FanOut};
use forebay_proto::manifest::Digest;
use forebay_proto::v1;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Free {
    /// Dataset to drop, or prefix of several
    uri: String,
    /// Only this version of it, by the digest that status shows, and only what no other version needs
    #[arg(long, value_name = "DIGEST", conflicts_with = "superseded")]
    digest: Option<Digest>,
    /// Only versions that a newer one has replaced, and only what no other version needs
    #[arg(long)]
    superseded: bool,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

impl Free {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let uri = &self.uri;
        check_uri(uri).map_err(usage)?;
        let digest = self.digest.map(|digest| digest.to_bytes().to_vec().into()).unwrap_or_default();
        let request = v1::FreeRequest { uri: uri.clone(), digest, superseded: self.superseded };
        let FanOut { files: segments, bytes, failed, replies } =
            fan_out::free_versions(&self.endpoint.endpoints().map_err(usage)?, &request).await?;
        let done = fan_out::check("freed", replies, &failed);
        match (self.json, segments) {
            _ if replies == 0 => {}
            (true, _) => {
                let report = json!({"uri": uri, "segments": segments, "bytes": bytes, "failed": failed});
                write_json(out, &report)?;
            }
            (false, 0) => writeln!(out, "{uri}: the cache held nothing of it")?,
            (false, n) => {
                writeln!(out, "{uri}: freed {}, {}", figures::of(n, "segment"), figures::bytes(bytes))?;
            }
        }
        Ok(done?)
    }
}
