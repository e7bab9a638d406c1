//! `forebay pin` and `forebay unpin`: keep everything under a URI in the cache, on every node of it, or let
//! it go again.

use crate::failure::Failure;
use crate::fan_out::{FailedNode, FanOut, check};
use crate::figures;
use crate::output::{Out, write_json};
use clap::Args;
use forebay_client::args::EndpointArgs;
use forebay_client::survey;
use forebay_proto::{Error, Kind, v1};
use serde::Serialize;

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

#[derive(Serialize)]
struct PinReport {
    uri: String,
    files: u64,
    bytes: u64,
    failed: Vec<FailedNode>,
}

/// What a node did.
enum Pinned {
    Done(v1::PinReply),
    /// There was nothing to unpin: the node joined after the pin, or was unpinned before.
    NotThere(Error),
}

impl Pin {
    /// Pins, or with `pinned` = false unpins.
    pub(crate) async fn run(self, pinned: bool, out: Out<'_>) -> Result<(), Failure> {
        let topology = survey::topology(&self.endpoint.endpoints()?).await?;
        let uri = &self.uri;
        let FanOut { replies, failed } = FanOut::ask(&topology, |node| async move {
            let request = v1::PinRequest { uri: uri.clone() };
            let mut client = node.client();
            let reply = match pinned {
                true => client.pin(request).await,
                false => client.unpin(request).await,
            };
            match reply.map_err(|s| node.error(s)) {
                Ok(reply) => Ok(Pinned::Done(reply.into_inner())),
                Err(e) if !pinned && e.kind == Kind::NotFound => Ok(Pinned::NotThere(e)),
                Err(e) => Err(e),
            }
        })
        .await;
        let (mut files, mut bytes, mut had, mut not_there) = (0, 0, false, None);
        let answered = replies.len();
        for reply in replies {
            match reply {
                Pinned::Done(reply) => {
                    (files, bytes, had) = (files + reply.files, bytes + reply.bytes, true);
                }
                Pinned::NotThere(e) => not_there = Some(e),
            }
        }
        let done = check(if pinned { "pinned" } else { "unpinned" }, answered, &failed);
        if !had {
            done?;
            return not_there.map_or(Ok(()), |e| Err(e.into()));
        }
        if self.json {
            write_json(out, &PinReport { uri: self.uri, files, bytes, failed })?;
            return done;
        }
        let what = if pinned { "pinned" } else { "no longer pinned" };
        let held = match files {
            0 => "nothing of it is held yet".to_owned(),
            n => format!("{} in {} held", figures::bytes(bytes), figures::of(n, "file")),
        };
        writeln!(out, "{}: {what}, {held}", self.uri)?;
        done
    }
}
