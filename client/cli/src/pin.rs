//! `forebay pin` and `forebay unpin`: keep everything under a URI in the cache, on every node of it, or let
//! it go again.

use crate::failure::Failure;
use crate::fan_out::{ask_all, check};
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::{Node, survey};
use forebay_proto::{Kind, v1};
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
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        let uri = &self.uri;
        let (replies, failed) = ask_all(&topology, |node: Node| async move {
            let (request, mut client) = (v1::PinRequest { uri: uri.clone() }, node.client());
            let reply = match pinned {
                true => node.reply(client.pin(request)).await,
                false => node.reply(client.unpin(request)).await,
            };
            match reply {
                // There was nothing to unpin: the node joined after the pin, or was unpinned before.
                Err(e) if !pinned && e.kind == Kind::NotFound => Ok(Err(e)),
                reply => reply.map(Ok),
            }
        })
        .await;
        let done = check(if pinned { "pinned" } else { "unpinned" }, replies.len(), &failed);
        if replies.iter().all(Result::is_err) {
            done?;
            return Ok(replies.into_iter().next().map_or(Ok(()), |reply| reply.map(drop))?);
        }
        let files: u64 = replies.iter().flatten().map(|reply| reply.files).sum();
        let bytes: u64 = replies.iter().flatten().map(|reply| reply.bytes).sum();
        if self.json {
            write_json(out, &json!({"uri": uri, "files": files, "bytes": bytes, "failed": failed}))?;
            return done;
        }
        let what = if pinned { "pinned" } else { "no longer pinned" };
        let held = match files {
            0 => "nothing of it is held yet".to_owned(),
            n => format!("{} in {} held", figures::bytes(bytes), figures::of(n, "file")),
        };
        writeln!(out, "{uri}: {what}, {held}")?;
        done
    }
}
