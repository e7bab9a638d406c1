//! Signatures that were good once, or for something else: case 39.

use super::arena::{Arena, OWN};
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::policy::S3_SECRET;
use crate::harness::s3_client::{S3Ask, S3Client};
use crate::harness::s3_signer::Signer;
use std::time::Duration;

/// What a request is about, the request, and its status and code.
type Sent = (&'static str, S3Ask, u16, &'static str);

/// How the object begins.
const MAGIC: &[u8] = b"PAR1";

const SKEWED: &str = "RequestTimeTooSkewed";
const MISMATCH: &str = "SignatureDoesNotMatch";
const DENIED: &str = "AccessDenied";
const UNKNOWN_KEY: &str = "InvalidAccessKeyId";
const BAD_QUERY: &str = "AuthorizationQueryParametersError";

/// A client of the arena's endpoint.
pub(super) fn client(arena: &Arena<'_>, key_id: &str) -> S3Client {
    let endpoint = format!("http://{}", arena.s3);
    S3Client { endpoint, key_id: key_id.into(), secret: S3_SECRET.into() }
}

/// 39: requests that were captured, changed, or are too old.
pub fn signatures(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (runtime, client) = (runtime()?, client(arena, "VISION"));
    let signer = Signer::of(&client);
    let bucket = &arena.store.bucket;
    let object = format!("/{bucket}/{OWN}/part-00000.parquet");
    let ranged = |ask: S3Ask| ask.header("range", "bytes=0-3");
    let short = ranged(signer.url("GET", &object, 2));
    let mut sent: Vec<Sent> = vec![
        ("a URL that is good for 2 s", short.clone(), 206, ""),
        ("a good signature", ranged(signer.header("GET", &object)), 206, ""),
    ];
    sent.extend(of_time(&signer, &object));
    sent.extend(of_others(arena, &signer, &object));
    let mut checks = Vec::new();
    let mut send = |(what, ask, wanted, code): Sent| {
        let reply = runtime.block_on(client.send_unsigned(&ask))?;
        let said = reply.code().unwrap_or_default();
        let is_right = match wanted {
            206 => reply.body == MAGIC,
            200 => reply.status == 200,
            // The answer to a HEAD has no document.
            _ => (said == code || ask.method == "HEAD") && !reply.body.starts_with(MAGIC),
        };
        let claim = format!("{what}: {wanted} {code}");
        let is_right = is_right && reply.status == wanted;
        checks.push(Check::of(claim, format!("{} {said}", reply.status), is_right));
        anyhow::Ok(())
    };
    sent.into_iter().try_for_each(&mut send)?;
    std::thread::sleep(Duration::from_secs(4));
    send(("the same URL later", short, 403, DENIED))?;
    Ok(checks)
}

/// Times that are not now.
fn of_time(signer: &Signer, object: &str) -> Vec<Sent> {
    let at = |minutes: i64| signer.clone().minutes_ago(minutes);
    let ranged = |ask: S3Ask| ask.header("range", "bytes=0-3");
    vec![
        ("a request of 14 minutes ago", ranged(at(14).header("GET", object)), 206, ""),
        ("a replay after 16 minutes", at(16).header("GET", object), 403, SKEWED),
        ("a replay after a day", at(24 * 60).header("GET", object), 403, SKEWED),
        ("a request of 16 minutes ahead", at(-16).header("GET", object), 403, SKEWED),
        ("a URL of two minutes for an hour", ranged(at(2).url("GET", object, 3600)), 206, ""),
        ("a URL of two minutes for one", at(2).url("GET", object, 60), 403, DENIED),
        ("a URL of 16 minutes ahead", at(-16).url("GET", object, 3600), 403, DENIED),
        ("a URL for no time", signer.url("GET", object, 0), 403, DENIED),
        ("a URL for more than a week", signer.url("GET", object, 604_801), 400, BAD_QUERY),
        ("a URL for less than no time", signer.url("GET", object, -1), 400, BAD_QUERY),
    ]
}

