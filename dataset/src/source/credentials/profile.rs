//! Profiles of the AWS files (`~/.aws/credentials` and `~/.aws/config`), read by the AWS SDK.

use aws_config::profile::{ProfileSet, load};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_types::os_shim_internal::{Env, Fs};
use forebay_proto::{Error, Result};
use futures::FutureExt;

/// The AWS files: the variable that says where each lies, and its usual name.
const CONFIG: (&str, &str) = ("AWS_CONFIG_FILE", "config");
const CREDENTIALS: (&str, &str) = ("AWS_SHARED_CREDENTIALS_FILE", "credentials");

/// The profile `wanted`, or the default one. `Invalid` if neither file has the one wanted.
pub(super) fn profile(wanted: Option<String>, env: &Env) -> Result<ProfileSet> {
    let name = wanted.clone().unwrap_or_else(|| "default".into());
    // The texts are at hand: nothing is waited for.
    let loaded = load(&Fs::real(), env, &files(env), Some(name.into())).now_or_never();
    let profile = loaded.transpose().map_err(|e| Error::invalid(format!("the AWS files: {e}")))?;
    let profile = profile.unwrap_or_default();
    match wanted {
        Some(name) if profile.get_profile(&name).is_none() => {
            let at = |file| path(env, file).unwrap_or_else(|| "(no HOME)".into());
            let (config, credentials) = (at(CONFIG), at(CREDENTIALS));
            Err(Error::invalid(format!(
                "no profile '{name}' in {credentials} or {config}: correct s3_profile or AWS_PROFILE"
            )))
        }
        _ => Ok(profile),
    }
}

/// The AWS files as they are now; what cannot be read counts as empty.
pub(super) fn files(env: &Env) -> EnvConfigFiles {
    let mut files = EnvConfigFiles::builder();
    for (kind, file) in [(EnvConfigFileKind::Config, CONFIG), (EnvConfigFileKind::Credentials, CREDENTIALS)] {
        let text = path(env, file).and_then(|path| std::fs::read_to_string(path).ok());
        files = files.with_contents(kind, text.unwrap_or_default());
    }
    files.build()
}

/// Where an AWS file lies.
fn path(env: &Env, (name, usual): (&str, &str)) -> Option<String> {
    variable(env, name).or_else(|| Some(format!("{}/.aws/{usual}", variable(env, "HOME")?)))
}

/// A variable; empty counts as unset.
pub(super) fn variable(env: &Env, name: &str) -> Option<String> {
    env.get(name).ok().filter(|v| !v.is_empty())
}

/// A setting of the profile; empty counts as unset.
pub(super) fn value(profile: &ProfileSet, key: &str) -> Option<String> {
    profile.get(key).filter(|v| !v.is_empty()).map(str::to_owned)
}
