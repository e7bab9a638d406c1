//! The process of a node: started so that it outlives the one that starts it.

use super::variables::variables;
use forebay_dataset::SourceSettings;
use forebay_proto::{Error, Result};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What it may read: all that its user may.
const ALLOWED: [&str; 4] = ["s3://", "gs://", "az://", "file:///"];

/// Of the log's end, what an error shows.
const SHOWN: usize = 2000;

/// A node about to be started.
#[derive(Debug)]
pub(super) struct Plan {
    pub program: PathBuf,
    pub socket: PathBuf,
    pub cache_dir: PathBuf,
    pub cache_bytes: u64,
    pub memory_bytes: u64,
    pub idle_s: f64,
    pub source: SourceSettings,
}

/// A node that was started here.
#[derive(Debug)]
pub(super) struct NodeProcess {
    pub program: PathBuf,
    child: Option<Child>,
}

impl NodeProcess {
    /// Starts it. What it says goes to `log`, which begins again.
    pub fn start(plan: &Plan, log: &Path) -> Result<Self> {
        let program = plan.program.clone();
        let fail = |e: std::io::Error| {
            Error::denied(format!(
                "cannot start a cache node by {}: {e}; name a cache (endpoint), or read without one (direct)",
                program.display()
            ))
        };
        File::options().create(true).write(true).truncate(true).mode(0o600).open(log).map_err(fail)?;
        let output = File::options().append(true).open(log).map_err(fail)?;
        let mut command = Command::new(&plan.program);
        command.args(arguments(plan)).current_dir("/");
        // Variables that were set for programs of ours in general are not meant for this one.
        let ours = |name: &str| name.starts_with("FOREBAY_") && name != "FOREBAY_LOG";
        command.env_clear().envs(variables().filter(|(name, _)| !ours(&name.to_string_lossy())));
        command.envs(environment(plan));
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(fail)?).stderr(output);
        let child = Some(command.spawn().map_err(fail)?);
        Ok(Self { program: plan.program.clone(), child })
    }

    /// Why it ended, if it has.
    pub fn ended(&mut self, log: &Path) -> Option<Error> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        let text = std::fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN)..]).into_owned();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(3)..].join("; ");
        Some(Error::denied(format!(
            "the cache node of this machine ended at its start ({status}): {last}: its log is {}; name a cache \
             (endpoint), or read without one (direct)",
            log.display()
        )))
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It fails only if it has ended.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Leaves it to itself. A thread waits for its end, lest it stay a zombie for as long as this process
    /// lives.
    pub fn leave(&mut self) {
        if let Some(mut child) = self.child.take() {
            let wait = move || drop(child.wait());
            std::thread::Builder::new().name("forebay-node".into()).spawn(wait).ok();
        }
    }
}

/// Flags, which all show in process lists.
fn arguments(plan: &Plan) -> Vec<String> {
    let flags = [
        ("--listen", format!("unix:{}", plan.socket.display())),
        ("--cache-dir", plan.cache_dir.display().to_string()),
        ("--cache-bytes", plan.cache_bytes.to_string()),
        ("--memory-bytes", plan.memory_bytes.to_string()),
        ("--exit-when-idle-s", plan.idle_s.to_string()),
    ];
    let mut all: Vec<String> = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    all.extend(ALLOWED.into_iter().flat_map(|root| ["--allow".to_owned(), root.to_owned()]));
    all.push("--detach".to_owned());
    all
}

/// How it reads the object store, as variables: secrets are among it.
fn environment(plan: &Plan) -> Vec<(String, String)> {
    let mut source = plan.source.clone();
    let default = SourceSettings::default();
    if source.footer_cache_bytes == default.footer_cache_bytes {
        // Not a part of the node's memory, so it must be in proportion.
        let bytes = usize::try_from(plan.memory_bytes / 8).unwrap_or(usize::MAX);
        source.footer_cache_bytes = bytes.min(default.footer_cache_bytes);
    }
    let fields = |settings: &SourceSettings| match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => fields,
        _ => Default::default(),
    };
    let usual = fields(&default);
    let changed = fields(&source).into_iter().filter(|(name, value)| usual.get(name) != Some(value));
    let mut all: Vec<(String, String)> = changed.map(|(name, value)| (name, text(&value))).collect();
    // Secrets are not serialised.
    all.extend(source.s3_secret_access_key.map(|secret| ("s3_secret_access_key".to_owned(), secret)));
    all.extend(source.s3_session_token.map(|token| ("s3_session_token".to_owned(), token)));
    let name = |name: String| format!("FOREBAY_SOURCE__{}", name.to_ascii_uppercase());
    all.into_iter().map(|(setting, value)| (name(setting), value)).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_in_the_environment_alone() {
        let source = SourceSettings {
            s3_endpoint: Some("http://s:1".into()),
            s3_secret_access_key: Some("hidden".into()),
            s3_path_style: Some(true),
            patience_s: 5.0,
            ..Default::default()
        };
        let plan = Plan {
            program: "/p".into(),
            socket: "/s".into(),
            cache_dir: "/c".into(),
            cache_bytes: 1,
            memory_bytes: 64 << 20,
            idle_s: 1.5,
            source,
        };
        let arguments = arguments(&plan).join(" ");
        assert!(arguments.contains("--listen unix:/s --cache-dir /c") && !arguments.contains("hidden"));
        let mut variables = environment(&plan);
        variables.sort();
        let variables: Vec<_> = variables.iter().map(|(n, v)| format!("{}={v}", &n[16..])).collect();
        let wanted = [
            "FOOTER_CACHE_BYTES=8388608",
            "PATIENCE_S=5.0",
            "S3_ENDPOINT=http://s:1",
            "S3_PATH_STYLE=true",
            "S3_SECRET_ACCESS_KEY=hidden",
        ];
        assert_eq!(variables, wanted);
    }
}
