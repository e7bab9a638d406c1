//! A file with a token, read again when it changes: by those who ask a node.

use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Bytes of a token at most: a JSON Web Token may be long, a header may not.
const TOKEN_BYTES_MAX: u64 = 12 << 10;

/// A file that holds a token and nothing else. What it held last is good while it cannot be read.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    looked: Option<Instant>,
    /// When it was written, its inode, its length.
    version: Option<(SystemTime, u64, u64)>,
    /// `Bearer TOKEN`
    header: Option<Arc<str>>,
}

impl std::fmt::Debug for TokenState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenState").field("looked", &self.looked).finish_non_exhaustive()
    }
}

impl TokenFile {
    /// The token of a file, which is read when it is needed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), state: Mutex::default() }
    }

    /// The value of the header `authorization`. `Denied` if there is no token; it says why.
    pub fn bearer(&self) -> Result<Arc<str>> {
        let mut state = self.state.lock();
        if state.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            state.looked = Some(Instant::now());
            if let Err(e) = state.look(&self.path) {
                match &state.header {
                    Some(_) => tracing::warn!(error = %e, "the token of before is used on"),
                    None => {
                        state.looked = None;
                        return Err(e);
                    }
                }
            }
        }
        state.header.clone().ok_or_else(|| wrong(&self.path, "is empty"))
    }
}

impl TokenState {
    fn look(&mut self, path: &Path) -> Result<()> {
        let unreadable = |e: std::io::Error| wrong(path, &format!("cannot be read: {e}"));
        let about = std::fs::metadata(path).map_err(unreadable)?;
        let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let version = Some((written, about.ino(), about.len()));
        if version == self.version {
            return Ok(());
        }
        if about.mode() & 0o007 != 0 {
            tracing::warn!(path = %path.display(), "every user of this machine may read this token: chmod 600");
        }
        if about.len() > TOKEN_BYTES_MAX {
            return Err(wrong(path, "has more than 12 KiB: no token is so long"));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong(path, "holds no token: it has one line, without blanks"));
        }
        self.header = Some(format!("Bearer {token}").into());
        self.version = version;
        Ok(())
    }
}

/// The text of the file is not repeated: it is a secret.
fn wrong(path: &Path, why: &str) -> Error {
    Error::denied(format!("the token file {} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_now_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let file = TokenFile::new(&path);
        let e = file.bearer().unwrap_err().message;
        assert!(
            e.starts_with(&format!("the token file {} cannot be read: No such file", path.display())),
            "{e}"
        );
        for bad in ["", "\n", "two words", "a\0b"] {
            std::fs::write(&path, bad).unwrap();
            let e = file.bearer().unwrap_err().message;
            assert!(e.contains("holds no token"), "{e}");
        }
        std::fs::write(&path, "hunter2\n").unwrap();
        assert_eq!(&*file.bearer().unwrap(), "Bearer hunter2");
        assert!(!format!("{file:?}").contains("hunter2"));
        std::fs::write(&path, "hunter3-hunter3").unwrap();
        assert_eq!(&*file.bearer().unwrap(), "Bearer hunter2", "it is looked at every few seconds");
        file.state.lock().looked = None;
        assert_eq!(&*file.bearer().unwrap(), "Bearer hunter3-hunter3");
        std::fs::remove_file(&path).unwrap();
        file.state.lock().looked = None;
        assert_eq!(&*file.bearer().unwrap(), "Bearer hunter3-hunter3", "the last one is good meanwhile");
    }
}
