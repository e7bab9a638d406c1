//! The policy: a TOML file with a table `[[principal]]` for everybody who may do something.
//!
//! A file that is wrong in anything is wrong as a whole. Secrets are not in it: of tokens it has hashes.

use super::pattern::Pattern;
use super::principal::{CallerRole, Principal, PrincipalLimits};
use super::session::Credential;
use crate::allow::{Allowed, is_all_buckets};
use crate::disk::PrefixLimit;
use crate::settings::maybe_size;
use crate::tls::PeerCertificate;
use forebay_dataset::source;
use forebay_proto::token::{KnownToken, TOKEN_START, TokenHash};
use forebay_proto::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

const NAME_BYTES_MAX: usize = 200;

/// Who is known, and by what.
#[derive(Debug, Default)]
pub struct Policy {
    principals: Vec<Arc<Principal>>,
    /// By id: the hash, and whose it is.
    tokens: HashMap<String, (TokenHash, usize)>,
    s3_keys: HashMap<String, usize>,
    /// In the order of the file: the first that fits counts.
    certificates: Vec<(Pattern, usize)>,
    claims: Vec<(BTreeMap<String, Pattern>, usize)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    principal: Vec<PrincipalEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrincipalEntry {
    name: String,
    roles: Vec<CallerRole>,
    #[serde(default)]
    prefixes: Vec<String>,
    #[serde(default)]
    token_sha256: Vec<String>,
    #[serde(default)]
    cert: Vec<String>,
    #[serde(default)]
    jwt: BTreeMap<String, String>,
    #[serde(default)]
    s3_keys: Vec<String>,
    #[serde(default)]
    limits: LimitsEntry,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsEntry {
    opens_per_s: Option<f64>,
    #[serde(deserialize_with = "maybe_size")]
    bytes_per_s: Option<u64>,
    #[serde(deserialize_with = "maybe_size")]
    s3_bytes_per_s: Option<u64>,
    #[serde(deserialize_with = "maybe_size")]
    cache_bytes: Option<u64>,
    streams: Option<usize>,
}

impl Policy {
    /// The policy of a text. All its prefixes must lie under what the node may read. `Invalid` if it has no
    /// principal: nobody could do anything, and a file that is being written looks like that. Touches the
    /// disk where prefixes are folders.
    pub fn parse(text: &str, allow: &Allowed) -> Result<Self> {
        // The text is not repeated: where there should be a hash there may be a token.
        let file: PolicyFile = toml::from_str(text).map_err(|e| {
            let line =
                e.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            match e.message().contains(TOKEN_START) {
                true => Error::invalid(format!("line {line}: a token stands there: only its hash may")),
                false => Error::invalid(format!("line {line}: {}", e.message())),
            }
        })?;
        let mut policy = Self::default();
        let mut names = HashMap::new();
        for entry in file.principal {
            let name = entry.name.clone();
            if names.insert(name.clone(), ()).is_some() {
                return Err(Error::invalid(format!("principal {name} is there twice")));
            }
            policy.add(entry, allow).map_err(|e| e.context(format!("principal {name}")))?;
        }
        match policy.principals.is_empty() {
            true => Err(Error::invalid("it has no principal: nobody could do anything")),
            false => Ok(policy),
        }
    }

    fn add(&mut self, entry: PrincipalEntry, allow: &Allowed) -> Result<()> {
        let PrincipalEntry { name, roles, prefixes, token_sha256, cert, jwt, s3_keys, limits } = entry;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Error::invalid("a name has 1 to 200 bytes, and no line breaks"));
        }
        if roles.is_empty() {
            return Err(Error::invalid("roles: name one at least"));
        }
        // Said in the words of a policy: those of the roots are `--allow`.
        for prefix in prefixes.iter().filter(|prefix| !is_all_buckets(prefix)) {
            source::normalise(prefix).map_err(|e| e.context(format!("prefixes: {prefix:?}")))?;
        }
        let prefixes = Allowed::new(&prefixes)?;
        for root in prefixes.roots() {
            if !allow.covers(root) {
                return Err(Error::invalid(format!("prefix {root} lies outside of what --allow names")));
            }
        }
        let limits = limits.checked()?;
        let number = self.principals.len();
        self.principals.push(Arc::new(Principal {
            name,
            roles: roles.into_iter().collect(),
            prefixes,
            limits,
        }));
        for line in &token_sha256 {
            let KnownToken { id, hash } = KnownToken::of(line)?;
            if self.tokens.insert(id.clone(), (hash, number)).is_some() {
                return Err(Error::invalid(format!("token {id} is there twice")));
            }
        }
        for id in s3_keys {
            if self.s3_keys.insert(id.clone(), number).is_some() {
                return Err(Error::invalid(format!("s3_keys: {id} is there twice")));
            }
        }
        let pattern = |text: &String| {
            let why = || Error::invalid(format!("`{text}` would fit every name: say more of it"));
            Pattern::of(text).ok_or_else(why)
        };
        for text in &cert {
            self.certificates.push((pattern(text)?, number));
        }
        if !jwt.is_empty() {
            let claims = jwt.iter().map(|(claim, text)| Ok((claim.clone(), pattern(text)?)));
            self.claims.push((claims.collect::<Result<_>>()?, number));
        }
        Ok(())
    }

