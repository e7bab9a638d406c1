//! The policy's file: read at the start, and again once it has changed and stands still.
//!
//! Files are replaced in many ways: by a rename, by a link that points elsewhere (as Kubernetes mounts them),
//! by a program that cuts the file to nothing and writes it again, or that moves the old one away first. So a
//! change counts only when two looks in a row find the same file, and only that very file is read.

use super::policy::Policy;
use crate::allow::Allowed;
use forebay_proto::{Error, Result};
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a policy at most: some hundred thousand principals.
const POLICY_BYTES_MAX: u64 = 128 << 20;

/// The file of a policy, and as what it was seen.
#[derive(Debug)]
pub struct WatchedPolicy {
    path: PathBuf,
    /// Whether the node checks JSON Web Tokens: else nobody can be known by their claims.
    checks_claims: bool,
    /// When it was looked at last; `None`: it was not there.
    seen: Option<FileVersion>,
    /// When it was read last.
    read: Option<FileVersion>,
}

/// What tells a file from the one before. Mode and time of change are among it: a file whose mode is mended
/// has the time of writing that it had, as may one that `cp -p` wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    file: (u64, u64),
    bytes: u64,
    mode: u32,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    fn of(about: &Metadata) -> Self {
        Self {
            file: (about.dev(), about.ino()),
            bytes: about.len(),
            mode: about.mode(),
            written: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

impl WatchedPolicy {
    /// The file, and the policy that it has now, for a node that checks JSON Web Tokens or does not. Touches
    /// the disk.
    pub fn open(path: PathBuf, allow: &Allowed, checks_claims: bool) -> Result<(Self, Policy)> {
        let (version, text) = text(&path)?;
        let file = Self { path, checks_claims, seen: version, read: version };
        let policy = file.parse(&text, allow)?;
        Ok((file, policy))
    }

    /// The policy that the file has since it changed, or why it is none; `None` if it is as before, or may be
    /// being written. Touches the disk.
    pub fn look(&mut self, allow: &Allowed) -> Option<Result<Policy>> {
        let now = std::fs::metadata(&self.path).ok().map(|about| FileVersion::of(&about));
        let stands_still = std::mem::replace(&mut self.seen, now) == now;
        if !stands_still || now == self.read {
            return None;
        }
        let read = text(&self.path);
        // Another file is there since the look: the next ones decide.
        if read.as_ref().is_ok_and(|(version, _)| *version != now) {
            return None;
        }
        self.read = now;
        Some(read.and_then(|(_, text)| self.parse(&text, allow)))
    }

    fn parse(&self, text: &str, allow: &Allowed) -> Result<Policy> {
        let unused = |why: &str| wrong(&self.path, &format!("is wrong, and not used: {why}"));
        let policy = Policy::parse(text, allow).map_err(|e| unused(&e.message))?;
        if let Some(principal) = policy.known_by_claims().filter(|_| !self.checks_claims) {
            let name = &principal.name;
            return Err(unused(&format!(
                "principal {name}: jwt: this node checks no such tokens: set [auth.jwt] jwks"
            )));
        }
        Ok(policy)
    }
}

/// The text of a file, and its version, unless it changed while it was read.
fn text(path: &Path) -> Result<(Option<FileVersion>, String)> {
    let unreadable = |e: std::io::Error| wrong(path, &format!("cannot be read: {e}"));
    let mut file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if about.mode() & 0o002 != 0 {
        return Err(wrong(path, "may be written by every user of this machine: chmod o-w"));
    }
    if about.len() > POLICY_BYTES_MAX {
        return Err(wrong(path, "has more than 128 MiB"));
    }
    let mut text = String::new();
    (&mut file).take(POLICY_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    let (before, after) = (FileVersion::of(&about), file.metadata().map_err(unreadable)?);
    Ok(((before == FileVersion::of(&after)).then_some(before), text))
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::invalid(format!("the policy {} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn principal(name: &str) -> String {
        format!("[[principal]]\nname = '{name}'\nroles = ['metrics']\n")
    }

    fn opened(path: &Path) -> WatchedPolicy {
        WatchedPolicy::open(path.to_owned(), &Allowed::new(&[]).unwrap(), false).unwrap().0
    }

    /// The names that a look finds, or the fault; empty if it finds nothing new.
    fn look(file: &mut WatchedPolicy) -> String {
        match file.look(&Allowed::new(&[]).unwrap()) {
            None => String::new(),
            Some(Err(e)) => e.message,
            Some(Ok(policy)) => {
                policy.principals().iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn a_file_that_is_being_written_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy");
        write(&path, principal("a")).unwrap();
        let mut file = opened(&path);
        assert_eq!(look(&mut file), "");
        // As `cp` does: nothing, a half that would do as a policy, the whole.
        for text in ["", &principal("b"), &(principal("b") + &principal("c"))] {
            write(&path, text).unwrap();
            assert_eq!(look(&mut file), "", "it may go on");
        }
        assert_eq!((look(&mut file), look(&mut file)), ("b c".into(), String::new()));
        // One that stays empty is a mistake, told once.
        write(&path, "").unwrap();
        assert_eq!(look(&mut file), "");
        let told = look(&mut file);
        assert!(told.contains("is wrong, and not used") && told.contains("no principal"), "{told}");
        assert_eq!(look(&mut file), "");
    }

    #[test]
    fn files_that_are_moved_into_place_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // As Kubernetes mounts a file: the link of the folder changes, in one step.
        let data = |name: &str, text: &str| {
            std::fs::create_dir(at(name)).unwrap();
            write(at(name).join("policy"), text).unwrap();
            symlink(name, at("..new")).unwrap();
            std::fs::rename(at("..new"), at("..data")).unwrap();
        };
        data("1", &principal("a"));
        symlink("..data/policy", at("policy")).unwrap();
        let mut file = opened(&at("policy"));
        data("2", &principal("b"));
        std::fs::remove_dir_all(at("1")).unwrap();
        assert_eq!((look(&mut file), look(&mut file)), (String::new(), "b".into()));
        // As editors do: the old file is moved away, and one of its name written.
        std::fs::rename(at("policy"), at("policy~")).unwrap();
        assert_eq!(look(&mut file), "");
        write(at("policy"), principal("c")).unwrap();
        assert_eq!((look(&mut file), look(&mut file)), (String::new(), "c".into()));
        std::fs::remove_file(at("policy")).unwrap();
        assert_eq!(look(&mut file), "");
        let told = look(&mut file);
        assert!(told.contains("cannot be read"), "{told}");
        assert_eq!(look(&mut file), "", "and told once");
    }

    #[test]
    fn a_file_whose_mode_is_mended_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy");
        write(&path, principal("a")).unwrap();
        let mut file = opened(&path);
        write(&path, principal("bb")).unwrap();
        set_permissions(&path, Permissions::from_mode(0o646)).unwrap();
        look(&mut file);
        let told = look(&mut file);
        assert!(told.contains("chmod o-w"), "{told}");
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        look(&mut file);
        assert_eq!(look(&mut file), "bb");
    }
}
