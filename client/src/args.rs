//! Command-line arguments that `forebay` and `forebay-train` share: which cache, or which object store
//! without one.
//!
//! Turns flags and environment into an [`Access`]. Secrets come from the environment or the usual AWS files
//! only: there is no flag for them, so they never show in a process list or a help text.

use crate::access::{Access, ENDPOINT_VARIABLE, ZONE_VARIABLE};
use crate::certificates::use_certificates;
use crate::credentials::use_token_file;
use crate::direct::{self, Direct};
use crate::endpoints::Endpoints;
use crate::environment::variable;
use crate::local_node::{LOCAL, LocalNode, LocalNodeSettings};
use clap::Args;
use forebay_dataset::{SourceArgs, SourceSettings};
pub use forebay_proto::units::bytes;
use forebay_proto::{Error, Result};
use forebay_tls::TlsFiles;
use std::path::PathBuf;

/// The heading in help for the flags of direct reading. It is set flag by flag: else later flags would fall
/// under it.
const DIRECT: &str = "Reading the object store";

/// Requests to the object store that a reader has under way at once when the cache is gone, by default.
const FALLBACK_REQUESTS: usize = 4;

/// Bytes a second that it reads then, by default: when a cache dies all its readers come at once.
const FALLBACK_BYTES_PER_S: u64 = 64_000_000;

/// How to read the object store directly.
#[derive(Debug, Clone, Default, Args)]
pub struct DirectArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at its type")]
    pub source: SourceArgs,
    /// Decoded bytes to keep in memory when reading directly, e.g. 4GB [default: 1GiB]
    #[arg(help_heading = DIRECT, long, value_name = "BYTES", value_parser = bytes)]
    pub direct_memory_bytes: Option<u64>,
}

/// Which cache node to ask.
#[derive(Debug, Clone, Default, Args)]
pub struct EndpointArgs {
    /// Cache node, such as http://127.0.0.1:7070; several (repeated, or separated by commas): any that
    /// answers; or `local`: a node of your own on this machine, started if none runs [env: FOREBAY_ENDPOINT]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub endpoint: Vec<String>,
    /// File with the token by which nodes know you, where they have a policy [env: FOREBAY_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the authorities of nodes at https:// [default: those of the system] [env: FOREBAY_CA]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// PEM file with your certificate, where nodes ask for one [env: FOREBAY_CERT]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// PEM file with its private key [env: FOREBAY_KEY]
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

/// What to do when no node of the cache answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Fallback {
    /// Wait, and give up in the end
    #[default]
    None,
    /// Read the object store directly, slowly, until a node answers again
    Direct,
}

/// How batches come from a node on the reader's own host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum SameHost {
    /// Through shared memory, where the node's Unix socket can be reached
    #[default]
    Auto,
    /// As bytes, as from any other node
    Off,
}

/// Where data comes from: a cache, or the object store without one.
#[derive(Debug, Clone, Default, Args)]
pub struct AccessArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at its type")]
    pub endpoint: EndpointArgs,
    /// Read the object store directly, without a cache
    #[arg(long)]
    pub direct: bool,
    /// When no node of the cache answers: give up in the end, or read the object store directly meanwhile
    #[arg(long, value_enum, default_value_t, conflicts_with = "direct")]
    pub fallback: Fallback,
    /// This reader's zone: copies in it are preferred to the owner's [env: FOREBAY_ZONE]
    #[arg(long, value_name = "NAME", conflicts_with = "direct")]
    pub zone: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "documented at its type")]
    pub direct_args: DirectArgs,
}

impl DirectArgs {
    /// The object store, by these settings.
    fn open(&self, settings: SourceSettings) -> Result<Direct> {
        Direct::new(settings, self.direct_memory_bytes.unwrap_or(direct::MEMORY_BYTES))
    }

    /// Of a reader's last resort: slow, unless these flags allow more.
    fn fallback_settings(&self) -> SourceSettings {
        SourceSettings {
            s3_max_requests: self.source.s3_max_requests.unwrap_or(FALLBACK_REQUESTS),
            s3_max_bytes_per_s: self.source.s3_max_bytes_per_s.or(Some(FALLBACK_BYTES_PER_S)),
            ..self.source.settings()
        }
    }

