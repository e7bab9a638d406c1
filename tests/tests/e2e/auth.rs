//! Principals, roles and prefixes: who may do what at a node that has a policy.
//!
//! * [`matrix`]: two tenants, every call, whatever lies where.
//! * [`strangers`]: those whom the policy does not know, and those who may not.
//! * [`reload`]: policies that change while streams run.
//! * [`nodes`]: nodes of a cluster that has one.
//! * [`secrets`]: words that are told to nobody.

mod matrix;
mod nodes;
mod reload;
mod secrets;
mod strangers;
mod wire;

use forebay_proto::token::NewToken;
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::s3_client::S3Client;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use wire::{Answer, Question};

/// A principal of a policy under test.
#[derive(Clone, Copy)]
struct Who {
    name: &'static str,
    roles: &'static [&'static str],
    /// Keys in the bucket.
    prefixes: &'static [&'static str],
    more: &'static str,
}

const VISION: Who = Who {
    name: "vision",
    roles: &["reader", "loader"],
    prefixes: &["tenants/vision/"],
    more: "s3_keys = ['VISION']",
};
const AUDIO: Who = Who {
    name: "audio",
    roles: &["reader", "loader"],
    prefixes: &["tenants/audio"],
    more: "s3_keys = ['AUDIO']",
};
const ROOT: Who = Who { name: "root", roles: &["operator", "reader", "loader"], prefixes: &[""], more: "" };
const SCRAPER: Who = Who { name: "scraper", roles: &["metrics"], prefixes: &[], more: "" };
const PEER: Who = Who { name: "peers", roles: &["peer"], prefixes: &[], more: "" };

const ALL: [Who; 5] = [VISION, AUDIO, ROOT, SCRAPER, PEER];

/// Secrets of the S3 keys.
const S3_SECRET: &str = "of-the-endpoint";

/// A file with tokens and one with the policy.
struct Policy {
    folder: tempfile::TempDir,
    tokens: BTreeMap<&'static str, NewToken>,
    bucket: String,
}

impl Policy {
    fn new(s3: &S3Server, all: &[Who]) -> Self {
        let folder = tempfile::tempdir().expect("make a folder");
        let token = |(n, who): (usize, &Who)| (who.name, NewToken::new([n as u8 + 40; 40]));
        let tokens = all.iter().enumerate().map(token).collect();
        let policy = Self { folder, tokens, bucket: s3.bucket.clone() };
        for (name, token) in &policy.tokens {
            write_private(&policy.token_file(name), token.text());
        }
        write_private(
            &policy.path("keys"),
            &format!("VISION {S3_SECRET}\nAUDIO {S3_SECRET}\nNOBODY {S3_SECRET}\n"),
        );
        policy.set(all);
        policy
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn token_file(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.token"))
    }

    /// Puts another policy in the place of the one before.
    fn set(&self, all: &[Who]) {
        let list = |all: &[&str], start: &str| {
            all.iter().map(|text| format!("'{start}{text}'")).collect::<Vec<_>>().join(", ")
        };
        let entry = |who: &Who| {
            let Who { name, roles, prefixes, more } = who;
            let root = format!("s3://{}/", self.bucket);
            let (roles, prefixes, token) =
                (list(roles, ""), list(prefixes, &root), self.tokens[name].known());
            format!(
                "[[principal]]\nname = '{name}'\nroles = [{roles}]\nprefixes = [{prefixes}]\ntoken_sha256 = ['{token}']\n{more}\n"
            )
        };
        let text: String = all.iter().map(entry).collect();
        write_private(&self.path("policy.new"), &text);
        std::fs::rename(self.path("policy.new"), self.path("policy")).expect("put the policy in place");
    }

    /// What a node with it is started with.
    fn arguments(&self) -> [String; 2] {
        ["--auth-policy".into(), self.path("policy").display().to_string()]
    }

    fn header(&self, name: &str) -> String {
        format!("Bearer {}", self.tokens[name].text())
    }
}

fn write_private(path: &Path, text: &str) {
    let mut file = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .expect("open a file");
    file.write_all(text.as_bytes()).expect("write a file");
}

/// A store with the data of two tenants, and a node with a policy and an audit log.
struct Guarded {
    s3: S3Server,
    server: Server,
    policy: Policy,
    runtime: tokio::runtime::Runtime,
}

impl Guarded {
    fn start(all: &[Who], change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        let s3 = S3Server::start();
        for key in ["tenants/vision/set", "tenants/audio/zebra7", "tenants/visionX/zebra7"] {
            let folder = mnist::folder().join("test");
            mnist::upload_folder(&s3, &folder, key).expect("read MNIST");
        }
        let policy = Policy::new(&s3, all);
        let options = ServerOptions::for_s3(&s3)
            .args(policy.arguments())
            .args(["--audit-file", &policy.path("audit").display().to_string()])
            .args(["--s3-listen", "127.0.0.1:0", "--s3-keys", &policy.path("keys").display().to_string()]);
        let server = change(options).start();
        Self { s3, server, policy, runtime: tokio::runtime::Runtime::new().expect("start a runtime") }
    }

    /// Asks as somebody; as nobody without a name.
    fn ask(&self, who: Option<&str>, path: &str, message: &[u8]) -> Answer {
        let header = who.map(|who| self.policy.header(who));
        self.ask_with(header.as_deref(), path, message)
    }

    fn ask_with(&self, header: Option<&str>, path: &str, message: &[u8]) -> Answer {
        let question = Question { endpoint: &self.server.endpoint, path, header, message };
        self.runtime.block_on(wire::ask(question))
    }

    /// `forebay ARGUMENTS` as somebody.
    fn command(&self, who: &str, arguments: &[&str]) -> Run {
        let token = self.policy.token_file(who);
        Run::new("forebay")
            .args(arguments)
            .args(["--endpoint", &self.server.endpoint])
            .envs([("FOREBAY_TOKEN_FILE", token.as_os_str())])
    }

    fn s3_client(&self, key_id: &str) -> S3Client {
        let endpoint = self.server.s3.clone().expect("it serves S3");
        S3Client { endpoint, key_id: key_id.into(), secret: S3_SECRET.into() }
    }

    /// The lines of the audit log, once there are `count`.
    fn audit(&self, count: usize) -> Vec<serde_json::Value> {
        let read = || std::fs::read_to_string(self.policy.path("audit")).unwrap_or_default();
        let start = std::time::Instant::now();
        while read().lines().count() < count && start.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        read().lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }
}
