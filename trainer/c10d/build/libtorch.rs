//! Is `$LIBTORCH` the libtorch this crate is written against?
//!
//! The shim compiles against c10d's internal headers, which change between releases, and with `LIBTORCH` set
//! torch-sys checks nothing: another version fails minutes later in a page of C++ errors, or at load. So the
//! build script asks here first. It does no more than read `version.py`; the tests include this file as well.

use std::path::{Path, PathBuf};

/// The one release that the C++ in `shim/` and the pinned `tch` are written against.
pub const WANTED: &str = "2.11.0";

/// Checks the value of `LIBTORCH` and gives the folder back. Errors are one line and say what to do.
pub fn check(libtorch: Option<&str>) -> Result<PathBuf, String> {
    let Some(dir) = libtorch.filter(|dir| !dir.is_empty()) else {
        return Err(format!(
            "LIBTORCH is not set: libtorch {WANTED} is wanted; run `make setup`, which installs it under .torch"
        ));
    };
    let dir = PathBuf::from(dir);
    let version_file = dir.join("version.py");
    let text = std::fs::read_to_string(&version_file).map_err(|error| {
        format!(
            "no libtorch at LIBTORCH={} ({}: {error}): libtorch {WANTED} is wanted; run `make setup`, which installs it",
            dir.display(),
            version_file.display()
        )
    })?;
    let found = version(&text).ok_or_else(|| {
        format!("{} has no __version__: run `make setup` to install it again", version_file.display())
    })?;
    // "2.11.0+cu130": what follows the plus is the build, not the release.
    if found.split('+').next() != Some(WANTED) {
        return Err(format!(
            "LIBTORCH={} is libtorch {found}, but {WANTED} is wanted; run `make setup`, which installs it under .torch",
            dir.display()
        ));
    }
    for needed in ["include/ATen/ATen.h", "lib/libtorch_cpu.so"] {
        if !Path::exists(&dir.join(needed)) {
            return Err(format!(
                "libtorch at {} lacks {needed}: run `make setup` to install it again",
                dir.display()
            ));
        }
    }
    Ok(dir)
}

/// The value of `__version__ = '...'` in a Python source file.
fn version(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.strip_prefix("__version__"))?;
    let value = line.trim_start().strip_prefix('=')?.trim();
    Some(value.trim_matches(|c| c == '\'' || c == '"'))
}
