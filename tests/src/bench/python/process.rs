//! The Python process: the package of this repository with the extension that lies beside this program, and
//! torch as `scripts/setup.sh` unpacks it.

use crate::bench::warm::ChildProcess;
use crate::harness::process::run;
use anyhow::Context;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts such processes.
pub struct PythonProcesses {
    python: PathBuf,
    script: PathBuf,
    path: String,
    libraries: PathBuf,
    _folder: tempfile::TempDir,
}

impl PythonProcesses {
    /// An error if a part is missing; `make bench-python` makes all of them.
    pub fn of(repository: &Path) -> anyhow::Result<Self> {
        let python = repository.join(".venv/bin/python");
        anyhow::ensure!(python.is_file(), "{} is missing: scripts/setup.sh tests", python.display());
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
        Ok(Self {
            python,
            script: repository.join("tests/python/epochs.py"),
            path: format!("{}:{}", folder.path().display(), repository.join(".torch").display()),
            libraries: repository.join(".venv/torch-stand-ins"),
            _folder: folder,
        })
    }

    /// Starts one.
    pub fn start(&self, job: &Value) -> anyhow::Result<ChildProcess> {
        let mut command = Command::new(&self.python);
        run::scrub(&mut command);
        command.arg(&self.script).arg(job.to_string());
        command.envs([("PYTHONPATH", self.path.as_str()), ("PYTHONDONTWRITEBYTECODE", "1")]);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        ChildProcess::of(command, format!("epochs.py {job}"))
    }
}
