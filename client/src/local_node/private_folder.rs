//! The folder of sockets, logs and locks: this user's alone, or it is refused.
//!
//! It is below `/tmp`, not in `XDG_RUNTIME_DIR`: that is set in some of a user's processes and not in others
//! (jobs of a scheduler), and goes when the user logs out, while a run may go on.

use crate::environment::variable;
use forebay_proto::{Error, Result};
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The variable that names another.
const VARIABLE: &str = "FOREBAY_RUNTIME_DIR";

/// Bytes that the path of a node's socket may have (`sun_path` of unix(7), less its end and the name that it
/// has while it is made).
const PATH_BYTES_MAX: usize = 103;

/// The folder, which nobody else can look into.
#[derive(Debug)]
pub(super) struct PrivateFolder(());

/// Where it is.
pub(super) fn path() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let path = variable(VARIABLE).map_or_else(|| format!("/tmp/forebay-{user}").into(), PathBuf::from);
    match path.is_absolute() {
        true => Ok(path),
        false => Err(Error::invalid(format!("{VARIABLE}={}: use a full path", path.display()))),
    }
}

/// `Invalid` if a socket cannot have this path.
pub(super) fn check_length(socket: &Path) -> Result<()> {
    let bytes = socket.as_os_str().len();
    match bytes > PATH_BYTES_MAX {
        true => Err(Error::invalid(format!(
            "{}: a socket's path has at most {PATH_BYTES_MAX} bytes, this one has {bytes}: name a shorter folder by \
             {VARIABLE}",
            socket.display()
        ))),
        false => Ok(()),
    }
}

impl PrivateFolder {
    /// Makes it where it is missing. `Denied` if it is another user's, or others may enter it, or it is no
    /// folder.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let other = format!("or name another by {VARIABLE}");
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::denied(format!(
                    "cannot make {shown} for the socket of a cache node: {e}; name another by {VARIABLE}"
                )));
            }
            _ => {}
        }
        // Of the folder itself: a link to one could lead anywhere later.
        let folder = std::fs::symlink_metadata(path);
        let folder = folder
            .map_err(|e| Error::denied(format!("cannot look at {shown}: {e}; name another by {VARIABLE}")))?;
        let (user, mode) = (rustix::process::geteuid().as_raw(), folder.mode() & 0o777);
        if !folder.is_dir() {
            return Err(Error::denied(format!(
                "{shown} is no folder: a cache node's socket must lie in one: remove it, {other}"
            )));
        }
        if folder.uid() != user {
            let why = format!(
                "{shown} is user {}'s, and this process is user {user}'s: it could listen in place of a cache node: remove it, {other}",
                folder.uid()
            );
            return Err(Error::denied(why));
        }
        if mode & 0o077 != 0 {
            return Err(Error::denied(format!(
                "{shown} has mode {mode:o}, so others could reach a cache node's socket: chmod 700 {shown}, {other}"
            )));
        }
        Ok(Self(()))
    }

    /// A file in it, made if it is missing.
    pub fn file(&self, path: &Path) -> Result<File> {
        let opened = File::options().create(true).append(true).mode(0o600).open(path);
        opened.map_err(|e| {
            Error::denied(format!("cannot open {}: {e}; name another folder by {VARIABLE}", path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_folder_of_ones_own_will_do() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let open = |path: &Path| PrivateFolder::open(path).map(drop).map_err(|e| e.message);
        open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        open(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
        assert!(open(&path).unwrap_err().contains("has mode 750"));
        let link = root.path().join("link");
        symlink(root.path(), &link).unwrap();
        assert!(open(&link).unwrap_err().contains("is no folder"));
        assert!(open(&root.path().join("no/f")).unwrap_err().contains("FOREBAY_RUNTIME_DIR"));
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(open(&path).unwrap_err().contains("is user 12345's"));
        } else {
            assert!(open(Path::new("/")).unwrap_err().contains("is user 0's"));
        }
    }
}
