//! `forebay token`: gives a principal of a policy a token, or takes one away. Works on files: no node is
//! asked, and a file that a node would refuse is not written.

mod check;

use crate::failure::Failure;
use crate::output::Out;
use check::{ROLES, check};
use clap::{Args, Subcommand};
use forebay_proto::token::{KnownToken, NewToken, TOKEN_RANDOM_BYTES};
use forebay_proto::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, Metadata, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

/// Where a principal's tokens are in a policy.
const TOKENS: &str = "token_sha256";

#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Give a principal a new token: it is shown once, the policy gets its hash
    Create(Create),
    /// Take a token out of a policy: nodes end all that goes on with it
    Revoke(Revoke),
}

#[derive(Debug, Args)]
struct Create {
    /// The principal's name in the policy
    name: String,
    /// The policy's file
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Role of a principal that the policy does not have yet: reader, loader, operator, metrics or peer; may
    /// be repeated
    #[arg(long, value_name = "ROLE", value_parser = ROLES)]
    role: Vec<String>,
    /// URI under which such a principal may read; may be repeated
    #[arg(long, value_name = "URI")]
    prefix: Vec<String>,
    /// Write the token to a new file that only you can read, instead of showing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Revoke {
    /// The token's id: the part between its dots
    id: String,
    /// The policy's file
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
}

impl Token {
    pub(crate) fn run(self, out: Out<'_>) -> Result<(), Failure> {
        match self.command {
            TokenCommand::Create(create) => create.run(out),
            TokenCommand::Revoke(revoke) => revoke.run(out),
        }
    }
}

impl Create {
    fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let mut policy = read(&self.policy, !self.role.is_empty())?;
        let token = NewToken::new(random()?);
        let principals = principals(&mut policy, &self.policy)?;
        let is_there = principals.iter().any(|principal| is_named(principal, &self.name));
        match (is_there, self.role.is_empty()) {
            (false, true) => {
                let (name, path) = (&self.name, self.policy.display());
                let why =
                    format!("{path} has no principal {name}: add it there, or with --role and --prefix");
                return Err(Error::not_found(why).into());
            }
            (true, false) => {
                let why = format!("principal {} is there already: change its roles in the file", self.name);
                return Err(Error::invalid(why).into());
            }
            (false, false) => principals.push(self.principal()),
            (true, true) => {}
        }
        let named = principals.iter_mut().find(|principal| is_named(principal, &self.name));
        let tokens = named.map(|principal| principal.entry(TOKENS).or_insert(value(Array::new())));
        let tokens = tokens
            .and_then(Item::as_array_mut)
            .ok_or_else(|| wrong(&self.policy, "token_sha256 is no list"))?;
        tokens.push(token.known().to_string());
        check(&policy).map_err(|e| wrong(&self.policy, &format!("stays as it is: {}", e.message)))?;
        // The token is worth something only once the policy has it.
        match &self.out {
            Some(path) => {
                write_token(path, token.text())?;
                write(&self.policy, &policy)?;
                writeln!(out, "token {} of {} is in {}", token.id(), self.name, path.display())?;
            }
            None => {
                write(&self.policy, &policy)?;
                writeln!(out, "{}", token.text())?;
            }
        }
        Ok(())
    }

    fn principal(&self) -> Table {
        let mut principal = Table::new();
        principal.insert("name", value(&self.name));
        principal.insert("roles", value(self.role.iter().collect::<Array>()));
        principal.insert("prefixes", value(self.prefix.iter().collect::<Array>()));
        principal
    }
}

impl Revoke {
    fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let mut policy = read(&self.policy, false)?;
        let mut of = None;
        for principal in principals(&mut policy, &self.policy)?.iter_mut() {
            let name = principal.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
            let Some(tokens) = principal.get_mut(TOKENS).and_then(Item::as_array_mut) else { continue };
            let before = tokens.len();
            tokens.retain(|line| !line.as_str().is_some_and(|line| is_of(line, &self.id)));
            if tokens.len() < before {
                of = Some(name);
            }
        }
        let Some(name) = of else {
            let why = format!("{} has no token {}", self.policy.display(), self.id.escape_debug());
            return Err(Error::not_found(why).into());
        };
        write(&self.policy, &policy)?;
        writeln!(out, "token {} of {name} is revoked", self.id)?;
        Ok(())
    }
}

fn is_of(line: &str, id: &str) -> bool {
    KnownToken::of(line).is_ok_and(|token| token.id == id)
}

fn is_named(principal: &Table, name: &str) -> bool {
    principal.get("name").and_then(Item::as_str) == Some(name)
}

/// The policy of a file; an empty one if it may be missing. `Invalid` if a node would refuse it: then nothing
/// that is changed in it takes force.
fn read(path: &Path, may_be_missing: bool) -> Result<DocumentMut> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && may_be_missing => String::new(),
        read => read.map_err(|e| wrong(path, &format!("cannot be read: {e}")))?,
    };
    let policy: DocumentMut = text
        .parse()
        .map_err(|e: toml_edit::TomlError| wrong(path, &format!("is no TOML: {}", e.message())))?;
    let mend = |e: Error| format!("is wrong, so no node takes a change of it; mend it first: {}", e.message);
    check(&policy).map_err(|e| wrong(path, &mend(e)))?;
    Ok(policy)
}

fn principals<'a>(policy: &'a mut DocumentMut, path: &Path) -> Result<&'a mut ArrayOfTables> {
    let principals = policy.entry("principal").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    principals.as_array_of_tables_mut().ok_or_else(|| wrong(path, "has no tables [[principal]]"))
}

