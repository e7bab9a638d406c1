//! Datasets as principals open them.

use super::arena::Arena;
use anyhow::Context;
use forebay_proto::v1;
use prost::Message as _;

/// A request to open a dataset, or a mix of several.
pub fn open_request(uris: &[&str]) -> Vec<u8> {
    let part = |uri: &&str| v1::MixPart { uri: (*uri).into(), share: 1.0, ..Default::default() };
    let dataset = match uris {
        [uri] => v1::DatasetSpec { uri: (*uri).into(), ..Default::default() },
        uris => v1::DatasetSpec { mix: uris.iter().map(part).collect(), ..Default::default() },
    };
    v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec()
}

/// Opens it as somebody who may.
pub fn opened(arena: &Arena<'_>, who: &str, uris: &[&str]) -> anyhow::Result<v1::Manifest> {
    let answer = arena.ask(Some(who), "/forebay.v1.Cache/Open", &open_request(uris))?;
    anyhow::ensure!(answer.code == 0, "{who} may open {uris:?}: {} {}", answer.code, answer.message);
    answer.first::<v1::OpenReply>()?.manifest.context("a manifest")
}

/// Asks as somebody who may, who then is answered well.
pub fn done(arena: &Arena<'_>, who: &str, path: &str, message: &[u8]) -> anyhow::Result<()> {
    let answer = arena.ask(Some(who), path, message)?;
    anyhow::ensure!(answer.code == 0, "{path} of {who}: {} {}", answer.code, answer.message);
    Ok(())
}
