//! Ways out of where a caller may read, by spelling and by links: case 27.

use super::arena::{Arena, OTHERS, OWN};
use super::calls::INVALID_ARGUMENT;
use super::s3_signatures::client;
use super::swaps::{HEAD, MARK, OPEN, lay_out, open_request, swapped};
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::question::{Answer, DENIED, NOT_FOUND, Question, ask};
use crate::harness::s3_signer::Signer;
use forebay_proto::v1;
use prost::Message;
use std::path::Path;

const LIST: &str = "/forebay.v1.Objects/List";

/// 27: names that lead elsewhere.
pub fn places(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut checks = spelled(arena)?;
    checks.extend(signed(arena)?);
    let folder = tempfile::tempdir()?;
    let root = folder.path().canonicalize()?;
    lay_out(&root)?;
    let allowed = format!("file://{}/in/", root.display());
    // Files that change while they are read are worth a WARN.
    let server = ServerOptions::bare().args(["--allow", &allowed]).allow_log("").try_start()?;
    checks.extend(linked(&server, &root)?);
    checks.extend(swapped(&server, &root, arena.scale.flood)?);
    let log = server.log();
    checks.push(Check::of("the node does not panic", "", !log.contains("panicked")));
    server.try_stop()?;
    Ok(checks)
}

/// The calls that look at a place, with their requests.
fn looks(uri: &str) -> [(&'static str, Vec<u8>); 3] {
    let (uri, recursive) = (uri.to_owned(), true);
    [
        (OPEN, open_request(&uri)),
        (HEAD, v1::HeadObjectRequest { uri: uri.clone() }.encode_to_vec()),
        (LIST, v1::ListObjectsRequest { uri, recursive, ..Default::default() }.encode_to_vec()),
    ]
}

/// URIs that some would take for another place.
fn spelled(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (own, bucket) = (arena.store.uri(OWN), &arena.store.bucket);
    let mut checks = Vec::new();
    for uri in [
        format!("{own}/../../audio/zebra7"),
        format!("{own}/../../audio/zebra7/part-00000.parquet"),
        format!("{own}/./x"),
        format!("{own}//x"),
        format!("s3://{bucket}/../c"),
        format!("s3://../{bucket}/{OTHERS}"),
        format!("s3://{bucket}/%2e%2e/c"),
        format!("s3://user@{bucket}/{OTHERS}"),
        format!("s3://{bucket}/tenants%2faudio/zebra7"),
        format!("s3://{bucket}\\{OTHERS}"),
        format!("{own}\0/x"),
        "file:///proc/self/environ".into(),
        "file:///proc/self/root/etc/passwd".into(),
        "file://localhost/etc/passwd".into(),
        "file:/etc/passwd".into(),
        "/etc/passwd".into(),
        "FILE:///etc/passwd".into(),
        "delta+file:///etc".into(),
        "s3://other-bucket/x".into(),
        "gs://x/y".into(),
    ] {
        let answers = ask_all(arena, &uri)?;
        let is_refused =
            answers.iter().all(|answer| [u32::from(INVALID_ARGUMENT), DENIED].contains(&answer.code));
        checks.push(told_nothing(&uri, &answers, is_refused));
    }
    // No escapes: odd names below one's own place, where there is nothing.
    for uri in [format!("{own}/%2e%2e/%2e%2e/audio/zebra7"), format!("{own}/..%2f..%2faudio")] {
        let answers = ask_all(arena, &uri)?;
        let is_nothing = answers.iter().all(|answer| answer.code == NOT_FOUND);
        checks.push(told_nothing(&uri, &answers, is_nothing));
    }
    Ok(checks)
}

fn ask_all(arena: &Arena<'_>, uri: &str) -> anyhow::Result<Vec<Answer>> {
    looks(uri).into_iter().map(|(path, message)| arena.ask(Some("vision"), path, &message)).collect()
}

fn told_nothing(uri: &str, answers: &[Answer], is_refused: bool) -> Check {
    let codes: Vec<u32> = answers.iter().map(|answer| answer.code).collect();
    let tells = answers.iter().any(|answer| answer.has(b"PATH=", uri) || answer.has(MARK.as_bytes(), uri));
    let claim = format!("{}: nothing but a refusal", uri.escape_debug());
    Check::of(claim, format!("{codes:?}"), is_refused && !tells)
}

/// The same by S3, with a good signature.
fn signed(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (runtime, client) = (runtime()?, client(arena, "VISION"));
    let mut checks = Vec::new();
    for path in ["../../audio/zebra7/part-00000.parquet", "../../../etc/passwd", "./part-00000.parquet"] {
        let object = format!("/{}/{OWN}/{path}", arena.store.bucket);
        // Escaped dots are signed as dots.
        let escaped = object.replace("..", "%2e%2e").replace("/./", "/%2e/");
        for target in [object.clone(), escaped] {
            let mut ask = Signer::of(&client).header("GET", &object);
            ask.target.clone_from(&target);
            let reply = runtime.block_on(client.send_unsigned(&ask))?;
            let is_refused = reply.status == 400 && !reply.body.starts_with(b"PAR1");
            checks.push(Check::of(format!("GET {target}: 400"), reply.status.to_string(), is_refused));
        }
    }
    Ok(checks)
}

/// Links that lead out, and what lies beside.
fn linked(server: &Server, root: &Path) -> anyhow::Result<Vec<Check>> {
    let (runtime, at) = (runtime()?, root.display());
    let mut checks = Vec::new();
    for uri in [
        format!("file://{at}/in/leads-out.parquet"),
        format!("file://{at}/in/folder-out"),
        format!("file://{at}/in/folder-out/part-0.parquet"),
        format!("file://{at}/in/../out/part-0.parquet"),
        format!("file://{at}/out"),
        format!("file://{at}/inside"),
        "file:///proc/self/environ".into(),
        format!("file:///proc/self/root{at}/out/part-0.parquet"),
    ] {
        let mut answers = Vec::new();
        for (path, message) in looks(&uri) {
            let question = Question { endpoint: &server.endpoint, path, header: None, message: &message };
            answers.push(runtime.block_on(ask(question))?);
        }
        let is_refused =
            answers.iter().all(|answer| [u32::from(INVALID_ARGUMENT), DENIED].contains(&answer.code));
        checks.push(told_nothing(&uri, &answers, is_refused));
    }
    Ok(checks)
}
