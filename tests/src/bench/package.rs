//! The package of this repository, with the extension that lies beside this program.

use crate::harness::process::run;
use anyhow::Context;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A folder for `PYTHONPATH`.
pub struct Package(tempfile::TempDir);

impl Package {
    /// An error if a part is missing.
    pub fn of(repository: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let package = folder.path().join("forebay");
        std::fs::create_dir(&package)?;
        for file in std::fs::read_dir(repository.join("python/forebay"))? {
            let file = file?.path();
            let name = file.file_name().context("a file has a name")?;
            if file.extension().is_some_and(|extension| extension == "py") {
                symlink(&file, package.join(name))?;
            }
        }
        // Of the same build as the Rust loader that it is compared with.
        let extension = run::find("forebay-bench-warm")?.with_file_name("lib_forebay.so");
        anyhow::ensure!(extension.is_file(), "{} is missing: build --lib", extension.display());
        symlink(extension, package.join("_forebay.so"))?;
        Ok(Self(folder))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}
