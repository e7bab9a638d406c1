//! How attacks speak TLS, and how they look at a node that does.

use super::arena::OWN;
use crate::harness::pki::Leaf;
use crate::harness::process::{Run, Server};
use crate::harness::question::{Answer, Question, Sender, ask_over, http2};
use crate::harness::s3::{REGION, S3Server};
use crate::harness::tls_world::{ROOT, TlsWorld, curl, forebay};
use anyhow::Context;
use forebay_client::TlsFiles;
use forebay_tls::{ClientStream, ClientTls};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How long a handshake is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a node takes to look at its files, on a machine that is busy.
pub const LOOK: Duration = Duration::from_secs(20);

/// A method that readers may call.
pub const STATUS: &str = "/forebay.v1.Cache/Status";

/// A runtime for a few connections.
pub fn small_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Shakes hands with these files; the error says why that came to nothing.
pub async fn dial(files: &TlsFiles, at: SocketAddr) -> anyhow::Result<ClientStream<TcpStream>> {
    let tls = ClientTls::new(files.clone());
    let (host, port) = (at.ip().to_string(), at.port());
    Ok(timeout(PATIENCE, tls.dial(&host, port)).await.context("a handshake in time")??)
}

/// Why a handshake came to nothing; empty if it did not.
pub fn refusal(files: &TlsFiles, at: SocketAddr) -> anyhow::Result<String> {
    let shaken = small_runtime()?.block_on(dial(files, at));
    Ok(shaken.err().map(|error| format!("{error:#}")).unwrap_or_default())
}

/// A connection that speaks HTTP/2 over TLS.
pub async fn connect(files: &TlsFiles, at: SocketAddr) -> anyhow::Result<Sender> {
    http2(dial(files, at).await?).await
}

/// What a node answers a method over a connection.
pub async fn ask_for(sender: &mut Sender, path: &str) -> anyhow::Result<Answer> {
    ask_over(sender, Question { endpoint: "https://node", path, header: None, message: b"" }).await
}

/// A figure of a node's metrics, the sum over its labels.
pub fn metric(tls: &TlsWorld, server: &Server, name: &str) -> anyhow::Result<u64> {
    let root = tls.issue(Leaf::client("root", ROOT));
    let url = format!("{}/metrics", super::arena::metrics_of(server)?);
    let text = String::from_utf8(curl(&root, &[&url]).stdout()?)?;
    let values = text.lines().filter_map(|line| {
        let (of, value) = line.split_once(' ')?;
        (of.split('{').next()?.strip_prefix("forebay_")? == name).then_some(value)
    });
    let values: Vec<u64> = values.map(str::parse).collect::<Result<_, _>>()?;
    anyhow::ensure!(!values.is_empty(), "no {name} in {text}");
    Ok(values.iter().sum())
}

/// The digests of an epoch of the tenant's table, its order and its values, by `forebay epoch`.
pub fn read(files: &TlsFiles, endpoint: &str, store: &S3Server) -> anyhow::Result<String> {
    digests(forebay(files, endpoint, &["epoch", &store.uri(OWN), "--verify"]))
}

/// The same without any node.
pub fn planned(store: &S3Server) -> anyhow::Result<String> {
    let run = Run::find("forebay")?.args(["epoch", &store.uri(OWN), "--verify"]);
    let run = run.args(["--direct", "--s3-endpoint", &store.endpoint, "--s3-region", REGION]);
    digests(run.envs(store.credentials()))
}

fn digests(run: Run) -> anyhow::Result<String> {
    let answer: Value = run.limit(Duration::from_secs(60)).json()?;
    let epoch = &answer["epochs"][0];
    let [order, content] = ["order_digest", "content_digest"].map(|name| epoch[name].as_str());
    let both = order.zip(content).with_context(|| format!("no digests in {answer}"))?;
    Ok(format!("{} {}", both.0, both.1))
}

/// Waits until something is so; how long that took, if it came to that in time.
pub fn within(
    limit: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Option<Duration>> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if is_so()? {
            return Ok(Some(start.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(None)
}
