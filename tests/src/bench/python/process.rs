//! The Python process: the package of this repository, and torch as `scripts/setup.sh` unpacks it.

use crate::bench::package::Package;
use crate::bench::warm::ChildProcess;
use crate::harness::process::run;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts such processes.
pub struct PythonProcesses {
    python: PathBuf,
    script: PathBuf,
    path: String,
    libraries: PathBuf,
    _package: Package,
}

impl PythonProcesses {
    /// An error if a part is missing; `make bench-python` makes all of them.
    pub fn of(repository: &Path) -> anyhow::Result<Self> {
        let python = repository.join(".venv/bin/python");
        anyhow::ensure!(python.is_file(), "{} is missing: scripts/setup.sh tests", python.display());
        let package = Package::of(repository)?;
        Ok(Self {
            python,
            script: repository.join("tests/python/epochs.py"),
            path: format!("{}:{}", package.path().display(), repository.join(".torch").display()),
            libraries: repository.join(".venv/torch-stand-ins"),
            _package: package,
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
