//! The keys of an authority that signs tokens: a JSON Web Key Set, from a file or a URL.

use crate::runtime::blocking;
use forebay_proto::{Error, Result};
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::Mutex;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes of a set, and keys in it, at most.
const SET_BYTES_MAX: usize = 1 << 20;
const KEYS_MAX: usize = 256;

/// How long a URL may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a URL is asked for its keys, and after how long again if it failed.
const REFRESH: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(15));

/// An authority's keys, as they were read last.
#[derive(Debug, Default)]
pub struct KeySet(Vec<NamedKey>);

struct NamedKey {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    key: DecodingKey,
}

impl std::fmt::Debug for NamedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamedKey").field("id", &self.id).finish_non_exhaustive()
    }
}

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

impl KeySet {
    /// The public keys of a set; kinds that are not known are left out.
    pub fn parse(text: &[u8]) -> Result<Self> {
        if text.len() > SET_BYTES_MAX {
            return Err(Error::invalid("a set of keys has more than 1 MiB"));
        }
        let set: Value =
            serde_json::from_slice(text).map_err(|e| Error::invalid(format!("no set of keys: {e}")))?;
        let keys = set.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or_else(|| Error::invalid("no set of keys: it has no `keys`"))?;
        if keys.len() > KEYS_MAX {
            return Err(Error::invalid(format!("a set of keys has more than {KEYS_MAX}")));
        }
        let named: Vec<_> = keys.iter().filter_map(named).collect();
        match named.is_empty() {
            true => Err(Error::invalid("a set of keys has none that is known here: RSA, EC and Ed25519 are")),
            false => Ok(Self(named)),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The only key of an id for an algorithm; without an id the only key for it.
    pub fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let fits = |key: &&NamedKey| {
            key.algorithms.contains(&algorithm) && id.is_none_or(|id| key.id.as_deref() == Some(id))
        };
        let mut found = self.0.iter().filter(fits);
        let only = found.next()?;
        found.next().is_none().then_some(&only.key)
    }
}

fn named(key: &Value) -> Option<NamedKey> {
    let jwk: Jwk = serde_json::from_value(key.clone()).ok()?;
    if matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption)) {
        return None;
    }
    let algorithms: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA,
        AlgorithmParameters::EllipticCurve(_) => &[Algorithm::ES256, Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(_) => &[Algorithm::EdDSA],
        _ => return None,
    };
    Some(NamedKey { id: jwk.common.key_id.clone(), algorithms, key: DecodingKey::from_jwk(&jwk).ok()? })
}

/// Where keys come from.
#[derive(Debug)]
pub struct KeySource {
    place: KeyPlace,
    /// When to look again, and what was there last.
    next: Mutex<(Option<Instant>, Vec<u8>)>,
}

#[derive(Debug, Clone)]
enum KeyPlace {
    File(PathBuf),
    Url(reqwest::Url),
}

impl KeySource {
    /// A path, or a URL: `https`, or `http` on this host.
    pub fn new(place: &str) -> Result<Self> {
        let place = match place.contains("://") {
            false => KeyPlace::File(place.into()),
            true => KeyPlace::Url(safe_url(place)?),
        };
        Ok(Self { place, next: Mutex::default() })
    }

    /// The keys, if it is time to look and they are others than before.
    pub async fn look(&self) -> Result<Option<KeySet>> {
        if self.next.lock().0.is_some_and(|next| Instant::now() < next) {
            return Ok(None);
        }
        let (fetched, pause) = match &self.place {
            KeyPlace::File(path) => {
                let path = path.clone();
                let read =
                    blocking(move || std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display())));
                (read.await?.map_err(Error::invalid), Duration::ZERO)
            }
            KeyPlace::Url(url) => (fetch(url).await, REFRESH.0),
        };
        let parsed = fetched.and_then(|text| Ok((KeySet::parse(&text)?, text)));
        let mut next = self.next.lock();
        let pause = if parsed.is_err() { pause.min(REFRESH.1) } else { pause };
        next.0 = Some(Instant::now() + pause);
        let (keys, text) = parsed.map_err(|e| e.context("[auth.jwt] jwks"))?;
        if text == next.1 {
            return Ok(None);
        }
        next.1 = text;
        Ok(Some(keys))
    }
}

fn safe_url(text: &str) -> Result<reqwest::Url> {
    let wrong = || Error::invalid(format!("[auth.jwt] jwks `{text}`: give a path, or an https:// URL"));
    let url = reqwest::Url::parse(text).map_err(|_| wrong())?;
    let is_here = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_here => Ok(url),
        _ => Err(wrong()),
    }
}

async fn fetch(url: &reqwest::Url) -> Result<Vec<u8>> {
    let failed =
        |e: reqwest::Error| Error::retry(format!("{url} does not give its keys: {}", e.without_url()));
    let client = reqwest::Client::builder().timeout(PATIENCE).redirect(reqwest::redirect::Policy::none());
    let mut answer = client.build().map_err(failed)?.get(url.clone()).send().await.map_err(failed)?;
    if !answer.status().is_success() {
        return Err(Error::retry(format!("{url} answers {} when asked for its keys", answer.status())));
    }
    let mut text = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(failed)? {
        if text.len() + part.len() > SET_BYTES_MAX {
            return Err(Error::invalid(format!("{url}: its set of keys has more than 1 MiB")));
        }
        text.extend_from_slice(&part);
    }
    Ok(text)
}
