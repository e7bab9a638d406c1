//! Callers whom the policy does not know: cases 16 and 17.

use super::arena::{Arena, OTHERS, OWN};
use super::opened::open_request;
use super::timing::refusal_times;
use super::trials::Trials;
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::frames::{flag, frame, grpc, kind, request_block};
use crate::harness::question::{Answer, DENIED, UNKNOWN};
use crate::harness::requests::{paths, request_about};
use crate::harness::s3_client::{S3Ask, S3Client, S3Reply};
use forebay_proto::token::NewToken;
use std::time::Duration;

const OPEN: &str = "/forebay.v1.Cache/Open";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// Methods beside those of Forebay and Flight; the last two there are not.
const MORE: [&str; 5] = [
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/forebay.v1.Cache/Nothing",
    "/nothing",
];

/// Bytes of the longest token that still fits into the headers of a request: they may have 16 KiB.
const LONG: usize = 15_000;

/// Differences of two medians that are none: this part of the longer one, or this time.
const SAME_PART: f64 = 0.1;
const SAME_US: f64 = 50.0;

/// An error's text without the number of its request, which is another one each time.
fn words(answer: &Answer) -> &str {
    answer.message.split(" (request ").next().unwrap_or_default()
}

/// 16: every call without credentials, about data that there are and data that there are not.
pub fn no_credentials(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut codes = Trials::of("without credentials every method says UNAUTHENTICATED, and nothing else");
    let mut texts = Trials::of("in the same words for data that exist and others, but for the request's id");
    let mut first: Option<String> = None;
    let mut methods = paths();
    methods.extend(MORE.map(str::to_owned));
    for path in &methods {
        for key in [OWN, OTHERS, "tenants/nothing"] {
            let message = match MORE.contains(&path.as_str()) {
                true => open_request(&[&arena.store.uri(key)]),
                false => request_about(path, &arena.store.uri(key), &[9; 16], "july").1,
            };
            let answer = arena.ask(None, path, &message)?;
            let is_refused = answer.code == UNKNOWN && answer.body.is_empty();
            codes.note(is_refused, || {
                format!("{path} of {key}: {} and {} bytes", answer.code, answer.body.len())
            });
            let expected = first.get_or_insert_with(|| words(&answer).to_owned());
            let is_same = !expected.is_empty() && words(&answer) == expected;
            texts.note(is_same, || format!("{path} of {key}: {}", answer.message));
        }
    }
    let health = arena.ask(None, HEALTH, &[])?.code;
    let known = arena.ask(Some("vision"), OPEN, &open_request(&[&arena.store.uri(OWN)]))?.code;
    let unlisted = arena.ask(Some("vision"), "/forebay.v1.Cache/Nothing", &[])?.code;
    let mut checks = vec![
        codes.check(),
        texts.check(),
        Check::of("the health check is for everybody", format!("code {health}"), health == 0),
        Check::of("a principal opens its data", format!("code {known}"), known == 0),
        Check::of(
            "a method that the table does not have is denied",
            format!("code {unlisted}"),
            unlisted == DENIED,
        ),
    ];
    checks.extend(http_without_credentials(arena)?);
    Ok(checks)
}

