//! `make bench-tls`: what TLS costs. Warm epochs of MNIST from a node without TLS and from one with it, in
//! turn, both ends on this machine; the processor time of the nodes; handshakes.
//!
//! The floor is what one core encrypts by the same cipher in the same minute, as openssl says. Beside both,
//! the programs of before there were limits, callers and TLS read the same without TLS.

use anyhow::Context;
use clap::Parser;
use forebay_tls::ClientTls;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::stages::{Stages, runtime};
use crate::harness::answers::EpochsReport;
use crate::harness::check::Findings;
use crate::harness::mnist;
use crate::harness::pki::{Leaf, Pki, client_flags, node_flags};
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;

/// Warm epochs of a run, and handshakes, at full size.
const EPOCHS: f64 = 40.0;
const HANDSHAKES: f64 = 1000.0;

/// The part of the plain speed that must be left where both ends share two cores, or as much as the cipher
/// leaves there, if that is less; and how often the processor time may be taken.
const SPEED_LEFT: f64 = 0.35;
const CPU_TIMES: f64 = 3.0;

/// The commit that `--before` is built of, and the part of its speed that must be left without TLS.
const BEFORE: &str = "d3b0a20";
const PLAIN_LEFT: f64 = 0.98;

/// Measures what TLS costs.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-tls", version)]
pub struct TlsOptions {
    /// How often each way is taken.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Part of the full size; promises are judged at full size only.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// The folder of the programs of before a node held anything against anybody (tests/before.sh).
    #[arg(long)]
    before: Option<PathBuf>,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// A node and how it is asked.
struct TlsWay {
    server: Server,
    client: Option<PathBuf>,
    flags: Vec<String>,
    mb_per_s: Vec<f64>,
    /// Of the node, for a gigabyte that it served.
    cpu_s_per_gb: Vec<f64>,
}

/// The nodes that are compared.
struct TlsWays {
    plain: TlsWay,
    tls: TlsWay,
    before: Option<TlsWay>,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &TlsOptions) -> anyhow::Result<bool> {
    let (pki, authority) = (Pki::new()?, Pki::authority("bench")?);
    pki.put("ca.pem", &authority.pem)?;
    let (node, _) = pki.issue(Leaf::node("node"), Some(&authority))?;
    let (client, _) = pki.issue(Leaf::client("client", "spiffe://bench/client"), Some(&authority))?;
    let s3 = S3Server::start();
    mnist::upload(&s3).context("read MNIST")?;
    let way = |options: ServerOptions, client, flags| {
        let (mb_per_s, cpu_s_per_gb) = Default::default();
        anyhow::Ok(TlsWay { server: options.try_start()?, client, flags, mb_per_s, cpu_s_per_gb })
    };
    let at = || ServerOptions::for_s3(&s3);
    let old = |folder: &PathBuf| {
        let server = at().program(folder.join("forebay-server"));
        way(server, Some(folder.join("forebay")), Vec::new())
    };
    let mut ways = TlsWays {
        plain: way(at(), None, Vec::new())?,
        tls: way(at().args(node_flags(&node)), None, client_flags(&client))?,
        before: options.before.as_ref().map(old).transpose()?,
    };
    let mut stages = Stages::default();
    stages.run("Epochs", || epochs(options, &s3, &mut ways));
    stages.run("Handshakes", || handshakes(options, &ways.tls.server, ClientTls::new(client.clone())));
    let TlsWays { plain, tls, before } = ways;
    for way in [plain, tls].into_iter().chain(before) {
        way.server.try_stop()?;
    }
    let settings = json!({
        "runs": options.runs,
        "scale": options.scale,
        "cipher": "TLS_AES_128_GCM_SHA256",
        "before": options.before.as_ref().map(|_| BEFORE),
    });
    stages.end(&options.folder, "tls", settings)
}

fn epochs(options: &TlsOptions, s3: &S3Server, ways: &mut TlsWays) -> anyhow::Result<Findings> {
    let TlsWays { plain, tls, before } = ways;
    let mut cipher = Vec::new();
    for _ in 0..options.runs {
        for way in [&mut *plain, &mut *tls].into_iter().chain(before.as_mut()) {
            read(options, s3, way)?;
        }
        cipher.push(openssl_mb_per_s()?);
    }
    let pairs = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(a, b)| a / b).collect::<Vec<_>>();
    let speed = Row::of("tls_vs_plain", "x", &pairs(&tls.mb_per_s, &plain.mb_per_s));
    let cpu = Row::of("tls_server_cpu_vs_plain", "x", &pairs(&tls.cpu_s_per_gb, &plain.cpu_s_per_gb));
    let cipher = Row::of("openssl_aes_128_gcm_mb_per_s", "MB/s", &cipher);
    let plain_mb_per_s = Row::of("plain_mb_per_s", "MB/s", &plain.mb_per_s);
    // Each byte is encrypted once and decrypted once, by two cores that have no time left.
    let limit = 1.0 / (1.0 + plain_mb_per_s.value / cipher.value);
    let wanted = SPEED_LEFT.min(limit);
    let then = before.as_ref().map(|before| pairs(&plain.mb_per_s, &before.mb_per_s));
    let mut found = Findings::default();
    match then {
        Some(then) => {
            let row = Row::of("plain_vs_before", "x", &then);
            let claim =
                format!("without TLS {PLAIN_LEFT} of the speed of {BEFORE} is left: {:.2}", row.value);
            claimed(options, &mut found, row.value >= PLAIN_LEFT, claim);
            found.rows.push(row);
        }
        None => {
            found.skip("plain_vs_before: needs --before FOLDER, the programs that tests/before.sh builds")
        }
    }
    let claims = [
        (speed.value >= wanted, format!("TLS leaves {wanted:.2} of the speed: {:.2}", speed.value)),
        (
            cpu.value <= CPU_TIMES,
            format!("a node takes {CPU_TIMES} times the processor at most: {:.2}", cpu.value),
        ),
    ];
    for (holds, claim) in claims {
        claimed(options, &mut found, holds, claim);
    }
    found.rows.extend([
        plain_mb_per_s,
        Row::of("tls_mb_per_s", "MB/s", &tls.mb_per_s)
            .against("AES-128-GCM on one core (openssl)", cipher.value),
        speed,
        Row::of("plain_server_cpu_s_per_gb", "s/GB", &plain.cpu_s_per_gb),
        Row::of("tls_server_cpu_s_per_gb", "s/GB", &tls.cpu_s_per_gb),
        cpu,
        Row::of("tls_vs_plain_by_cipher", "x", &[limit]),
        cipher,
    ]);
    Ok(found)
}

