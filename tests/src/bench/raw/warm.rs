//! Warm reads by 16 connections, beside nginx, raw TCP and hyper in the same rounds.

use super::floor::{FloorProcess, FloorServer};
use super::load::{LoadFigures, get_once, measure};
use super::nginx::{self, Nginx};
use super::scale::{RawScale, judge};
use super::stage::RawStage;
use crate::harness::check::Findings;
use crate::harness::differential::bytes_of;
use crate::harness::report::Row;
use crate::harness::s3_client::S3Ask;
use object_store::path::Path;
use object_store::signer::Signer;
use std::time::Duration;

pub const CONNECTIONS: usize = 16;
pub const OBJECTS: usize = 4;

/// The figures of all rounds.
#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    ours_cpu: Vec<f64>,
    nginx: Vec<f64>,
    nginx_cpu: Vec<f64>,
    tcp: Vec<f64>,
    ranges: Vec<f64>,
    ranges_cpu_us: Vec<f64>,
    hyper: Vec<f64>,
}

/// Runs it.
pub fn run(scale: &RawScale) -> anyhow::Result<Findings> {
    let stage = RawStage::start(|options| {
        options.args(["--cache-bytes", "8GB"]).env("FOREBAY_OBJECTS__METADATA_AGE", "immutable")
    })?;
    for n in 0..OBJECTS {
        stage.s3.put(&format!("warm/{n}"), bytes_of(n as u64, scale.warm_bytes));
    }
    let file = stage.folder.path().join("file");
    std::fs::write(&file, bytes_of(9, scale.warm_bytes))?;
    let tcp = FloorProcess::start(FloorServer::Tcp, &file)?;
    let hyper = FloorProcess::start(FloorServer::Hyper, &file)?;
    let nginx_folder = tempfile::tempdir()?;
    let nginx = match nginx::program() {
        Some(program) => Some(Nginx::start(&program, &stage.s3.endpoint, nginx_folder.path())?),
        None => None,
    };
    let signed = signed_urls(&stage)?;
    let client = stage.client()?;
    for (n, ask) in signed.iter().enumerate() {
        anyhow::ensure!(
            get_once(&client.endpoint, &ours(&stage, n)?)? == scale.warm_bytes as u64,
            "object {n}"
        );
        if let Some(nginx) = &nginx {
            anyhow::ensure!(get_once(&nginx.address, ask)? == scale.warm_bytes as u64, "object {n} by nginx");
        }
    }
    let mut rounds = Rounds::default();
    for _ in 0..scale.rounds {
        round(scale, &stage, [&tcp, &hyper], nginx.as_ref(), &signed, &mut rounds)?;
    }
    Ok(found(&rounds))
}

fn round(
    scale: &RawScale,
    stage: &RawStage,
    [tcp, hyper]: [&FloorProcess; 2],
    nginx: Option<&Nginx>,
    signed: &[S3Ask],
    rounds: &mut Rounds,
) -> anyhow::Result<()> {
    let (client, size) = (stage.client()?, scale.warm_bytes as u64);
    // Signed for a quarter of an hour.
    let asks = (0..OBJECTS).map(|n| ours(stage, n)).collect::<anyhow::Result<Vec<_>>>()?;
    let load = |address: &str, asks: &[S3Ask], ranges_of| {
        measure(address, asks, CONNECTIONS, scale.seconds, ranges_of)
    };
    let plain = [S3Ask::new("GET", "/")];
    rounds.tcp.push(load(&tcp.address, &plain, 0)?.gb_per_s);
    let before = stage.node.cpu_s()?;
    let LoadFigures { gb_per_s, gb, .. } = load(&client.endpoint, &asks, 0)?;
    rounds.ours.push(gb_per_s);
    rounds.ours_cpu.push((stage.node.cpu_s()? - before) / gb);
    if let Some(nginx) = nginx {
        let before = nginx.cpu_s()?;
        let LoadFigures { gb_per_s, gb, .. } = load(&nginx.address, signed, 0)?;
        rounds.nginx.push(gb_per_s);
        rounds.nginx_cpu.push((nginx.cpu_s()? - before) / gb);
    }
    let before = stage.node.cpu_s()?;
    let figures = load(&client.endpoint, &asks, size)?;
    rounds.ranges.push(figures.requests_per_s);
    let requests = figures.requests_per_s * scale.seconds;
    rounds.ranges_cpu_us.push((stage.node.cpu_s()? - before) / requests * 1e6);
    rounds.hyper.push(load(&hyper.address, &plain, size)?.requests_per_s);
    Ok(())
}

/// A request for an object, signed in its header.
fn ours(stage: &RawStage, n: usize) -> anyhow::Result<S3Ask> {
    stage.client()?.sign(&S3Ask::new("GET", format!("/{}/warm/{}", stage.s3.bucket, n % OBJECTS)))
}

/// Requests for the objects at the object store, signed in their URLs.
fn signed_urls(stage: &RawStage) -> anyhow::Result<Vec<S3Ask>> {
    let store = stage.s3.client(&stage.s3.endpoint)?;
    let sign = |n: usize| -> anyhow::Result<S3Ask> {
        let path = Path::from(format!("warm/{n}"));
        let url =
            stage.runtime.block_on(store.signed_url("GET".parse()?, &path, Duration::from_secs(86_400)))?;
        Ok(S3Ask::new("GET", format!("{}?{}", url.path(), url.query().unwrap_or_default())))
    };
    (0..OBJECTS).map(sign).collect()
}

fn found(rounds: &Rounds) -> Findings {
    let mut found = Findings::default();
    let ratio = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>();
    let tcp = Row::of("raw_tcp_gb_per_s", "GB/s", &rounds.tcp);
    let hyper = Row::of("raw_hyper_ranges_per_s", "requests/s", &rounds.hyper);
    found.rows.push(
        Row::of("raw_gb_per_s", "GB/s", &rounds.ours).against("threads that write a mapping", tcp.value),
    );
    found.rows.push(Row::of("raw_cpu_s_per_gb", "s/GB", &rounds.ours_cpu));
    found
        .rows
        .push(Row::of("raw_ranges_per_s", "requests/s", &rounds.ranges).against("bare hyper", hyper.value));
    found.rows.push(Row::of("raw_ranges_cpu_us", "us", &rounds.ranges_cpu_us));
    found.rows.extend([tcp, hyper]);
    judge(&mut found, Row::of("raw_vs_tcp", "ratio", &ratio(&rounds.ours, &rounds.tcp)), Some(0.6), None);
    let ranges = Row::of("raw_ranges_vs_hyper", "ratio", &ratio(&rounds.ranges, &rounds.hyper));
    judge(&mut found, ranges, Some(0.6), None);
    if rounds.nginx.is_empty() {
        found.skip("raw_vs_nginx: nginx is not installed");
        return found;
    }
    found.rows.push(Row::of("raw_nginx_gb_per_s", "GB/s", &rounds.nginx));
    found.rows.push(Row::of("raw_nginx_cpu_s_per_gb", "s/GB", &rounds.nginx_cpu));
    judge(&mut found, Row::of("raw_vs_nginx", "ratio", &ratio(&rounds.ours, &rounds.nginx)), Some(0.9), None);
    let cpu = Row::of("raw_cpu_vs_nginx", "ratio", &ratio(&rounds.ours_cpu, &rounds.nginx_cpu));
    judge(&mut found, cpu, None, Some(1.25));
    found
}
