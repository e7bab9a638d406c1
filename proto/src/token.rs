//! Bearer tokens: `fb1.ID.SECRET`, and the line by which a policy knows one, `ID:HASH`.
//!
//! The secret has 256 random bits, so that its SHA-256 says nothing of it. The id is no secret: it names the
//! token in a policy, in logs, and to those who revoke it.

use crate::{Error, Result, hex};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// What every token begins with: its kind, and how it is written.
pub const TOKEN_START: &str = "fb1.";

/// Random bytes that a token is made of.
pub const TOKEN_RANDOM_BYTES: usize = ID_BYTES + SECRET_BYTES;

const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// Bytes of a token as text at most.
const TOKEN_BYTES_MAX: usize = 128;

/// A token's SHA-256.
pub type TokenHash = [u8; 32];

/// A new token. It shows its secret only where [`NewToken::text`] is asked for.
pub struct NewToken {
    id: String,
    text: String,
}

/// A token that somebody gave.
#[derive(Clone, Copy)]
pub struct GivenToken<'a> {
    /// The name that the policy has for it.
    pub id: &'a str,
    text: &'a str,
}

/// A token as a policy knows it: `ID:HASH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownToken {
    /// The name that logs and policies have for it; no secret.
    pub id: String,
    /// SHA-256 of the whole text.
    pub hash: TokenHash,
}

impl NewToken {
    /// A token of random bytes, which nobody else knows.
    pub fn new(random: [u8; TOKEN_RANDOM_BYTES]) -> Self {
        let (id, secret) = random.split_at(ID_BYTES);
        let id = hex::encode(id);
        Self { text: format!("{TOKEN_START}{id}.{}", hex::encode(secret)), id }
    }

    /// The name that the policy has for it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The secret itself: for its owner, once.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What a policy keeps of it.
    pub fn known(&self) -> KnownToken {
        KnownToken { id: self.id.clone(), hash: hash(&self.text) }
    }
}

impl<'a> GivenToken<'a> {
    /// `None` if the text is no token of this kind.
    pub fn of(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(TOKEN_START)?.split_once('.')?;
        let is_fit =
            text.len() <= TOKEN_BYTES_MAX && is_id(id) && secret.bytes().all(|b| b.is_ascii_hexdigit());
        is_fit.then_some(Self { id, text })
    }

    /// SHA-256 of the whole text: what a policy keeps of it.
    pub fn hash(&self) -> TokenHash {
        hash(self.text)
    }
}

impl KnownToken {
    /// Of `ID:HASH`; `Invalid` for other text, which is not repeated: it may be the token itself.
    pub fn of(line: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(
                "a line of token_sha256 is not ID:HASH, with 64 hexadecimal digits: `forebay token create` makes it",
            )
        };
        let (id, digits) = line.split_once(':').filter(|(id, _)| is_id(id)).ok_or_else(wrong)?;
        let hash = hex::decode(digits).and_then(|hash| TokenHash::try_from(hash).ok()).ok_or_else(wrong)?;
        Ok(Self { id: id.to_owned(), hash })
    }
}

impl fmt::Display for KnownToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, hex::encode(&self.hash))
    }
}

fn hash(text: &str) -> TokenHash {
    Sha256::digest(text).into()
}

fn is_id(id: &str) -> bool {
    (1..=32).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_line() {
        let token = NewToken::new(std::array::from_fn(|i| i as u8));
        assert!(token.text().starts_with("fb1.0001020304050607.08090a"));
        let line = token.known().to_string();
        assert!(line.starts_with("0001020304050607:") && !line.contains("08090a0b"), "{line}");
        let known = KnownToken::of(&line).unwrap();
        let given = GivenToken::of(token.text()).unwrap();
        assert_eq!((given.id, given.hash()), (known.id.as_str(), known.hash));
        let other = token.text().replace("08090a", "08090b");
        assert_ne!(GivenToken::of(&other).unwrap().hash(), known.hash);
    }

    #[test]
    fn what_is_none_is_not_repeated() {
        let long = format!("fb1.a.{}", "0".repeat(200));
        for text in
            ["", "fb1.", "fb1.a", "fb2.a.00", "fb1..00", "fb1.a.xyz", "fb1.a b.00", "fb1.a.0\0", &long]
        {
            assert!(GivenToken::of(text).is_none(), "{text}");
        }
        assert!(KnownToken::of(&format!("a:{}", "+f".repeat(32))).is_err(), "a sign is no digit");
        for line in ["hunter2", "a:hunter2", "a:00", ":", "fb1.a.b:0"] {
            let e = KnownToken::of(line).unwrap_err().message;
            assert!(!e.contains("hunter2") && e.contains("forebay token create"), "{e}");
        }
    }
}
