//! Real etcd processes on free ports: started, killed, paused, restarted, one at a time or all.
//!
//! A member keeps its data directory and ports for as long as the [`Etcd`] lives, so a restart finds its
//! data.

use crate::harness::ports::free_addresses;
use crate::harness::process::{run, tie};
use anyhow::Context;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forebay_client::TlsFiles;
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long etcd may take until it answers that it is healthy.
const PATIENCE: Duration = Duration::from_secs(60);

/// An etcd of one member or several; killed when dropped.
pub struct Etcd {
    members: Vec<Member>,
    _folder: tempfile::TempDir,
}

struct Member {
    name: String,
    client: String,
    /// Where it says how it is, without TLS.
    health: String,
    tls: Option<TlsFiles>,
    peer: String,
    cluster: String,
    folder: PathBuf,
    child: Option<Child>,
}

impl Etcd {
    /// Starts `count` members and waits until they answer.
    ///
    /// # Panics
    /// If that fails; the message says how to install etcd if it is missing.
    pub fn start(count: usize) -> Self {
        Self::try_start(count).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Like [`start`](Self::start), for callers that are not tests.
    pub fn try_start(count: usize) -> anyhow::Result<Self> {
        Self::start_with(count, None)
    }

    /// A single member that speaks TLS with clients, and asks them for certificates.
    pub fn start_tls(files: &TlsFiles) -> anyhow::Result<Self> {
        Self::start_with(1, Some(files))
    }

    fn start_with(count: usize, tls: Option<&TlsFiles>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a temporary folder")?;
        let addresses = free_addresses(3 * count)?;
        let (clients, others) = addresses.split_at(count);
        let (peers, metrics) = others.split_at(count);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let cluster: Vec<String> = (0..count).map(|i| format!("m{i}=http://{}", peers[i])).collect();
        let member = |i: usize| Member {
            name: format!("m{i}"),
            client: format!("{scheme}://{}", clients[i]),
            health: format!("http://{}", if tls.is_some() { &metrics[i] } else { &clients[i] }),
            tls: tls.cloned(),
            peer: format!("http://{}", peers[i]),
            cluster: cluster.join(","),
            folder: folder.path().join(format!("m{i}")),
            child: None,
        };
        let mut etcd = Self { members: (0..count).map(member).collect(), _folder: folder };
        for member in &mut etcd.members {
            member.spawn()?;
        }
        etcd.wait_until_healthy()?;
        Ok(etcd)
    }

    /// The members' client URLs.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client.clone()).collect()
    }

    /// The members' client URLs as arguments of a server.
    pub fn arguments(&self) -> Vec<String> {
        self.endpoints().into_iter().flat_map(|url| ["--etcd".to_owned(), url]).collect()
    }

    /// Number of members, running or not.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// kill -9 of a member, and gone.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].child.take() {
            // Fails only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// kill -9 of all.
    pub fn kill_all(&mut self) {
        (0..self.count()).for_each(|member| self.kill(member));
    }

