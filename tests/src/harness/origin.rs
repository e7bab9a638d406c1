//! Where a benchmark's figures are from: which commit was built, and on which machine it ran.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What stands for a commit that cannot be told.
pub const UNKNOWN: &str = "unknown";

/// The commit of the repository in which this program was built (`target/` lies within it), as far as git can
/// tell; of a program that was installed elsewhere, `unknown`.
pub fn commit() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    built_in(&program).and_then(|folder| commit_of(&folder)).unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The folder that holds the `target` folder of a program.
fn built_in(program: &Path) -> Option<PathBuf> {
    let target =
        program.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "target"))?;
    Some(target.parent()?.to_owned())
}

fn commit_of(folder: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(folder)
        .args(["rev-parse", "--short=12", "HEAD"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Processor, number of cores and memory.
pub fn machine() -> String {
    let field = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory =
        field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let memory = memory.map_or_else(String::new, |kib| format!(", {:.0} GB", kib as f64 * 1024.0 / 1e9));
    format!("{model}, {cores} cores{memory}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_of_the_repository_it_was_built_in() {
        assert_eq!(built_in(Path::new("/src/fb/target/release/forebay")), Some("/src/fb".into()));
        assert_eq!(built_in(Path::new("/usr/bin/forebay")), None);
        assert_eq!(commit_of(Path::new("/nowhere")), None);
        assert!(machine().contains(" cores"));
    }
}
