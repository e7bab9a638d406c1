//! `forebay pin` and `forebay unpin`: keep everything under a URI in the cache, on every node of it, or let
//! it go again.

use crate::failure::Failure;
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::fan_out::{self, FanOut};
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// Dataset, object, or prefix of several to pin or unpin
    uri: String,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

impl Pin {
    /// Pins, or with `pinned` = false unpins.
    pub(crate) async fn run(self, pinned: bool, out: Out<'_>) -> Result<(), Failure> {
        let uri = &self.uri;
        let FanOut { files, bytes, failed, replies } =
            fan_out::pin(&self.endpoint.endpoints()?, uri, pinned).await?;
        let done = fan_out::check(if pinned { "pinned" } else { "unpinned" }, replies, &failed);
        if replies == 0 {
            return Ok(done?);
        }
        if self.json {
            write_json(out, &json!({"uri": uri, "files": files, "bytes": bytes, "failed": failed}))?;
            return Ok(done?);
        }
        let what = if pinned { "pinned" } else { "no longer pinned" };
        let held = match files {
            0 => "nothing of it is held yet".to_owned(),
            n => format!("{} in {} held", figures::bytes(bytes), figures::of(n, "file")),
        };
        writeln!(out, "{uri}: {what}, {held}")?;
        Ok(done?)
    }
}
