//! `[auth]` and `[audit]`: who may do what, and what of it is written down.

use super::load::refuse;
use clap::Args;
use forebay_proto::Result;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Who may do what.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSettings {
    /// TOML file that says who may do what; read again when it changes [default: everybody may all that
    /// --allow names].
    #[arg(long = "auth-policy", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// File with the token by which this node asks others of its cluster; the policy gives it the role
    /// `peer`.
    #[arg(long, value_name = "FILE")]
    pub peer_token_file: Option<PathBuf>,
    /// Tokens that another authority signs.
    #[arg(skip)]
    pub jwt: JwtSettings,
}

/// JSON Web Tokens that are good here.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtSettings {
    /// Where the authority's keys are, a JSON Web Key Set: a path, or an https:// URL.
    pub jwks: Option<String>,
    /// `iss` of tokens.
    pub issuer: String,
    /// `aud` of tokens, or one of them.
    pub audience: String,
    pub algorithms: Vec<String>,
    /// Seconds by which clocks may differ.
    pub leeway_s: u64,
}

impl Default for JwtSettings {
    fn default() -> Self {
        let algorithms = ["RS256", "ES256"].map(str::to_owned).to_vec();
        Self { jwks: None, issuer: String::new(), audience: String::new(), algorithms, leeway_s: 30 }
    }
}

/// The audit log.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSettings {
    /// File that gets a line of JSON for each call that is refused, and for each call of an operator
    /// [default: none].
    #[arg(long = "audit-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What becomes of calls whose line cannot be written yet.
    #[arg(skip)]
    pub on_full: OnFull,
}

/// What becomes of calls whose line cannot be written yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// They wait.
    #[default]
    Block,
    /// They go on, and the line is lost, and counted.
    Drop,
}

impl AuthSettings {
    /// `Invalid` names the setting that makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        let JwtSettings { jwks, issuer, audience, algorithms, leeway_s } = &self.jwt;
        let unused = "[auth.jwt] is for callers that the policy knows: set [auth] policy too";
        refuse(jwks.is_some() && self.policy.is_none(), unused)?;
        let open = "[auth.jwt] issuer and audience must be set: else tokens for others would be good here";
        refuse(jwks.is_some() && (issuer.is_empty() || audience.is_empty()), open)?;
        refuse(jwks.is_some() && algorithms.is_empty(), "[auth.jwt] algorithms: name one at least")?;
        refuse(*leeway_s > 300, format!("[auth.jwt] leeway_s = {leeway_s}: must be 0 to 300"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |change: &dyn Fn(&mut AuthSettings)| {
            let jwt = JwtSettings {
                jwks: Some("keys".into()),
                issuer: "i".into(),
                audience: "a".into(),
                ..JwtSettings::default()
            };
            let mut settings = AuthSettings { policy: Some("p".into()), jwt, ..AuthSettings::default() };
            change(&mut settings);
            settings.check().map_err(|e| e.message)
        };
        assert!(check(&|_| ()).is_ok());
        assert!(check(&|s| s.policy = None).unwrap_err().contains("[auth] policy"));
        assert!(check(&|s| s.jwt.issuer.clear()).unwrap_err().contains("issuer"));
        assert!(check(&|s| s.jwt.audience.clear()).unwrap_err().contains("audience"));
        assert!(check(&|s| s.jwt.algorithms.clear()).unwrap_err().contains("algorithms"));
        assert!(check(&|s| s.jwt.leeway_s = 1000).unwrap_err().contains("leeway_s"));
    }
}
