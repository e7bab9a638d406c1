//! A policy of a test's own: principals, their tokens, their keys of S3.

use super::s3::S3Server;
use forebay_proto::token::NewToken;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A principal of a policy under test.
#[derive(Clone, Copy)]
pub struct Who {
    /// In errors and in the audit log.
    pub name: &'static str,
    /// What it may.
    pub roles: &'static [&'static str],
    /// Keys in the bucket.
    pub prefixes: &'static [&'static str],
    /// Further lines of its table.
    pub more: &'static str,
}

/// A tenant.
pub const VISION: Who = Who {
    name: "vision",
    roles: &["reader", "loader"],
    prefixes: &["tenants/vision/"],
    more: "s3_keys = ['VISION']",
};
/// Another one.
pub const AUDIO: Who = Who {
    name: "audio",
    roles: &["reader", "loader"],
    prefixes: &["tenants/audio"],
    more: "s3_keys = ['AUDIO']",
};
/// An operator who may read everything.
pub const ROOT: Who =
    Who { name: "root", roles: &["operator", "reader", "loader"], prefixes: &[""], more: "" };
/// Who reads metrics.
pub const SCRAPER: Who = Who { name: "scraper", roles: &["metrics"], prefixes: &[], more: "" };
/// The nodes of the cluster.
pub const PEER: Who = Who { name: "peers", roles: &["peer"], prefixes: &[], more: "" };

/// Who reads what the first tenant has, and nothing else.
pub const GUEST: Who = Who { name: "guest", roles: &["reader"], prefixes: &["tenants/vision/"], more: "" };

/// All of these.
pub const ALL: [Who; 6] = [VISION, AUDIO, ROOT, SCRAPER, PEER, GUEST];

/// Secrets of the S3 keys.
pub const S3_SECRET: &str = "of-the-endpoint";

/// A file with tokens and one with the policy.
pub struct Policy {
    folder: tempfile::TempDir,
    /// By name of the principal.
    pub tokens: BTreeMap<&'static str, NewToken>,
    bucket: String,
}

impl Policy {
    /// A policy with these principals, a token of each, and three keys of S3.
    pub fn new(s3: &S3Server, all: &[Who]) -> Self {
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

    /// The path of a file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file with the token of a principal.
    pub fn token_file(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.token"))
    }

    /// Puts another policy in the place of the one before.
    pub fn set(&self, all: &[Who]) {
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
    pub fn arguments(&self) -> [String; 2] {
        ["--auth-policy".into(), self.path("policy").display().to_string()]
    }

    /// What a principal sends as `authorization`.
    pub fn header(&self, name: &str) -> String {
        format!("Bearer {}", self.tokens[name].text())
    }
}

/// Writes a file that nobody else may read.
pub fn write_private(path: &Path, text: &str) {
    let mut file = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .expect("open a file");
    file.write_all(text.as_bytes()).expect("write a file");
}