/// Signatures for something else, or by somebody else.
fn of_others(arena: &Arena<'_>, signer: &Signer, object: &str) -> Vec<Sent> {
    let list = format!("/{}?list-type=2&prefix=tenants/vision/", arena.store.bucket);
    let (get, url) = (signer.header("GET", object), signer.url("GET", object, 60));
    let moved = |ask: &S3Ask, method: &'static str, target: String| S3Ask { method, target, ..ask.clone() };
    let with = |ask: &S3Ask, name: &str, value: &str| {
        let mut ask = ask.clone();
        ask.headers.retain(|(given, _)| given != name);
        ask.header(name, value)
    };
    let by = |key_id: &str, secret: &str| {
        let signer = Signer { key_id: key_id.into(), secret: secret.into(), ..signer.clone() };
        signer.header("GET", object)
    };
    let abroad = Signer { region: "eu-west-9", ..signer.clone() }.header("GET", object);
    let (key_id, secret) = (&arena.store.access_key, &arena.store.secret_key);
    let longer = url.target.replace("X-Amz-Expires=60", "X-Amz-Expires=3600");
    vec![
        ("a LIST by its own signature", signer.header("GET", &list), 200, ""),
        ("a LIST by the signature of a GET", moved(&get, "GET", list.clone()), 403, MISMATCH),
        ("a GET by that of a LIST", moved(&signer.header("GET", &list), "GET", object.into()), 403, MISMATCH),
        ("a HEAD by that of a GET", moved(&get, "HEAD", object.into()), 403, MISMATCH),
        ("another object", moved(&get, "GET", object.replace("00000", "00001")), 403, MISMATCH),
        ("a parameter more", moved(&get, "GET", format!("{object}?versionId=null")), 403, MISMATCH),
        ("a URL that is made to be good for longer", moved(&url, "GET", longer), 403, MISMATCH),
        ("a URL by another method", moved(&url, "HEAD", url.target.clone()), 403, MISMATCH),
        ("a URL of another object", moved(&url, "GET", url.target.replace("00000", "00001")), 403, MISMATCH),
        ("another host", with(&get, "host", "elsewhere.example"), 403, MISMATCH),
        ("a URL for another host", with(&url, "host", "elsewhere.example"), 403, MISMATCH),
        ("a time that was changed", with(&get, "x-amz-date", &other_second(&get)), 403, MISMATCH),
        ("an `x-amz-` header that is not signed", get.clone().header("x-amz-meta-a", "b"), 403, DENIED),
        ("another region", abroad, 400, "AuthorizationHeaderMalformed"),
        ("a guessed secret", by(&signer.key_id, "guess"), 403, MISMATCH),
        ("an unknown key", by("GUESS", S3_SECRET), 403, UNKNOWN_KEY),
        ("the node's own key to the object store", by(key_id, secret), 403, UNKNOWN_KEY),
        ("a key that no principal has", by("NOBODY", S3_SECRET), 403, DENIED),
        ("a session token", get.clone().header("x-amz-security-token", "t"), 403, DENIED),
        ("two signatures", get.clone().header("authorization", "AWS4-HMAC-SHA256 b"), 400, "InvalidArgument"),
        (
            "one in the header and one in the query",
            moved(&get, "GET", url.target.clone()),
            400,
            "InvalidArgument",
        ),
        ("version 2", with(&get, "authorization", "AWS id:signature"), 400, "InvalidRequest"),
    ]
}

/// The time of a request, moved within its day.
fn other_second(ask: &S3Ask) -> String {
    let date = ask.headers.iter().find(|(name, _)| name == "x-amz-date");
    let date = date.map_or("", |(_, date)| date);
    let digit = if date.ends_with("0Z") { "1Z" } else { "0Z" };
    format!("{}{digit}", &date[..date.len() - 2])
}