    /// The first of these flags that was given.
    fn given(&self) -> Option<String> {
        let memory = self.direct_memory_bytes.map(|_| "--direct-memory-bytes".to_owned());
        self.source.given().or(memory)
    }
}

impl EndpointArgs {
    /// The cache that flag or environment names; `Invalid` if neither does.
    pub fn endpoints(&self) -> Result<Endpoints> {
        let none =
            || Error::invalid(format!("no cache endpoint: pass --endpoint URL or set {ENDPOINT_VARIABLE}"));
        self.use_files()?;
        let urls = self.resolve(variable(ENDPOINT_VARIABLE)).ok_or_else(none)?;
        match is_local(&urls) {
            true => Ok(Endpoints::local(LocalNode::new(LocalNodeSettings::default())?)),
            false => Endpoints::parse(&urls),
        }
    }

    /// From here on this process shows the certificate and the token of these flags, and believes their
    /// authorities; without a flag those of the environment. `Invalid` if a file of theirs makes no sense.
    pub fn use_files(&self) -> Result<()> {
        self.token_file.iter().for_each(use_token_file);
        let Self { ca, cert, key, .. } = self.clone();
        let files = TlsFiles { ca, cert, key, crl: None };
        if files.is_empty() { Ok(()) } else { use_certificates(files) }
    }

    /// The flag takes precedence over the environment; empty counts as absent.
    fn resolve(&self, variable: Option<String>) -> Option<String> {
        let flags = (!self.endpoint.is_empty()).then(|| self.endpoint.join(","));
        flags.or(variable).filter(|urls| !urls.trim().is_empty())
    }
}

fn is_local(urls: &str) -> bool {
    urls.trim() == LOCAL
}

impl AccessArgs {
    /// What flags and environment say; `Invalid` if they contradict each other or say nothing. `--direct`
    /// takes precedence over the environment's endpoint, as any flag does over a variable.
    pub fn access(&self) -> Result<Access> {
        match self.choose(variable(ENDPOINT_VARIABLE))? {
            Some(urls) => {
                self.endpoint.use_files()?;
                let zone = self.zone.clone().filter(|zone| !zone.is_empty());
                let zone = zone.or_else(|| variable(ZONE_VARIABLE));
                let source = &self.direct_args.source;
                let mut endpoints = match is_local(&urls) {
                    true => Endpoints::local(LocalNode::new(LocalNodeSettings::of(source.settings()))?),
                    false => Endpoints::parse(&urls)?.spread(),
                };
                endpoints.zone = zone;
                if self.fallback == Fallback::Direct {
                    endpoints.fallback = Some(self.direct_args.open(self.direct_args.fallback_settings())?);
                }
                Ok(Access::Endpoint(endpoints))
            }
            None => self.direct_args.open(self.direct_args.source.settings()).map(Access::Direct),
        }
    }

    /// The endpoint's URL, or `None` for the object store.
    fn choose(&self, variable: Option<String>) -> Result<Option<String>> {
        if self.direct && !self.endpoint.endpoint.is_empty() {
            return Err(Error::invalid(
                "--endpoint and --direct contradict each other: read through the cache or read the object store directly",
            ));
        }
        if self.direct {
            return Ok(None);
        }
        let urls = self.endpoint.resolve(variable);
        // A node of this machine is started with the flags of the object store.
        let flag = match urls.as_deref().is_some_and(is_local) {
            true => self.direct_args.direct_memory_bytes.map(|_| "--direct-memory-bytes".to_owned()),
            false => self.direct_args.given(),
        };
        if let Some(flag) = flag.filter(|_| self.fallback == Fallback::None) {
            return Err(Error::invalid(format!(
                "{flag} is for reading the object store directly: add --direct, or leave it out and set it at the cache"
            )));
        }
        let none = || {
            Error::invalid(format!(
                "no cache endpoint: pass --endpoint URL or set {ENDPOINT_VARIABLE}, or read the object store directly with \
                 --direct"
            ))
        };
        urls.map(Some).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        access: AccessArgs,
    }