/// Puts a new file in the place of the old one, so that no node reads half of it.
fn write(path: &Path, policy: &DocumentMut) -> Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let old = std::fs::metadata(&path).ok();
    let mode = old.as_ref().map_or(0o640, |about| about.permissions().mode() & 0o777);
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&new)?;
        // The nodes that read the old one must be able to read it too.
        let owner = |about: &Metadata| (about.uid(), about.gid());
        if let Some((user, group)) = old.as_ref().map(owner)
            && (user, group) != owner(&file.metadata()?)
        {
            fchown(&file, Some(user), Some(group))?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(policy.to_string().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)
    })();
    written.map_err(|e| {
        std::fs::remove_file(&new).ok();
        wrong(&path, &format!("cannot be written: {e}"))
    })
}

fn write_token(path: &Path, token: &str) -> Result<()> {
    let written = File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = written.and_then(|mut file| writeln!(file, "{token}"));
    written.map_err(|e| wrong(path, &format!("cannot be written: {e}")))
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::invalid(format!("{} {why}", path.display()))
}

fn random() -> Result<[u8; TOKEN_RANDOM_BYTES]> {
    let mut random = [0; TOKEN_RANDOM_BYTES];
    match getrandom(&mut random[..], GetRandomFlags::empty()) {
        Ok(got) if got == random.len() => Ok(random),
        _ => Err(Error::denied("the system has no random numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use forebay_proto::token::GivenToken;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        token: Token,
    }

    fn run(line: &[&str]) -> Result<String, String> {
        let line = Line::try_parse_from(["token"].iter().chain(line)).map_err(|e| e.to_string())?;
        let mut out = Vec::new();
        match line.token.run(&mut out) {
            Ok(()) => Ok(String::from_utf8(out).unwrap().trim().to_owned()),
            Err(Failure::Error(e) | Failure::Usage(e)) => Err(e.message),
            Err(Failure::ReaderGone) => Err("gone".into()),
        }
    }

    #[test]
    fn tokens_come_and_go_and_the_rest_of_a_policy_stays() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy.toml");
        let path = policy.to_str().unwrap();
        assert!(run(&["create", "a", "--policy", path]).is_err(), "there is no policy");
        let first =
            run(&["create", "a", "--policy", path, "--role", "reader", "--prefix", "s3://b/a"]).unwrap();
        let text = || std::fs::read_to_string(&policy).unwrap();
        std::fs::write(&policy, format!("# ours\n{}", text())).unwrap();
        std::fs::set_permissions(&policy, Permissions::from_mode(0o600)).unwrap();
        // Only root can give a file away; for others it stays theirs.
        let owner = |about: Metadata| (about.uid(), about.gid());
        let _ = std::os::unix::fs::chown(&policy, Some(1234), Some(1234));
        let kept = owner(std::fs::metadata(&policy).unwrap());
        let second = run(&["create", "a", "--policy", path]).unwrap();
        let lines: Vec<String> = [&first, &second]
            .map(|token| {
                let given = GivenToken::of(token).unwrap();
                KnownToken { id: given.id.into(), hash: given.hash() }.to_string()
            })
            .to_vec();
        assert!(lines.iter().all(|line| text().contains(line)) && text().starts_with("# ours"));
        assert!(!text().contains(first.rsplit('.').next().unwrap()), "the secret is not kept");
        assert_eq!(std::fs::metadata(&policy).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(owner(std::fs::metadata(&policy).unwrap()), kept);
        let id = GivenToken::of(&first).unwrap().id;
        assert_eq!(run(&["revoke", id, "--policy", path]).unwrap(), format!("token {id} of a is revoked"));
        assert!(!text().contains(&lines[0]) && text().contains(&lines[1]));
        assert!(run(&["revoke", id, "--policy", path]).unwrap_err().contains("has no token"));
        assert!(run(&["create", "b", "--policy", path]).unwrap_err().contains("no principal b"));
        assert!(run(&["create", "a", "--policy", path, "--role", "reader"]).unwrap_err().contains("already"));
        assert!(run(&["create", "c", "--policy", path, "--role", "king"]).is_err());
        let out = folder.path().join("token");
        let said = run(&["create", "a", "--policy", path, "--out", out.to_str().unwrap()]).unwrap();
        let token = std::fs::read_to_string(&out).unwrap();
        assert!(GivenToken::of(token.trim()).is_some() && !said.contains(token.trim()));
        assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_policy_that_a_node_would_refuse_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy.toml");
        let path = policy.to_str().unwrap();
        let text = || std::fs::read_to_string(&policy).unwrap_or_default();
        let out = folder.path().join("token");
        let bad = ["create", "bad", "--policy", path, "--role", "reader", "--prefix", "foo", "--out"];
        let e = run(&[&bad[..], &[out.to_str().unwrap()]].concat()).unwrap_err();
        assert!(e.contains("principal bad: prefixes: \"foo\": foo: not a URI"), "{e}");
        assert!(!policy.exists() && !out.exists(), "nothing is written");
        let token =
            run(&["create", "a", "--policy", path, "--role", "reader", "--prefix", "s3://b"]).unwrap();
        assert!(run(&bad[..8]).is_err());
        // Somebody's slip: a revocation would say that it is done, and no node would hear of it.
        let slip = text().replace("\"reader\"", "\"readr\"");
        std::fs::write(&policy, &slip).unwrap();
        let id = GivenToken::of(&token).unwrap().id;
        for line in [&["revoke", id, "--policy", path][..], &["create", "a", "--policy", path]] {
            let e = run(line).unwrap_err();
            assert!(e.contains("mend it first: principal a: roles: \"readr\""), "{line:?}: {e}");
            assert_eq!(text(), slip, "{line:?}");
        }
    }
}