    /// All whom it knows.
    pub fn principals(&self) -> &[Arc<Principal>] {
        &self.principals
    }

    /// The first whom it knows by the claims of JSON Web Tokens.
    pub fn known_by_claims(&self) -> Option<&Principal> {
        let (_, number) = self.claims.first()?;
        self.principals.get(*number).map(|principal| &**principal)
    }

    /// What the disk may hold of those with `cache_bytes`.
    pub fn cache_limits(&self) -> Vec<PrefixLimit> {
        let limit = |principal: &Arc<Principal>| {
            let limit_bytes = principal.limits.cache_bytes?;
            Some(PrefixLimit { prefixes: principal.prefixes.roots().to_vec(), limit_bytes })
        };
        self.principals.iter().filter_map(limit).collect()
    }

    /// Whose a credential is; `None` if it is nobody's here.
    pub fn principal_of(&self, credential: &Credential) -> Option<Arc<Principal>> {
        let number = match credential {
            Credential::Token { id, hash } => self.of_token(id, hash),
            Credential::Certificate(certificate) => self.of_certificate(certificate),
            Credential::Claims { claims, .. } => self.of_claims(claims),
            Credential::S3Key(id) => self.s3_keys.get(id).copied(),
        };
        self.principals.get(number?).cloned()
    }

    /// It takes as long whether or not the id is known.
    fn of_token(&self, id: &str, hash: &TokenHash) -> Option<usize> {
        let none = (TokenHash::default(), usize::MAX);
        let (known, number) = self.tokens.get(id).unwrap_or(&none);
        (bool::from(known.ct_eq(hash)) && *number != usize::MAX).then_some(*number)
    }

    fn of_certificate(&self, certificate: &PeerCertificate) -> Option<usize> {
        let mut names = Vec::with_capacity(certificate.uris.len() + certificate.dns_names.len());
        names.extend(certificate.uris.iter().cloned());
        names.extend(certificate.dns_names.iter().map(|name| name.to_ascii_lowercase()));
        let fits = |(pattern, _): &&(Pattern, usize)| names.iter().any(|name| pattern.fits(name));
        self.certificates.iter().find(fits).map(|(_, number)| *number)
    }

    fn of_claims(&self, claims: &Map<String, Value>) -> Option<usize> {
        let has = |claim: &String, pattern: &Pattern| match claims.get(claim) {
            Some(Value::String(text)) => pattern.fits(text),
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).any(|text| pattern.fits(text)),
            _ => false,
        };
        let fits = |(wanted, _): &&(BTreeMap<String, Pattern>, usize)| wanted.iter().all(|(c, p)| has(c, p));
        self.claims.iter().find(fits).map(|(_, number)| *number)
    }
}

impl LimitsEntry {
    fn checked(self) -> Result<PrincipalLimits> {
        let Self { opens_per_s, bytes_per_s, s3_bytes_per_s, cache_bytes, streams } = self;
        if opens_per_s.is_some_and(|rate| !(0.001..=1e9).contains(&rate)) {
            return Err(Error::invalid("limits: opens_per_s must be 0.001 to 1e9"));
        }
        for (name, rate) in [("bytes_per_s", bytes_per_s), ("s3_bytes_per_s", s3_bytes_per_s)] {
            if rate.is_some_and(|rate| rate < 1 << 10) {
                return Err(Error::invalid(format!("limits: {name} must be 1 KiB at least")));
            }
        }
        if streams == Some(0) {
            return Err(Error::invalid("limits: streams must be 1 at least"));
        }
        Ok(PrincipalLimits { opens_per_s, bytes_per_s, s3_bytes_per_s, cache_bytes, streams })
    }
}

#[cfg(test)]
mod tests;