/// The same of the metrics and of S3.
fn http_without_credentials(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let runtime = runtime()?;
    let get = |endpoint: String, path: String, who: Option<&str>| -> anyhow::Result<S3Reply> {
        let client = S3Client { endpoint, key_id: String::new(), secret: String::new() };
        let mut ask = S3Ask::new("GET", path);
        if let Some(who) = who {
            ask = ask.header("authorization", &arena.policy()?.header(who));
        }
        runtime.block_on(client.send_unsigned(&ask))
    };
    let mut checks = Vec::new();
    let metrics = format!("http://{}", arena.metrics);
    for (who, status) in [
        (None, 401),
        (Some("vision"), 403),
        (Some("audio"), 403),
        (Some("scraper"), 200),
        (Some("root"), 200),
    ] {
        let reply = get(metrics.clone(), "/metrics".into(), who)?;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let has_figures = text.contains("forebay_calls_unknown_total");
        let name = who.unwrap_or("nobody");
        checks.push(Check::of(
            format!("/metrics says {status} to {name}"),
            format!("{}, {} bytes", reply.status, text.len()),
            reply.status == status && has_figures == (status == 200),
        ));
    }
    let health = get(metrics, "/health".into(), None)?;
    let text = String::from_utf8_lossy(&health.body).into_owned();
    checks.push(Check::of("/health says ok to everybody", &text, health.status == 200 && text == "ok\n"));
    let bucket = &arena.store.bucket;
    let mut refused =
        Trials::of("S3 says the same 403 to unsigned requests for what exists and what does not");
    let mut first = None;
    for key in [OWN, OTHERS, "tenants/nothing"] {
        let path = format!("/{bucket}/{key}/part-00000.parquet");
        let reply = get(format!("http://{}", arena.s3), path, None)?;
        let told = (reply.status, reply.code());
        let is_same = told.0 == 403 && told == *first.get_or_insert_with(|| told.clone());
        refused.note(is_same, || format!("{key}: {told:?}"));
    }
    checks.push(refused.check());
    Ok(checks)
}

/// Values of `authorization` that are no good here, with words for them.
fn wrong_headers(good: &str) -> Vec<(&'static str, String)> {
    let id = good.split('.').nth(1).unwrap_or_default();
    let bearer = |token: &str| format!("Bearer {token}");
    let wrong = format!("fb1.{id}.{}", "5a".repeat(32));
    vec![
        ("a known id and a wrong secret", bearer(&wrong)),
        ("of another cluster", bearer(NewToken::new([99; 40]).text())),
        ("a good one cut short", bearer(&good[..good.len() - 1])),
        ("a good one and a digit", bearer(&format!("{good}0"))),
        ("a good one in capitals", bearer(&good.to_uppercase())),
        ("empty", bearer("")),
        ("no header at all but its name", String::new()),
        ("without a scheme", good.to_owned()),
        ("of another scheme", format!("Basic {good}")),
        ("very long", bearer(&"x".repeat(LONG))),
        ("very long, as a token of the node", bearer(&format!("fb1.{id}.{}", "7".repeat(LONG)))),
        ("very long, as a JSON Web Token", bearer(&format!("a.{}.c", "y".repeat(LONG)))),
        ("no JSON Web Token", bearer("head-of-nothing.body-of-nothing.signature-of-nothing")),
        ("letters beyond ASCII", bearer(&format!("fb1.{id}.\u{e9}\u{fffd}-beyond-ascii-{}", "0".repeat(40)))),
        ("quotes and backslashes", bearer("fb1.\"\\\\quoted-and-escaped\\\\\".0")),
    ]
}

/// 17: tokens that are none of this node.
pub fn wrong_tokens(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let good = arena.policy()?.tokens["vision"].text();
    let open = open_request(&[&arena.store.uri(OWN)]);
    let expected = words(&arena.ask(None, OPEN, &open)?).to_owned();
    let mut refused = Trials::of("a wrong token is UNAUTHENTICATED, in the words for none");
    let headers = wrong_headers(good);
    for (what, header) in &headers {
        let answer = arena.ask_with(Some(header), OPEN, &open)?;
        let is_refused = answer.code == UNKNOWN && answer.body.is_empty() && words(&answer) == expected;
        refused.note(is_refused, || format!("{what}: {} {}", answer.code, answer.message));
    }
    let mut checks = vec![refused.check()];
    let code = arena.ask(Some("vision"), OPEN, &open)?.code;
    checks.push(Check::of("the right one is good", format!("code {code}"), code == 0));
    checks.extend(odd_bytes(arena, good, &open)?);
    checks.push(nothing_is_written_down(arena, &headers)?);
    checks.push(constant_time(arena, good)?);
    Ok(checks)
}

