//! Tickets that make a node fetch much for little: case 31.

use super::arena::{Arena, OTHERS};
use crate::harness::check::Check;
use crate::harness::policy::{AUDIO, Policy, VISION, Who};
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::question::{Question, ask, ask_whole, flight_ticket};
use crate::harness::table::{MIB_ROWS, Table};
use anyhow::Context;
use forebay_proto::v1;
use prost::Message as _;
use std::time::{Duration, Instant};

/// Where the rows lie: more than the node's disk holds.
const ROWS: &str = "tenants/vision/rows";
const SEGMENTS: u64 = 24;
const CACHE_BYTES: u64 = 8 << 20;

/// What may be fetched in a second.
const RATE: u64 = 4_000_000;

/// What the rate may be missed by, and the bytes that are under way when it is counted.
const SLACK: f64 = 0.05;
const UNDER_WAY: u64 = 2 << 20;

/// Requests at once.
const AT_ONCE: usize = 4;

/// 31: random rows of everything, again and again, by a principal with a rate.
pub fn random_rows(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let table = Table::upload(arena.store, ROWS, SEGMENTS, MIB_ROWS)?;
    let limited = Who { more: "limits = { s3_bytes_per_s = 4000000 }", ..VISION };
    let policy = Policy::new(arena.store, &[limited, AUDIO]);
    let server = ServerOptions::for_s3(arena.store)
        .args(policy.arguments())
        .args(["--cache-bytes", &CACHE_BYTES.to_string()])
        .args(["--memory-bytes", &(64_u64 << 20).to_string()])
        // Its disk is smaller than the table: it says so, once.
        .allow_log("neither the cache nor memory has room")
        .try_start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let ticket = runtime.block_on(rows_ticket(&server, &policy, &table))?;
    arena.store.take_log();
    let (begin, time) = (Instant::now(), arena.scale.slow.min(Duration::from_secs(20)));
    for _ in 0..AT_ONCE {
        let (endpoint, header, ticket) = (server.endpoint.clone(), policy.header("vision"), ticket.clone());
        runtime.spawn(async move { while ask_for(&endpoint, &header, &ticket).await.is_ok() {} });
    }
    let other = load(&server, &policy, &arena.store.uri(OTHERS))?;
    std::thread::sleep(time.saturating_sub(begin.elapsed()));
    let (fetched, took) = (table.object_bytes(&arena.store.log()), begin.elapsed().as_secs_f64());
    let most = RATE as f64 * took * (1.0 + SLACK) + UNDER_WAY as f64;
    drop(runtime);
    server.try_stop()?;
    let mb = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    Ok(vec![
        Check::of(
            format!("at most {} are fetched in {took:.1} s", mb(most)),
            mb(fetched as f64),
            (fetched as f64) <= most,
        ),
        Check::of("it gets what it may", mb(fetched as f64), fetched as f64 > 0.5 * RATE as f64 * took),
        Check::of(
            "others' fills go on",
            format!("1 MiB loaded in {:.2} s", other.as_secs_f64()),
            other < Duration::from_secs(5),
        ),
    ])
}

/// A ticket for rows of all segments, in no order.
async fn rows_ticket(server: &Server, policy: &Policy, table: &Table) -> anyhow::Result<Vec<u8>> {
    let dataset =
        v1::DatasetSpec { uri: table.uri.clone(), segment_bytes: table.segment_bytes, ..Default::default() };
    let open = v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec();
    let header = Some(policy.header("vision"));
    let (endpoint, path) = (server.endpoint.as_str(), "/forebay.v1.Cache/Open");
    let opened = ask(Question { endpoint, path, header: header.as_deref(), message: &open }).await?;
    let manifest = opened.first::<v1::OpenReply>()?.manifest.context("a manifest")?.digest;
    let rows = 0..8 * SEGMENTS as u32;
    let rows = v1::RowsTicket {
        manifest,
        segment: rows.clone().map(|n| n * 7 % SEGMENTS as u32).collect(),
        row: rows.map(|n| u64::from(n) * 131 % MIB_ROWS).collect(),
        ..Default::default()
    };
    Ok(flight_ticket(&v1::Ticket { kind: Some(v1::ticket::Kind::Rows(rows)), ..Default::default() }))
}

async fn ask_for(endpoint: &str, header: &str, ticket: &[u8]) -> anyhow::Result<()> {
    let path = "/arrow.flight.protocol.FlightService/DoGet";
    let answer = ask_whole(Question { endpoint, path, header: Some(header), message: ticket }).await?;
    anyhow::ensure!(answer.code == 0, "{}", answer.message);
    Ok(())
}

/// How long another principal's load takes.
fn load(server: &Server, policy: &Policy, uri: &str) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    Run::new("forebay")
        .args(["load", uri, "--endpoint", &server.endpoint])
        .envs([("FOREBAY_TOKEN_FILE", policy.token_file("audio").as_os_str())])
        .stdout()?;
    Ok(begin.elapsed())
}
