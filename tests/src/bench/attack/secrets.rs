//! Secrets, which come out nowhere: case 43.

use super::arena::{Arena, OWN};
use super::opened::open_request;
use super::trials::Trials;
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::policy::{ALL, Policy, S3_SECRET};
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::question::{Question, UNKNOWN, ask};
use crate::harness::s3_client::{S3Ask, S3Client};
use anyhow::Context;

/// Secrets that are planted, by where they are.
const PLANTED: [(&str, &str); 6] = [
    ("AWS_SECRET_ACCESS_KEY", "planted-01-of-the-store"),
    ("AWS_SESSION_TOKEN", "planted-02-of-the-session"),
    ("FOREBAY_SOURCE__S3_SESSION_TOKEN", "planted-03-of-the-settings"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "planted-04-of-azure"),
    ("GOOGLE_SERVICE_ACCOUNT_KEY", "planted-05-of-google"),
    ("FOREBAY_SOURCE__S3_SECRET_ACCESS_KEY", STORE_SECRET),
];

/// The secret by which the node asks its object store.
const STORE_SECRET: &str = "planted-06-of-the-settings";

/// Ids of keys: one that the object store knows, and one that it does not.
const KEY_IDS: [&str; 2] = ["AKIAPLANTED0000000000", "AKIAREFUSED0000000000"];

/// How requests that are signed begin to say so.
const SIGNATURE: &str = "Signature=";

/// 43: nothing of any secret comes out anywhere, with logs at trace: from a node that the object store
/// serves, and from one that it refuses.
pub fn planted(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    arena.store.keys().add(KEY_IDS[0], STORE_SECRET, None);
    let mut checks = Vec::new();
    for (key_id, what) in KEY_IDS.into_iter().zip(["that S3 serves", "that S3 refuses"]) {
        let policy = Policy::new(arena.store, &ALL);
        let server = node(arena, &policy, key_id)?;
        let told = told(arena, &server, &policy)?;
        let tokens = policy.tokens.values().map(|token| token.text());
        let planted = PLANTED.iter().map(|(_, secret)| *secret);
        let mut found = Trials::of(format!("secrets of a node {what} are nowhere"));
        for secret in tokens.chain(planted).chain([S3_SECRET, SIGNATURE]) {
            for (place, text) in &told {
                found.note(!text.contains(secret), || format!("{secret} in {place}"));
            }
        }
        checks.push(found.check());
        let sizes: Vec<String> = told.iter().map(|(place, text)| format!("{place} {}", text.len())).collect();
        let has = |place: &str, word: &str| told.iter().any(|(at, text)| *at == place && text.contains(word));
        checks.push(Check::of(
            format!("there is something to look through at a node {what}, in bytes"),
            sizes.join(", "),
            told.iter().all(|(_, text)| text.len() > 100) && has("the log", " TRACE "),
        ));
        let is_served = has("commands", "digest");
        let is_expected = is_served == (key_id == KEY_IDS[0]);
        checks.push(Check::of(
            format!("a job reads from a node {what}, or not"),
            format!("{is_served}"),
            is_expected,
        ));
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid()))?;
        let dumps = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap_or_default();
        let is_off = dumps.split_whitespace().nth(4) == Some("0");
        checks.push(Check::of(format!("a node {what} writes no core dump"), dumps, is_off));
        server.try_stop()?;
    }
    Ok(checks)
}

fn node(arena: &Arena<'_>, policy: &Policy, key_id: &str) -> anyhow::Result<Server> {
    let path = |name: &str| policy.path(name).display().to_string();
    let options = ServerOptions::for_s3(arena.store)
        .args(policy.arguments())
        .args(["--audit-file", &path("audit"), "--s3-listen", "127.0.0.1:0", "--s3-keys", &path("keys")])
        .env("FOREBAY_SOURCE__S3_ACCESS_KEY_ID", key_id)
        .env("FOREBAY_LOG", "trace")
        // At this level, with an object store that refuses, there are warnings.
        .allow_log("");
    PLANTED.iter().fold(options, |options, (name, secret)| options.env(name, secret)).try_start()
}