/// Bytes that no header may have, which a client of HTTP would not send.
fn odd_bytes(arena: &Arena<'_>, good: &str, open: &[u8]) -> anyhow::Result<Vec<Check>> {
    let answered = |token: &[u8]| -> anyhow::Result<bool> {
        let mut connection = arena.http2()?;
        // A literal of the static table's name 23, `authorization` (RFC 7541, section 6.2.2).
        let mut block = request_block(OPEN);
        block.extend([0x0f, 0x08, (token.len() + 7) as u8]);
        block.extend([b"Bearer ", token].concat());
        connection.say(&frame(kind::HEADERS, flag::END_HEADERS, 1, &block))?;
        // It may have hung up already.
        connection.say(&frame(kind::DATA, flag::END_STREAM, 1, &grpc(0, open.len() as u32, open))).ok();
        let is_answer = |f: &crate::harness::frames::Frame| {
            f.stream == 1 && [kind::DATA, kind::RST_STREAM].contains(&f.kind) || f.kind == kind::GOAWAY
        };
        let answer = connection.find(Duration::from_secs(20), is_answer);
        Ok(answer.is_some_and(|f| f.kind == kind::DATA))
    };
    let mut refused = Trials::of("a token with bytes that no header may have gets no answer");
    for byte in [0, b'\n', b'\r', 0x7f, 0x1b] {
        let token = [good.as_bytes(), &[byte]].concat();
        let is_answered = answered(&token)?;
        refused.note(!is_answered, || format!("byte {byte}"));
    }
    let is_good = answered(good.as_bytes())?;
    Ok(vec![refused.check(), Check::of("the same request with the right token gets one", "", is_good)])
}

/// Neither the log nor the audit log has a token, good or not.
fn nothing_is_written_down(arena: &Arena<'_>, headers: &[(&str, String)]) -> anyhow::Result<Check> {
    let (log, audit) = (arena.server.log(), std::fs::read_to_string(arena.policy()?.path("audit"))?);
    let mut absent = Trials::of("no token is in the log or the audit log");
    for (what, header) in headers {
        let token = header.rsplit(' ').next().unwrap_or_default();
        // The secret of a token of the node, and the first bytes of all others.
        let secret =
            token.strip_prefix("fb1.").and_then(|rest| rest.split_once('.')).map_or(token, |(_, s)| s);
        let secret: String = secret.chars().take(40).collect();
        if secret.len() >= 20 {
            absent.note(!log.contains(&secret) && !audit.contains(&secret), || (*what).to_owned());
        }
    }
    let is_looked_at = log.contains("INFO") && audit.contains("nobody who is known");
    absent.note(is_looked_at, || "the logs are empty".into());
    Ok(absent.check())
}

/// A guess at a known id is refused no later or sooner than one at an unknown id.
fn constant_time(arena: &Arena<'_>, good: &str) -> anyhow::Result<Check> {
    let id = good.split('.').nth(1).unwrap_or_default();
    let secret = "5a".repeat(32);
    let [known, unknown] = [id, "0123456789abcdef"].map(|id| format!("Bearer fb1.{id}.{secret}"));
    let times = runtime()?.block_on(refusal_times(&arena.server.endpoint, OPEN, [&known, &unknown]))?;
    let [known, unknown] = times.medians_us();
    let difference = times.difference_us();
    let limit = (known.max(unknown) * SAME_PART).max(SAME_US);
    let claim = format!("a guess at a known id takes as long as one at an unknown id, within {limit:.0} us");
    let count = times.count();
    let measured =
        format!("medians of {count}: {known:.0} us and {unknown:.0} us, of pairs {difference:.0} us");
    Ok(Check::of(claim, measured, difference.abs() <= limit || !times.is_told_apart()))
}
