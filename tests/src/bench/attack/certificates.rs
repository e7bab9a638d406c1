//! Attacks with certificates of clients: cases 19 and 20.

use super::arena::Arena;
use super::secured::{LOOK, STATUS, ask_for, connect, dial, metric, refusal, small_runtime, within};
use crate::harness::check::Check;
use crate::harness::pki::{Leaf, Pki};
use crate::harness::question::{Question, UNKNOWN, post};
use crate::harness::tls_world::{TlsWorld, VISION};
use forebay_client::TlsFiles;
use http_body_util::BodyExt as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long the connection of a revoked certificate may stay.
const CUT: Duration = Duration::from_secs(10);

/// How long the audit log may take.
const WRITTEN: Duration = Duration::from_secs(10);

/// The metric of handshakes that came to nothing.
const FAILED: &str = "tls_handshakes_failed_total";

/// 19: certificates that are not good; and a good one of somebody whom the policy does not know.
pub fn bad_ones(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (tls, at) = (arena.tls()?, arena.grpc);
    let failed_before = metric(tls, &arena.server, FAILED)?;
    let mut checks = vec![revoked(tls, at)?];
    let bad = bad_certificates(tls)?;
    for (name, files, says) in &bad {
        let why = refusal(files, at)?;
        let is_refused = why.contains(says);
        checks.push(Check::of(format!("{name}: no handshake"), why, is_refused));
    }
    let least = failed_before + bad.len() as u64 + 1;
    let mut failed = 0;
    let is_counted = within(WRITTEN, || {
        failed = metric(tls, &arena.server, FAILED)?;
        Ok(failed >= least)
    })?;
    let measured = format!("{failed_before}, then {failed}");
    checks.push(Check::of("each is counted", measured, is_counted.is_some()));
    checks.extend(nobody(arena, tls)?);
    let good = refusal(&tls.issue(Leaf::client("good", VISION)), at)?;
    checks.push(Check::of("a good certificate gets a handshake", good.clone(), good.is_empty()));
    Ok(checks)
}

/// Certificates with which there is no handshake, and what the node says to each.
fn bad_certificates(tls: &TlsWorld) -> anyhow::Result<Vec<(&'static str, TlsFiles, &'static str)>> {
    let (other, ours) = (Pki::authority("other")?, tls.authority());
    let client = |name| Leaf::client(name, VISION);
    let issue = |leaf, by| tls.pki.issue(leaf, by).map(|(files, _)| files);
    let none = TlsFiles { cert: None, key: None, ..issue(client("none"), Some(&ours))? };
    Ok(vec![
        ("of another authority", issue(client("foreign"), Some(&other))?, "does not know the authority"),
        ("expired", issue(Leaf { days: (-9, -1), ..client("expired") }, Some(&ours))?, "has expired"),
        (
            "not yet valid",
            issue(Leaf { days: (1, 9), ..client("young") }, Some(&ours))?,
            "does not begin yet",
        ),
        ("signed by itself", issue(client("itself"), None)?, "does not know the authority"),
        ("none at all", none, "asks for a client certificate"),
    ])
}

/// A certificate that was good until it was revoked.
fn revoked(tls: &TlsWorld, at: SocketAddr) -> anyhow::Result<Check> {
    let (files, serial) = tls.pki.issue(Leaf::client("revoked", VISION), Some(&tls.authority()))?;
    let before = refusal(&files, at)?;
    anyhow::ensure!(before.is_empty(), "it is good at first: {before}");
    tls.pki.revoke(&[serial], &tls.authority())?;
    let took = within(LOOK, || Ok(refusal(&files, at)?.contains("was revoked")))?;
    let measured = took.map_or("it still is good".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()));
    Ok(Check::of("revoked: no handshake once the node has seen the list", measured, took.is_some()))
}

/// A good certificate of somebody whom the policy does not know.
fn nobody(arena: &Arena<'_>, tls: &TlsWorld) -> anyhow::Result<Vec<Check>> {
    let stranger = tls.issue(Leaf::client("stranger", "spiffe://test/stranger"));
    let audit = || std::fs::read_to_string(tls.pki.path("audit"));
    let lines_before = audit()?.lines().count();
    let answer = small_runtime()?
        .block_on(async { ask_for(&mut connect(&stranger, arena.grpc).await?, STATUS).await })?;
    let mut line = String::new();
    let is_written = within(WRITTEN, || {
        let text = audit()?;
        let mut new = text.lines().skip(lines_before);
        let about = |line: &&str| line.contains("nobody who is known") && line.contains("Status");
        line = new.find(about).unwrap_or_default().to_owned();
        Ok(!line.is_empty())
    })?;
    let measured = format!("code {}: {}", answer.code, answer.message);
    let is_refused = answer.code == UNKNOWN && answer.body.is_empty();
    Ok(vec![
        Check::of("of nobody in the policy: unauthenticated", measured, is_refused),
        Check::of("of nobody in the policy: a line in the audit log", line, is_written.is_some()),
    ])
}

/// 20: a certificate is revoked while its connection is open, and in use.
pub fn revoked_in_use(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (tls, at, by) = (arena.tls()?, arena.grpc, arena.tls()?.authority());
    let (kept_files, _) = tls.pki.issue(Leaf::client("kept", VISION), Some(&by))?;
    let (cut_files, serial) = tls.pki.issue(Leaf::client("cut", VISION), Some(&by))?;
    small_runtime()?.block_on(async {
        let (mut kept, mut cut) = (watching(&kept_files, at).await?, watching(&cut_files, at).await?);
        let was_open = timeout(Duration::from_millis(500), cut.ended()).await.is_err();
        tls.pki.revoke(&[serial], &by)?;
        let start = Instant::now();
        let is_cut = timeout(2 * CUT, cut.ended()).await.is_ok();
        let took = start.elapsed();
        let goes_on = timeout(Duration::from_secs(1), kept.ended()).await.is_err();
        let answer = ask_for(&mut kept.sender, STATUS).await;
        let code = answer.map_or_else(|error| format!("{error:#}"), |answer| answer.code.to_string());
        let again = dial(&cut_files, at).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
        let took_s = format!("{:.1} s", took.as_secs_f64());
        Ok(vec![
            Check::of("its connection is open before", "", was_open),
            Check::of("its connection is cut within 10 s", took_s, is_cut && took < CUT),
            Check::of("another's stream goes on", "", goes_on),
            Check::of("another's connection answers", format!("code {code}"), code == "0"),
            Check::of("it opens no other", again.clone(), again.contains("was revoked")),
        ])
    })
}

/// A connection on which somebody waits for news of the cluster.
struct Watching {
    sender: crate::harness::question::Sender,
    news: hyper::body::Incoming,
}

async fn watching(files: &TlsFiles, at: SocketAddr) -> anyhow::Result<Watching> {
    let mut sender = connect(files, at).await?;
    let path = "/forebay.v1.Cache/WatchTopology";
    let question = Question { endpoint: "https://node", path, header: None, message: b"" };
    let news = post(&mut sender, question).await?.into_body();
    Ok(Watching { sender, news })
}

impl Watching {
    /// Waits until no more news can come.
    async fn ended(&mut self) {
        while let Some(Ok(_)) = self.news.frame().await {}
    }
}