/// A promise, which is judged at full size.
fn claimed(options: &TlsOptions, found: &mut Findings, holds: bool, claim: String) {
    match options.scale >= 1.0 {
        true => found.check(holds, claim),
        false => found.leave_out(claim),
    }
}

/// Warm epochs by one way.
fn read(options: &TlsOptions, s3: &S3Server, way: &mut TlsWay) -> anyhow::Result<()> {
    let warm = (EPOCHS * options.scale).max(1.0) as usize;
    let program = match &way.client {
        Some(program) => Run::program(program, "forebay of before"),
        None => Run::find("forebay")?,
    };
    let run = program.args(["epoch", &s3.uri("mnist/train/"), "--same-host", "off"]);
    let run =
        run.args(["--epochs", &(warm + 1).to_string(), "--endpoint", &way.server.endpoint]).args(&way.flags);
    let before = (way.server.cpu_s()?, Instant::now());
    let report: EpochsReport = run.limit(Duration::from_secs(600)).json()?;
    let cpu_s = way.server.cpu_s()? - before.0;
    let epochs = report.epochs.iter().skip(1);
    anyhow::ensure!(epochs.clone().all(|epoch| epoch.s3_requests == 0), "a warm epoch read from S3");
    let speeds: Vec<f64> = epochs.map(|epoch| epoch.mb_per_s).collect();
    let speed = Row::of("", "MB/s", &speeds).value;
    // Epochs are alike, and the first one is served too.
    let first = report.epochs.first().context("an epoch")?;
    let mb = speed * first.samples as f64 / report.epochs.last().context("an epoch")?.samples_per_s;
    way.mb_per_s.push(speed);
    way.cpu_s_per_gb.push(cpu_s / (mb * report.epochs.len() as f64 / 1e3));
    Ok(())
}

/// One after the other, each on a connection of its own.
fn handshakes(options: &TlsOptions, server: &Server, tls: ClientTls) -> anyhow::Result<Findings> {
    let count = (HANDSHAKES * options.scale).max(1.0) as u32;
    let address = server.endpoint.trim_start_matches("https://");
    let (host, port) = address.rsplit_once(':').context("a port")?;
    let port: u16 = port.parse()?;
    let (runtime, mut found) = (runtime()?, Findings::default());
    let began = Instant::now();
    for _ in 0..count {
        runtime.block_on(tls.dial(host, port))?;
    }
    found.value("handshakes_per_s", "1/s", f64::from(count) / began.elapsed().as_secs_f64());
    Ok(found)
}

/// What one core encrypts.
fn openssl_mb_per_s() -> anyhow::Result<f64> {
    let run = Run::program("openssl", "openssl").args(["speed", "-seconds", "1", "-bytes", "16384"]);
    let said = String::from_utf8(run.args(["-evp", "aes-128-gcm"]).stdout()?)?;
    let figure = said.lines().rev().find_map(|line| line.split_whitespace().last()?.strip_suffix('k'));
    // In thousands of bytes.
    Ok(figure.context("a figure of openssl")?.parse::<f64>()? / 1e3)
}
