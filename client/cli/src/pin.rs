//! `forebay pin` and `forebay unpin`: keep everything under a URI in the cache, on every node of it, or let
//! it go again.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::output::{Out, write_json};
use crate::presence::{check_uri, is_empty};
use clap::Args;
use forebay_client::Access;
use forebay_client::args::EndpointArgs;
use forebay_client::fan_out::{self, FanOut};
use forebay_proto::Error;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct Pin {
    #[command(flatten)]
    what: PinArgs,
    /// Pin it though nothing lies there yet
    #[arg(long)]
    ahead: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Unpin {
    #[command(flatten)]
    what: PinArgs,
}

#[derive(Debug, Args)]
struct PinArgs {
    /// Dataset, object, or prefix of several to pin or unpin
    uri: String,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

impl Pin {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let (uri, endpoints) = (&self.what.uri, self.what.endpoint.endpoints().map_err(usage)?);
        check_uri(uri).map_err(usage)?;
        let done = fan_out::pin(&endpoints, uri, true).await?;
        let access = Access::Endpoint(endpoints.clone());
        // What the object store does not say, such as while it is away, keeps nobody from pinning.
        if done.files == 0 && !self.ahead && is_empty(&access, uri).await == Some(true) {
            fan_out::pin(&endpoints, uri, false).await?;
            return Err(Error::not_found(format!(
                "{uri}: nothing lies there, and the cache holds nothing of it, so it is not pinned: correct the URI, or \
                 give --ahead to pin data that is still to come"
            ))
            .into());
        }
        self.what.tell(done, true, out)
    }
}

impl Unpin {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        check_uri(&self.what.uri).map_err(usage)?;
        let done =
            fan_out::pin(&self.what.endpoint.endpoints().map_err(usage)?, &self.what.uri, false).await?;
        self.what.tell(done, false, out)
    }
}

impl PinArgs {
    fn tell(&self, done: FanOut, pinned: bool, out: Out<'_>) -> Result<(), Failure> {
        let (uri, FanOut { files, bytes, failed, replies }) = (&self.uri, done);
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
