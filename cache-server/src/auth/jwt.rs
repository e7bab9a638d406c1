//! JSON Web Tokens that another authority signed: by one of a few algorithms, with a key of its set, for
//! this audience.

use super::jwks::{KeySet, KeySource};
use super::session::Credential;
use crate::settings::JwtSettings;
use forebay_proto::{Error, Result};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header, get_current_timestamp};
use parking_lot::RwLock;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a token at most.
const JWT_BYTES_MAX: usize = 12 << 10;

/// How long a token is good for at most, whatever it says of itself.
const LIFE_MAX: Duration = Duration::from_secs(86_400);

/// Algorithms that sign with a key which nobody else has. Those with a shared secret are not among them: a
/// public key would be taken for the secret.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Of a token without the claims that every one must have.
const NO_CLAIM: &str = "its JSON Web Token lacks exp, aud or iss";

/// Checks JSON Web Tokens: their signatures, their times, and who made them for whom.
#[derive(Debug)]
pub struct JwtVerifier {
    settings: JwtSettings,
    algorithms: Vec<Algorithm>,
    keys: RwLock<Arc<KeySet>>,
    pub source: KeySource,
}

impl JwtVerifier {
    /// `None` without a source of keys. `Invalid` names the setting.
    pub fn new(settings: &JwtSettings) -> Result<Option<Self>> {
        let Some(jwks) = &settings.jwks else { return Ok(None) };
        let algorithm = |name: &String| {
            let known = name.parse::<Algorithm>().ok().filter(|algorithm| ALGORITHMS.contains(algorithm));
            known.ok_or_else(|| {
                Error::invalid(format!(
                    "[auth.jwt] algorithms: {name} is none of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA"
                ))
            })
        };
        Ok(Some(Self {
            algorithms: settings.algorithms.iter().map(algorithm).collect::<Result<_>>()?,
            settings: settings.clone(),
            keys: RwLock::default(),
            source: KeySource::new(jwks)?,
        }))
    }

    /// Looks whether the authority has other keys now. `None` if they are as before.
    pub async fn look(&self) -> Result<()> {
        if let Some(keys) = self.source.look().await? {
            tracing::info!(keys = keys.len(), "keys of JSON Web Tokens are read");
            *self.keys.write() = Arc::new(keys);
        }
        Ok(())
    }

    /// What a token says; else why it is not good here, which is for the operator and not for its bearer.
    pub fn verify(&self, token: &str) -> std::result::Result<Credential, &'static str> {
        if token.len() > JWT_BYTES_MAX {
            return Err("its token has more than 12 KiB");
        }
        let header = decode_header(token).map_err(|e| fault(&e))?;
        let algorithm = Some(header.alg).filter(|algorithm| self.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or("its JSON Web Token has none of [auth.jwt] algorithms")?;
        let keys = self.keys.read().clone();
        let key = keys.find(header.kid.as_deref(), algorithm);
        let key = key.ok_or("its JSON Web Token names no key of [auth.jwt] jwks")?;
        let mut rules = Validation::new(algorithm);
        rules.leeway = self.settings.leeway_s;
        rules.validate_nbf = true;
        rules.set_audience(&[&self.settings.audience]);
        rules.set_issuer(&[&self.settings.issuer]);
        rules.set_required_spec_claims(&["exp", "aud", "iss"]);
        let claims = decode::<Map<String, Value>>(token, key, &rules).map_err(|e| fault(&e))?.claims;
        let expires = claims.get("exp").and_then(Value::as_f64).ok_or(NO_CLAIM)?;
        let left = (expires - get_current_timestamp() as f64 + self.settings.leeway_s as f64).max(0.0);
        let left = Duration::try_from_secs_f64(left).unwrap_or(LIFE_MAX).min(LIFE_MAX);
        Ok(Credential::Claims { claims, until: Instant::now() + left })
    }
}

/// Nothing of a token is repeated: strangers write them.
fn fault(e: &jsonwebtoken::errors::Error) -> &'static str {
    match e.kind() {
        ErrorKind::ExpiredSignature => "its JSON Web Token has expired",
        ErrorKind::ImmatureSignature => "its JSON Web Token is not good yet",
        ErrorKind::InvalidAudience => "its JSON Web Token is for another audience",
        ErrorKind::InvalidIssuer => "its JSON Web Token is of another issuer",
        ErrorKind::InvalidSignature => "its JSON Web Token is signed by another key",
        ErrorKind::MissingRequiredClaim(_) => NO_CLAIM,
        _ => "its token is none of a policy, and no JSON Web Token",
    }
}

#[cfg(test)]
mod tests;
