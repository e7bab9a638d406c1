//! Certificates that change while a node works, well and badly: case 45.

use super::arena::Arena;
use super::secured::{LOOK, dial, metric, planned, read, refusal, small_runtime, within};
use crate::harness::check::Check;
use crate::harness::pki::{Leaf, Pki};
use crate::harness::process::Server;
use crate::harness::tls_world::{TlsWorld, VISION};
use anyhow::Context;
use forebay_client::TlsFiles;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Between two new certificates. A node looks at its files each 2 s, so it sees some of them only.
const PACE: Duration = Duration::from_millis(300);

/// Between two connections of one who does nothing but open them.
const DIAL: Duration = Duration::from_millis(50);

/// How long a job may take to begin with its new certificate.
const BEGUN: Duration = Duration::from_secs(60);

/// What a node says when it takes new files, and when it does not.
const TAKEN: &str = "TLS goes by new files";
const NOT_TAKEN: &str = "the new TLS files cannot be used";

/// The metric of new files that could not be used.
const FAILED: &str = "tls_reloads_failed_total";

/// 45: files that make no sense, on a node of their own; and good ones under load, on this one.
pub fn files(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    std::thread::scope(|scope| {
        let wrong = scope.spawn(|| wrong_files(arena));
        let rotated = Load::new(arena)?.rotate();
        let mut checks = wrong.join().ok().context("the thread of wrong files")??;
        checks.extend(rotated?);
        Ok(checks)
    })
}

/// Files of certificates that cannot be used, one after the other.
fn wrong_files(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let tls = TlsWorld::new("tenants/vision/");
    let files = tls.issue(Leaf::node("node"));
    let node = tls.node(arena.store, &files).allow_log(NOT_TAKEN).try_start()?;
    let at = super::arena::address(&node.endpoint)?;
    let client = tls.issue(Leaf::client("client", VISION));
    let (cert_path, key_path) = (tls.pki.path("node.pem"), tls.pki.path("node-key.pem"));
    let (cert, key) = (std::fs::read_to_string(&cert_path)?, std::fs::read_to_string(&key_path)?);
    let others = tls.issue(Leaf::node("others")).key.context("a key")?;
    let others = std::fs::read_to_string(others)?;
    let half = &cert[..cert.len() / 2];
    let mut checks = Vec::new();
    let wrong = [
        ("half written", Some(half), &key),
        ("empty", Some(""), &key),
        ("with another's key", Some(cert.as_str()), &others),
        ("that cannot be read", None, &key),
    ];
    for (number, (name, new_cert, new_key)) in wrong.into_iter().enumerate() {
        tls.pki.put("node-key.pem", new_key)?;
        match new_cert {
            Some(text) => drop(tls.pki.put("node.pem", text)?),
            // Root may read all files, but not one that is not there.
            None => std::fs::remove_file(&cert_path)?,
        }
        let counted = within(LOOK, || Ok(metric(&tls, &node, FAILED)? > number as u64))?;
        let why = refusal(&client, at)?;
        checks.push(Check::of(format!("a certificate {name}: counted"), "", counted.is_some()));
        checks.push(Check::of(format!("a certificate {name}: the one before serves"), &why, why.is_empty()));
    }
    let (count, warned) = (metric(&tls, &node, FAILED)?, node.log().matches(NOT_TAKEN).count());
    let measured = format!("{count} counted, {warned} lines");
    checks.push(Check::of("one WARN for each", measured, count == 4 && warned == 4));
    let before = taken(&node);
    tls.issue(Leaf::node("node"));
    let is_taken = within(LOOK, || Ok(taken(&node) > before))?.is_some() && refusal(&client, at)?.is_empty();
    checks.push(Check::of("good files after that are taken", "", is_taken));
    node.try_stop()?;
    Ok(checks)
}

/// How often a node has taken new files.
fn taken(node: &Server) -> usize {
    node.log().matches(TAKEN).count()
}

/// Those who open connections all the time, and a job that reads.
struct Load<'a> {
    arena: &'a Arena<'a>,
    tls: &'a TlsWorld,
    /// The files that they show, before and after the authority changes.
    files: [TlsFiles; 2],
    /// They are to show the latter.
    is_after: AtomicBool,
    is_done: AtomicBool,
    shaken: AtomicUsize,
    errors: Mutex<Vec<String>>,
    /// Epochs that the job has read, and how many it has begun with the latter files.
    epochs: AtomicUsize,
    begun_after: AtomicUsize,
}

impl<'a> Load<'a> {
    fn new(arena: &'a Arena<'a>) -> anyhow::Result<Self> {
        let tls = arena.tls()?;
        let before = tls.issue(Leaf::client("before", VISION));
        let path = |name: &str| Some(tls.pki.path(name));
        let after = TlsFiles { cert: path("after.pem"), key: path("after-key.pem"), ..before.clone() };
        Ok(Self {
            arena,
            tls,
            files: [before, after],
            is_after: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            shaken: AtomicUsize::new(0),
            errors: Mutex::default(),
            epochs: AtomicUsize::new(0),
            begun_after: AtomicUsize::new(0),
        })
    }