    fn choose(line: &[&str], variable: Option<&str>) -> Result<Option<String>, String> {
        let line = Line::try_parse_from(["x"].iter().chain(line)).map_err(|e| e.to_string())?;
        line.access.choose(variable.map(str::to_owned)).map_err(|e| e.message)
    }

    #[test]
    fn flag_over_variable_and_direct_over_both() {
        assert_eq!(choose(&["--endpoint", "a:1"], Some("b:1")), Ok(Some("a:1".into())));
        assert_eq!(choose(&[], Some("b:1")), Ok(Some("b:1".into())));
        assert_eq!(choose(&["--direct"], Some("b:1")), Ok(None));
        assert_eq!(
            choose(&["--direct", "--s3-endpoint", "http://s:1", "--s3-path-style", "true"], None),
            Ok(None)
        );
    }

    #[test]
    fn silence_and_contradiction_are_errors_of_one_line() {
        let silent = choose(&[], None).unwrap_err();
        assert_eq!(
            silent,
            "no cache endpoint: pass --endpoint URL or set FOREBAY_ENDPOINT, or read the object store directly with --direct"
        );
        assert_eq!(choose(&[], Some(" ")).unwrap_err(), silent, "an empty variable counts as absent");
        assert!(choose(&["--direct", "--endpoint", "a:1"], None).unwrap_err().contains("contradict"));
        let flag = choose(&["--endpoint", "a:1", "--s3-region", "x"], None).unwrap_err();
        assert!(flag.starts_with("--s3-region is for reading the object store directly"), "{flag}");
    }

    #[test]
    fn a_node_of_this_machine_takes_the_flags_of_the_object_store() {
        let given = ["--endpoint", "local", "--s3-region", "x"];
        assert_eq!(choose(&given, None), Ok(Some("local".into())));
        assert!(choose(&["--endpoint", "local", "--direct-memory-bytes", "1GB"], None).is_err());
        let line = Line::try_parse_from(["x", "--endpoint", "local"]).unwrap_or_else(|e| panic!("{e}"));
        let Access::Endpoint(endpoints) = line.access.access().unwrap() else { panic!("a cache") };
        assert!(endpoints.url().starts_with("unix:/") && endpoints.url().ends_with(".sock"));
    }

    #[test]
    fn source_flags_become_settings() {
        let line = Line::try_parse_from([
            "x",
            "--s3-endpoint",
            "http://s:1",
            "--s3-region",
            "r",
            "--s3-path-style",
            "true",
        ]);
        let settings = line.unwrap_or_else(|e| panic!("{e}")).access.direct_args.source.settings();
        assert_eq!(settings.s3_endpoint.as_deref(), Some("http://s:1"));
        assert_eq!((settings.s3_region.as_deref(), settings.s3_path_style), (Some("r"), Some(true)));
        assert_eq!(SourceArgs::default().settings().s3_path_style, None);
    }

    #[test]
    fn the_last_resort_is_slow_unless_told_otherwise() {
        let limits = |line: &[&str]| {
            let line = Line::try_parse_from(["x"].iter().chain(line)).unwrap_or_else(|e| panic!("{e}"));
            let settings = line.access.direct_args.fallback_settings();
            (settings.s3_max_requests, settings.s3_max_bytes_per_s)
        };
        assert_eq!(limits(&[]), (FALLBACK_REQUESTS, Some(FALLBACK_BYTES_PER_S)));
        assert_eq!(
            limits(&["--s3-max-requests", "9", "--s3-max-bytes-per-s", "1GB"]),
            (9, Some(1_000_000_000))
        );
    }

    #[test]
    fn a_reader_has_a_zone() {
        let line =
            Line::try_parse_from(["x", "--endpoint", "a:1", "--zone", "z"]).unwrap_or_else(|e| panic!("{e}"));
        let Access::Endpoint(endpoints) = line.access.access().unwrap() else { panic!("a cache") };
        assert_eq!(endpoints.zone.as_deref(), Some("z"));
    }
}
