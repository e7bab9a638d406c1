//! The files that TLS is set up by, and whether they changed.

use forebay_proto::{Error, Result};
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a file at most: a list of very many revoked certificates.
const BYTES_MAX: u64 = 16 << 20;

/// Files that are being replaced are looked at again after this, a number of times at most.
const SETTLE: (Duration, usize) = (Duration::from_millis(50), 20);

/// PEM files, each as far as it is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// The own certificate, followed by those between it and its authority.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`: neither is given without the other.
    pub key: Option<PathBuf>,
    /// The authorities whose certificates are believed.
    pub ca: Option<PathBuf>,
    /// Certificates that these authorities revoked.
    pub crl: Option<PathBuf>,
}

/// What tells a file from its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// When its bytes changed, and when anything about it did, its mode included: seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What all files looked like; `None` for one that cannot be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamps([Option<Stamp>; 4]);

impl TlsFiles {
    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `Invalid` if one is named without another that it needs; `names` are those of the four settings.
    pub fn check(&self, [cert, key, ca, crl]: [&str; 4]) -> Result<()> {
        let lacks = |given: &str, missing: &str| {
            Err(Error::invalid(format!("{given} needs {missing} beside it: name both files or neither")))
        };
        match (&self.cert, &self.key, &self.ca, &self.crl) {
            (Some(_), None, ..) => lacks(cert, key),
            (None, Some(_), ..) => lacks(key, cert),
            (.., None, Some(_)) => lacks(crl, ca),
            _ => Ok(()),
        }
    }

    /// What the files look like now. Symbolic links are followed.
    pub(crate) fn stamps(&self) -> Stamps {
        let stamp = |path: &Option<PathBuf>| {
            let about = std::fs::metadata(path.as_ref()?).ok()?;
            Some(Stamp {
                device: about.dev(),
                inode: about.ino(),
                bytes: about.size(),
                modified: (about.mtime(), about.mtime_nsec()),
                changed: (about.ctime(), about.ctime_nsec()),
            })
        };
        Stamps([&self.cert, &self.key, &self.ca, &self.crl].map(stamp))
    }
}

/// What `read` makes of files that do not change while it reads, as far as they ever stand still; and what
/// they looked like.
pub(crate) fn settled<T>(
    files: &TlsFiles,
    mut before: Stamps,
    read: impl Fn() -> Result<T>,
) -> (Stamps, Result<T>) {
    let mut tries = 0;
    loop {
        std::thread::sleep(SETTLE.0);
        let now = files.stamps();
        if now == before || tries >= SETTLE.1 {
            let made = read();
            let after = files.stamps();
            if after == now || tries >= SETTLE.1 {
                return (now, made);
            }
        }
        before = now;
        tries += 1;
    }
}

/// The bytes of a file; an empty one is an error.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    open(path, |_| Ok(()))
}

/// The bytes of a file with a private key, which not every user of this machine may read.
pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>> {
    open(path, |about| {
        let mode = about.mode() & 0o7777;
        match mode & 0o007 {
            0 => Ok(()),
            _ => Err(format!(
                "its mode is {mode:04o}, so every user of this machine may use the private key: chmod 600"
            )),
        }
    })
}

fn open(path: &Path, check: impl Fn(&Metadata) -> std::result::Result<(), String>) -> Result<Vec<u8>> {
    let wrong = |why: String| Error::invalid(format!("{}: {why}", path.display()));
    let failed = |e: std::io::Error| wrong(format!("cannot be read: {e}"));
    let file = File::open(path).map_err(failed)?;
    check(&file.metadata().map_err(failed)?).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        0 => Err(wrong("is empty".into())),
        n if n > BYTES_MAX => Err(wrong(format!("has more than {} MiB", BYTES_MAX >> 20))),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_not_for_everybody() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "key").unwrap();
        for (mode, is_good) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false)] {
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
            match read_key(file.path()) {
                Ok(_) => assert!(is_good, "{mode:o}"),
                Err(e) => {
                    assert!(!is_good && e.message.contains(&format!("mode is {mode:04o}")), "{e}");
                    assert!(e.message.contains(&*file.path().to_string_lossy()), "{e}");
                }
            }
        }
    }

    #[test]
    fn another_file_in_the_place_of_one_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let files = TlsFiles { ca: Some(path.clone()), ..TlsFiles::default() };
        let mut seen = vec![files.stamps()];
        for text in ["one", "two"] {
            // Of the same length, moved there as a tool that replaces files does.
            std::fs::write(folder.path().join("new"), text).unwrap();
            std::fs::rename(folder.path().join("new"), &path).unwrap();
            seen.push(files.stamps());
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.stamps(), seen[0]);
        seen.dedup();
        assert_eq!(seen.len(), 3);
        assert!(read(&path).unwrap_err().message.contains("ca.pem: cannot be read"));
        std::fs::write(&path, "").unwrap();
        assert!(read(&path).unwrap_err().message.contains("is empty"));
    }
}