    /// Changes certificates and the authority under the load.
    fn rotate(&self) -> anyhow::Result<Vec<Check>> {
        let wanted = planned(self.arena.store)?;
        let failed_before = metric(self.tls, &self.arena.server, FAILED)?;
        let mut checks = std::thread::scope(|scope| {
            let dialers = [scope.spawn(|| self.open_connections()), scope.spawn(|| self.open_connections())];
            let job = scope.spawn(|| self.read_epochs(&wanted));
            let checks = self.leaves().and_then(|mut checks| {
                checks.push(self.authority()?);
                Ok(checks)
            });
            // Whatever became of that, the others end.
            self.is_done.store(true, Relaxed);
            let ended = dialers.into_iter().chain([job]).map(|one| one.join().is_ok());
            anyhow::ensure!(ended.filter(|is_well| !is_well).count() == 0, "one of the load broke off");
            checks
        })?;
        let (shaken, epochs) = (self.shaken.load(Relaxed), self.epochs.load(Relaxed));
        let errors = self.errors.lock();
        let measured = format!("{shaken} good ones, {epochs} epochs; {}", errors.join("; "));
        let is_good = errors.is_empty() && shaken > 20 && epochs > 1;
        checks.push(Check::of("no handshake fails, and each epoch is the plan's", measured, is_good));
        let failed = metric(self.tls, &self.arena.server, FAILED)? - failed_before;
        checks.push(Check::of("no good pair is taken for a wrong one", failed.to_string(), failed == 0));
        let why = refusal(&self.files[0], self.arena.grpc)?;
        let is_out = why.contains("does not know the authority");
        checks.push(Check::of("a certificate of the old authority is no longer good", why, is_out));
        Ok(checks)
    }

    fn files(&self) -> &TlsFiles {
        &self.files[usize::from(self.is_after.load(Relaxed))]
    }

    /// Opens connections, each with a handshake of its own.
    fn open_connections(&self) {
        let Ok(runtime) = small_runtime() else { return self.note("no runtime".into()) };
        while !self.is_done.load(Relaxed) {
            match runtime.block_on(dial(self.files(), self.arena.grpc)) {
                Ok(_) => _ = self.shaken.fetch_add(1, Relaxed),
                Err(error) => self.note(format!("{error:#}")),
            }
            std::thread::sleep(DIAL);
        }
    }

    /// Reads epochs, each by a process of its own.
    fn read_epochs(&self, wanted: &str) {
        while !self.is_done.load(Relaxed) {
            let is_after = self.is_after.load(Relaxed);
            self.begun_after.fetch_add(usize::from(is_after), Relaxed);
            let files = &self.files[usize::from(is_after)];
            match read(files, &self.arena.server.endpoint, self.arena.store) {
                Ok(digests) if digests == wanted => _ = self.epochs.fetch_add(1, Relaxed),
                Ok(digests) => self.note(format!("{digests}, and the plan's are {wanted}")),
                Err(error) => self.note(format!("{error:#}")),
            }
        }
    }

    fn note(&self, error: String) {
        self.errors.lock().push(error);
    }

    /// New certificates for the node, much faster than it looks at them.
    fn leaves(&self) -> anyhow::Result<Vec<Check>> {
        let (before, rotations) = (taken(&self.arena.server), self.arena.scale.rotations);
        for _ in 0..rotations {
            self.tls.issue(Leaf::node("node"));
            std::thread::sleep(PACE);
        }
        // One look in 2 s, and as much again on a machine that is busy.
        let least = (rotations * PACE.as_millis() as usize / 4000).max(1);
        let taken = within(LOOK, || Ok(taken(&self.arena.server) >= before + least))?;
        let claim = format!("of {rotations} new certificates the node takes {least} at least");
        Ok(vec![Check::of(claim, "", taken.is_some())])
    }

    /// A new authority: first a bundle of both, then certificates by the new one, then the new one alone.
    fn authority(&self) -> anyhow::Result<Check> {
        // Of another name than the one of an earlier run.
        let name = format!("new-{}", taken(&self.arena.server));
        let (new, old) = (Pki::authority(&name)?, self.tls.authority());
        self.taken_after(|| drop(self.tls.pki.put("ca.pem", &format!("{}{}", old.pem, new.pem))))?;
        let new_pem = new.pem.clone();
        self.tls.replace_authority(new);
        self.taken_after(|| drop(self.tls.issue(Leaf::node("node"))))?;
        for name in ["after", "reader"] {
            self.tls.issue(Leaf::client(name, VISION));
        }
        self.is_after.store(true, Relaxed);
        // What was begun with the old certificate has ended.
        let begun = within(BEGUN, || Ok(self.begun_after.load(Relaxed) > 0))?;
        begun.context("the job begins with its new certificate")?;
        self.taken_after(|| drop(self.tls.pki.put("ca.pem", &new_pem)))?;
        let epochs = self.begun_after.load(Relaxed);
        let goes_on = within(BEGUN, || Ok(self.begun_after.load(Relaxed) > epochs))?;
        Ok(Check::of("the job goes on by the new authority alone", "", goes_on.is_some()))
    }

    /// Waits until the node has taken a change.
    fn taken_after(&self, change: impl FnOnce()) -> anyhow::Result<()> {
        let before = taken(&self.arena.server);
        change();
        let is_taken = within(LOOK, || Ok(taken(&self.arena.server) > before))?;
        is_taken.map(drop).context("the node takes new files")
    }
}
