//! Merges the command line, the environment, a TOML file and the defaults.

use super::variables;
use clap::parser::ValueSource;
use clap::{ArgMatches, Id};
use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::Value;
use figment::{Figment, Source, error};
use forebay_proto::units::bytes;
use forebay_proto::{Error, Result};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Flags over environment over `file` over defaults: `settings` holds flags and defaults, `matches` says
/// which are which. `Invalid` names the setting.
pub(super) fn merge<T: Serialize + DeserializeOwned>(
    settings: &T,
    matches: &ArgMatches,
    file: Option<&Path>,
) -> Result<T> {
    let all = Value::serialize(settings).map_err(wrong)?;
    let mut figment = Figment::from(Serialized::defaults(&all));
    if let Some(path) = file {
        if !path.is_file() {
            return Err(Error::not_found(format!("settings file {} does not exist", path.display())));
        }
        figment = figment.merge(Toml::file_exact(path));
    }
    // Variables of ours that are no settings of a node.
    let others = [
        "config",
        "endpoint",
        "log",
        "zone",
        "server",
        "runtime_dir",
        "snapshot_dir",
        "idle_s",
        "nccl_plugin",
        "launcher",
        "base",
        "tag",
        "token_file",
        "ca",
        "cert",
        "key",
    ];
    figment = variables::merge::<T>(figment, Env::prefixed("FOREBAY_").ignore(&others).split("__"));
    let is_flag = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    for flag in matches.ids().map(Id::as_str).filter(is_flag) {
        let places = ["", "audit.", "auth.", "cluster.", "gateway.", "source.", "tls."]
            .map(|table| format!("{table}{flag}"));
        for place in places {
            if let Some(value) = all.find_ref(&place) {
                figment = figment.merge((place, value));
            }
        }
    }
    figment.extract().map_err(wrong)
}

/// Bytes, as a number or as people write them: 500GB, 64GiB.
pub(super) fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    maybe_size(deserializer)?.ok_or_else(|| serde::de::Error::custom("no size is given"))
}

/// The same, or nothing.
pub(crate) fn maybe_size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of bytes, or a size such as 500GB")]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Size::Bytes(n)) => Ok(Some(n)),
        Some(Size::Text(text)) => bytes(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

/// A path, or a list of them.
pub(super) fn one_or_many<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<PathBuf>, D::Error> {
    // A list by its type, so that variables are read as one.
    deserializer.deserialize_seq(OneOrMany)
}

struct OneOrMany;

impl<'de> Visitor<'de> for OneOrMany {
    type Value = Vec<PathBuf>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path or a list of paths")
    }

    fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<Vec<PathBuf>, E> {
        Ok(vec![path.into()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, paths: A) -> Result<Vec<PathBuf>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(paths))
    }
}

/// `Invalid` if something is wrong.
pub(super) fn refuse(is_wrong: bool, why: impl Into<String>) -> Result<()> {
    if is_wrong { Err(Error::invalid(why)) } else { Ok(()) }
}

/// Names the setting that is wrong, without the value of a secret.
fn wrong(e: figment::Error) -> Error {
    let key = e.path.join(".").to_ascii_lowercase();
    match ["secret", "token"].iter().any(|word| key.contains(word)) {
        true => Error::invalid(format!("settings: {key} must be text, in quotes")),
        false => Error::invalid(format!("settings: {}", in_words(&e))),
    }
}

/// The setting, what about it is wrong, and where it is, without the library's words for them.
fn in_words(e: &error::Error) -> String {
    let mut path = e.path.clone();
    let what = match &e.kind {
        error::Kind::UnknownField(name, _) => {
            if path.last() != Some(name) {
                path.push(name.clone());
            }
            "there is no such setting".to_owned()
        }
        error::Kind::InvalidType(found, wanted) | error::Kind::InvalidValue(found, wanted) => {
            format!("found {found}, expected {}", type_in_words(wanted))
        }
        kind => kind.to_string(),
    };
    let place = match &e.metadata {
        Some(from) if from.name.contains("environment variable") => {
            format!(" (FOREBAY_{})", path.join("__").to_ascii_uppercase())
        }
        Some(from) => match from.source.as_ref().and_then(Source::file_path) {
            Some(file) => format!(" (in {})", file.display()),
            None => String::new(),
        },
        None => String::new(),
    };
    match path.is_empty() {
        true => format!("{what}{place}"),
        false => format!("{}: {what}{place}", path.join(".")),
    }
}

/// A type as people know it.
fn type_in_words(wanted: &str) -> &str {
    match wanted {
        "u16" | "u32" | "u64" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        "bool" | "a boolean" => "true or false",
        other => other,
    }
}