/// All that a node and its commands tell, by where.
fn told(arena: &Arena<'_>, server: &Server, policy: &Policy) -> anyhow::Result<Vec<(&'static str, String)>> {
    let uri = arena.store.uri(OWN);
    let mut commands = String::new();
    for (arguments, everybody) in [
        (&["inspect", uri.as_str()][..], &["vision", "root", "peers"][..]),
        (&["status"], &["vision", "root", "scraper"]),
        (&["epoch", &uri], &["vision"]),
        (&["load", &uri], &["vision", "peers"]),
        (&["drain", "x"], &["vision", "root"]),
    ] {
        for who in everybody {
            let run = Run::find("forebay")?.args(arguments).args(["--endpoint", &server.endpoint]);
            let ended = run.envs([("FOREBAY_TOKEN_FILE", policy.token_file(who))]).try_end()?;
            commands += &format!("{}{}", ended.stderr, String::from_utf8_lossy(&ended.stdout));
        }
    }
    let help = Run::find("forebay-server")?.arg("--help").stdout()?;
    let read = |path: String| -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&path).context(path)?).into_owned())
    };
    Ok(vec![
        ("commands", commands),
        ("answers", answers(arena, server, policy)?),
        ("S3 and metrics", http(arena, server, policy)?),
        ("the process list", read(format!("/proc/{}/cmdline", server.pid()))?),
        ("the audit log", read(policy.path("audit").display().to_string())?),
        ("the policy", read(policy.path("policy").display().to_string())?),
        ("the help", String::from_utf8_lossy(&help).into_owned()),
        // At last, for it has lines of all that was asked.
        ("the log", server.log()),
    ])
}

/// Answers of gRPC, good ones and errors.
fn answers(arena: &Arena<'_>, server: &Server, policy: &Policy) -> anyhow::Result<String> {
    let (runtime, open) = (runtime()?, open_request(&[&arena.store.uri(OWN)]));
    let mut told = String::new();
    for path in ["/forebay.v1.Cache/Open", "/forebay.v1.Cache/Status", "/forebay.v1.Cache/Drain"] {
        for who in [Some("vision"), Some("root"), Some("scraper"), None] {
            let header = who.map(|who| policy.header(who));
            let message = if path.ends_with("Open") { &open[..] } else { &[] };
            let question = Question { endpoint: &server.endpoint, path, header: header.as_deref(), message };
            let answer = runtime.block_on(ask(question))?;
            anyhow::ensure!(who.is_some() || answer.code == UNKNOWN, "{path} of nobody: {}", answer.code);
            told += &format!("{}{}", answer.message, String::from_utf8_lossy(&answer.body));
        }
    }
    Ok(told)
}

/// What S3 clients are told, with a good signature, a wrong one and none; and the metrics.
fn http(arena: &Arena<'_>, server: &Server, policy: &Policy) -> anyhow::Result<String> {
    let (runtime, bucket) = (runtime()?, &arena.store.bucket);
    let endpoint = server.s3.clone().context("a node with an S3 endpoint")?;
    let good = S3Client { endpoint, key_id: "VISION".into(), secret: S3_SECRET.into() };
    let wrong = S3Client { secret: "guessed".into(), ..good.clone() };
    let asks = [format!("/{bucket}/{OWN}/part-00000.parquet"), format!("/{bucket}/{OWN}/x"), "/".into()]
        .map(|target| S3Ask::new("GET", target).header("range", "bytes=0-99"));
    let mut told = String::new();
    for ask in &asks {
        for reply in [good.send(ask), wrong.send(ask)].map(|send| runtime.block_on(send)) {
            let reply = reply?;
            told += &format!("{:?}{}", reply.headers, String::from_utf8_lossy(&reply.body));
        }
        told += &String::from_utf8_lossy(&runtime.block_on(good.send_unsigned(ask))?.body);
    }
    let endpoint = server.metrics.clone().context("a node with metrics")?;
    let metrics = S3Client { endpoint, ..good };
    let scrape = S3Ask::new("GET", "/metrics").header("authorization", &policy.header("scraper"));
    told += &String::from_utf8_lossy(&runtime.block_on(metrics.send_unsigned(&scrape))?.body);
    Ok(told)
}
