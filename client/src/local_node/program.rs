//! Where `forebay-server` is.

use crate::environment::variable;
use forebay_proto::{Error, Result};
use std::path::{Path, PathBuf};

/// The variable that names the program.
pub(super) const VARIABLE: &str = "FOREBAY_SERVER";

const NAME: &str = "forebay-server";

/// The program that the variable names; else the first in `folders`, beside the program that runs, and in
/// `PATH`. `Invalid` if there is none.
pub(super) fn find(folders: &[PathBuf]) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut all = folders.to_vec();
    all.extend(std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned())));
    all.extend(std::env::split_paths(&paths));
    find_in(variable(VARIABLE).map(PathBuf::from), &all)
}

fn find_in(named: Option<PathBuf>, folders: &[PathBuf]) -> Result<PathBuf> {
    if let Some(program) = named {
        return match is_program(&program) {
            // The node starts in another directory.
            true => std::path::absolute(&program)
                .map_err(|e| Error::invalid(format!("{VARIABLE}={}: {e}", program.display()))),
            false => {
                Err(Error::invalid(format!("{VARIABLE}={}: there is no such program", program.display())))
            }
        };
    }
    let found = folders.iter().filter(|f| f.is_absolute()).map(|f| f.join(NAME)).find(|p| is_program(p));
    found.ok_or_else(|| {
        Error::invalid(format!(
            "no cache is named, and there is no {NAME} to start one with: install it in PATH or set {VARIABLE} to it; \
             or name a cache (endpoint), or read without one (direct)"
        ))
    })
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_named_one_then_the_first_in_the_folders() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folders = [a.path().to_owned(), b.path().to_owned()];
        let e = find_in(None, &folders).unwrap_err().message;
        assert!(["endpoint", "direct", "FOREBAY_SERVER"].iter().all(|way| e.contains(way)), "{e}");
        let write = |folder: &Path, mode: u32| {
            std::fs::write(folder.join(NAME), "").unwrap();
            std::fs::set_permissions(folder.join(NAME), PermissionsExt::from_mode(mode)).unwrap();
        };
        write(a.path(), 0o644);
        write(b.path(), 0o755);
        assert_eq!(find_in(None, &folders).unwrap(), b.path().join(NAME), "the other is no program");
        let named = find_in(Some("/no/such".into()), &folders).unwrap_err().message;
        assert!(named.starts_with("FOREBAY_SERVER=/no/such"), "{named}");
        // The node starts in another directory than this process runs in.
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.ancestors().skip(1).map(|_| "..").collect();
        let relative = up.join(b.path().strip_prefix("/").unwrap()).join(NAME);
        assert!(relative.is_relative() && relative.is_file());
        let found = find_in(Some(relative), &folders).unwrap();
        assert!(found.is_absolute() && is_program(&found), "{}", found.display());
    }
}