    /// Starts the members that do not run, on their old data, and waits until they answer.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        for member in self.members.iter_mut().filter(|member| member.child.is_none()) {
            member.spawn()?;
        }
        self.wait_until_healthy()
    }

    /// Starts the members that do not run, with empty data directories.
    pub fn restart_empty(&mut self) -> anyhow::Result<()> {
        for member in self.members.iter().filter(|member| member.child.is_none()) {
            std::fs::remove_dir_all(&member.folder).context("empty etcd")?;
        }
        self.restart()
    }

    /// Stops a member silently (SIGSTOP).
    pub fn pause(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// Lets a paused member go on.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    /// The member that leads, as far as those that answer know.
    pub fn leader(&self) -> Option<usize> {
        let leader = self.members.iter().find_map(|member| field(&member.status()?, "leader"))?;
        self.members.iter().position(|member| {
            member.status().and_then(|status| field(&status, "member_id")).as_ref() == Some(&leader)
        })
    }

    /// Waits until those that answer know who leads.
    pub fn wait_for_leader(&self) -> anyhow::Result<usize> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.leader() {
                Some(leader) => return Ok(leader),
                None if Instant::now() > deadline => anyhow::bail!("no leader after {PATIENCE:?}"),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// The keys below a prefix, by the first member.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let end =
            [&prefix.as_bytes()[..prefix.len() - 1], &[prefix.as_bytes()[prefix.len() - 1] + 1]].concat();
        let [key, end] = [prefix.as_bytes(), &end].map(|key| BASE64_STANDARD.encode(key));
        let body = format!(r#"{{"key":"{key}","range_end":"{end}","keys_only":true}}"#);
        let answer = ask(&self.members[0].client, "POST", "/v3/kv/range", &body).expect("an answer");
        let keys = answer.split("\"key\":\"").skip(1).filter_map(|rest| rest.split('"').next());
        let text = |key: &str| String::from_utf8(BASE64_STANDARD.decode(key).expect("base64")).expect("text");
        keys.map(text).collect()
    }

    /// Writes a key by the first member.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn put(&self, key: &str, value: &str) {
        let [key, value] = [key, value].map(|text| BASE64_STANDARD.encode(text));
        let body = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        let answer = ask(&self.members[0].client, "POST", "/v3/kv/put", &body).expect("an answer");
        assert!(answer.contains("revision"), "{answer}");
    }

    /// Writes many keys by the first member, many at a time.
    pub fn put_all(&self, pairs: &[(String, String)]) -> anyhow::Result<()> {
        let put = |(key, value): &(String, String)| {
            let [key, value] = [key, value].map(|text| BASE64_STANDARD.encode(text));
            format!(r#"{{"requestPut":{{"key":"{key}","value":"{value}"}}}}"#)
        };
        // As many as etcd takes in one transaction, unless it is told otherwise.
        for some in pairs.chunks(128) {
            let all: Vec<String> = some.iter().map(put).collect();
            self.call("/v3/kv/txn", &format!(r#"{{"success":[{}]}}"#, all.join(",")))?;
        }
        Ok(())
    }

    /// Writes a key by the first member under a lease, which ends at once.
    pub fn flap(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let [key, value] = [key, value].map(|text| BASE64_STANDARD.encode(text));
        let lease = self.call("/v3/lease/grant", r#"{"TTL":5}"#)?;
        let lease = field(&lease, "ID").context("a lease")?;
        self.call("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}","lease":"{lease}"}}"#))?;
        self.call("/v3/lease/revoke", &format!(r#"{{"ID":"{lease}"}}"#))?;
        Ok(())
    }

    fn call(&self, path: &str, body: &str) -> anyhow::Result<String> {
        let answer = ask(&self.members[0].client, "POST", path, body).context("etcd does not answer")?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        Ok(answer)
    }

    /// From here on only the user `root` with this password may do anything.
    ///
    /// # Panics
    /// If the first member does not take that.
    pub fn require_password(&self, password: &str) {
        let calls = [
            ("user/add", format!(r#"{{"name":"root","password":"{password}"}}"#)),
            ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("enable", "{}".to_owned()),
        ];
        for (call, body) in calls {
            let path = format!("/v3/auth/{call}");
            let answer = ask(&self.members[0].client, "POST", &path, &body).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{call}: {answer}");
        }
    }

    fn signal(&self, member: usize, signal: Signal) {
        if let Some(child) = &self.members[member].child {
            run::send_signal(child.id(), signal);
        }
    }

    fn wait_until_healthy(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let healthy = |member: &Member| {
            ask(&member.health, "GET", "/health", "{}").is_some_and(|answer| answer.contains("\"true\""))
        };
        while !self.members.iter().filter(|member| member.child.is_some()).all(healthy) {
            anyhow::ensure!(Instant::now() <= deadline, "etcd is not healthy after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Member {
    fn spawn(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new("etcd");
        run::scrub(&mut command);
        tie::tie(&mut command);
        command.args(["--name", &self.name]).arg("--data-dir").arg(&self.folder);
        command.args(["--listen-client-urls", &self.client, "--advertise-client-urls", &self.client]);
        command.args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer]);
        command.args(["--initial-cluster", &self.cluster, "--logger", "zap", "--log-level", "warn"]);
        if let Some(TlsFiles { cert: Some(cert), key: Some(key), ca: Some(ca), .. }) = &self.tls {
            command.arg("--cert-file").arg(cert).arg("--key-file").arg(key);
            command.arg("--trusted-ca-file").arg(ca).arg("--client-cert-auth");
            command.args(["--listen-metrics-urls", &self.health]);
        }
        let log = File::create(self.folder.with_extension("log")).context("make etcd's log")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let missing = "cannot start etcd: install it (Debian: etcd-server), or run `scripts/setup.sh tests`";
        self.child = Some(command.spawn().context(missing)?);
        Ok(())
    }

    fn status(&self) -> Option<String> {
        self.child.as_ref()?;
        ask(&self.client, "POST", "/v3/maintenance/status", "{}")
    }
}

/// A field of text in etcd's flat JSON.
fn field(json: &str, name: &str) -> Option<String> {
    let (_, after) = json.split_once(&format!("\"{name}\":\""))?;
    Some(after.split_once('"')?.0.to_owned())
}

/// etcd's answer over HTTP, with any status.
fn ask(url: &str, method: &str, path: &str, body: &str) -> Option<String> {
    let address = url.strip_prefix("http://")?;
    let limit = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_members_survive_their_leader() {
        let mut etcd = Etcd::start(3);
        let leader = etcd.wait_for_leader().expect("a leader");
        etcd.kill(leader);
        let deadline = Instant::now() + PATIENCE;
        while etcd.leader().is_none_or(|now| now == leader) {
            assert!(Instant::now() < deadline, "no new leader");
            std::thread::sleep(Duration::from_millis(50));
        }
        etcd.restart().expect("a restart");
        let deadline = Instant::now() + PATIENCE;
        while etcd.members[leader].status().is_none() {
            assert!(Instant::now() < deadline, "the old leader does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
