//! Whether a node could use a policy, as far as its text tells. Not whether its prefixes lie under what the
//! node may read, nor whether the node has what its ways in need. The node's own rules are in the server's
//! `auth/policy.rs`; the table `cases.toml` beside it is for both.

use forebay_dataset::source;
use forebay_proto::token::KnownToken;
use forebay_proto::units::bytes;
use forebay_proto::{Error, Result};
use std::collections::HashSet;
use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

/// Roles that a principal may have.
pub(super) const ROLES: [&str; 5] = ["reader", "loader", "operator", "metrics", "peer"];

const PRINCIPAL_KEYS: [&str; 8] =
    ["name", "roles", "prefixes", "token_sha256", "cert", "jwt", "s3_keys", "limits"];

const LIMIT_KEYS: [&str; 5] = ["opens_per_s", "bytes_per_s", "s3_bytes_per_s", "cache_bytes", "streams"];

/// All buckets of a kind of object store: prefixes that are no URIs of data.
const ALL_BUCKETS: [&str; 3] = ["s3://", "gs://", "az://"];

const NAME_BYTES_MAX: usize = 200;

/// `Invalid` says what a node would not take.
pub(super) fn check(policy: &DocumentMut) -> Result<()> {
    known_keys(policy.as_table(), &["principal"])?;
    let Some(item) = policy.get("principal") else { return Ok(()) };
    let principals =
        item.as_array_of_tables().ok_or_else(|| Error::invalid("it has no tables [[principal]]"))?;
    let mut seen = HashSet::new();
    for principal in principals {
        let name = principal.get("name").and_then(Item::as_str).unwrap_or_default();
        check_principal(name, principal, &mut seen)
            .map_err(|e| e.context(format!("principal {}", name.escape_debug())))?;
    }
    Ok(())
}

fn check_principal(name: &str, principal: &Table, seen: &mut HashSet<(&'static str, String)>) -> Result<()> {
    known_keys(principal, &PRINCIPAL_KEYS)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(Error::invalid("a name has 1 to 200 bytes, and no line breaks"));
    }
    let mut once = |kind: &'static str, name: &str| match seen.insert((kind, name.to_owned())) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{kind} {name} is there twice"))),
    };
    once("principal", name)?;
    let roles = texts(principal, "roles")?;
    if roles.is_empty() {
        return Err(Error::invalid("roles: name one at least"));
    }
    if let Some(other) = roles.iter().find(|role| !ROLES.contains(role)) {
        return Err(Error::invalid(format!("roles: {other:?} is none of {}", ROLES.join(", "))));
    }
    for prefix in texts(principal, "prefixes")?.into_iter().filter(|prefix| !ALL_BUCKETS.contains(prefix)) {
        source::normalise(prefix).map_err(|e| e.context(format!("prefixes: {prefix:?}")))?;
    }
    for line in texts(principal, "token_sha256")? {
        once("token", &KnownToken::of(line)?.id)?;
    }
    texts(principal, "s3_keys")?.into_iter().try_for_each(|id| once("key of S3", id))?;
    texts(principal, "cert")?.into_iter().try_for_each(says_something)?;
    if let Some(claims) = tables(principal, "jwt")? {
        for (claim, pattern) in claims.iter() {
            let wrong = || Error::invalid(format!("jwt: {claim} is no text"));
            says_something(pattern.as_str().ok_or_else(wrong)?)?;
        }
    }
    tables(principal, "limits")?.map_or(Ok(()), check_limits)
}

fn check_limits(limits: &dyn TableLike) -> Result<()> {
    known_keys(limits, &LIMIT_KEYS)?;
    for (key, item) in limits.iter() {
        let number = item.as_float().or_else(|| item.as_integer().map(|n| n as f64));
        let is_good = match key {
            "opens_per_s" => number.is_some_and(|rate| (0.001..=1e9).contains(&rate)),
            "streams" => item.as_integer().is_some_and(|streams| streams > 0),
            _ => {
                let whole = item.as_integer().and_then(|n| u64::try_from(n).ok());
                let size = whole.or_else(|| item.as_str().and_then(|text| bytes(text).ok()));
                size.is_some_and(|size| size >= 1 << 10 || key == "cache_bytes")
            }
        };
        if !is_good {
            return Err(Error::invalid(format!("limits: {key} has a value that a node does not take")));
        }
    }
    Ok(())
}

fn known_keys(table: &dyn TableLike, keys: &[&str]) -> Result<()> {
    match table.iter().find(|(key, _)| !keys.contains(key)) {
        Some((other, _)) => {
            Err(Error::invalid(format!("`{}` is none of {}", other.escape_debug(), keys.join(", "))))
        }
        None => Ok(()),
    }
}

/// The texts of a list; none where there is no list.
fn texts<'a>(table: &'a Table, key: &str) -> Result<Vec<&'a str>> {
    let wrong = || Error::invalid(format!("{key} is no list of texts"));
    let Some(item) = table.get(key) else { return Ok(Vec::new()) };
    item.as_array().ok_or_else(wrong)?.iter().map(|value| Value::as_str(value).ok_or_else(wrong)).collect()
}

fn tables<'a>(table: &'a Table, key: &str) -> Result<Option<&'a dyn TableLike>> {
    let Some(item) = table.get(key) else { return Ok(None) };
    let wrong = || Error::invalid(format!("{key} is no table"));
    item.as_table_like().ok_or_else(wrong).map(Some)
}

/// Whether a pattern does not fit every name.
fn says_something(pattern: &str) -> Result<()> {
    match pattern.chars().any(char::is_alphanumeric) && !pattern.chars().any(char::is_control) {
        true => Ok(()),
        false => {
            Err(Error::invalid(format!("`{}` would fit every name: say more of it", pattern.escape_debug())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[principal]]
name = "vision"
roles = ["reader", "loader"]
prefixes = ["s3://data/vision/", "gs://"]
cert = ["spiffe://corp/vision/*"]
jwt = { sub = "vision-*" }
s3_keys = ["AK1"]
limits = { bytes_per_s = "2GB", s3_bytes_per_s = 4096, cache_bytes = 0, streams = 64, opens_per_s = 20 }

[[principal]]
name = "all"
roles = ["operator"]
[principal.limits]
opens_per_s = 0.5
"#;

    fn said(text: &str) -> Result<(), String> {
        check(&text.parse().unwrap()).map_err(|e| e.message)
    }

    #[test]
    fn what_a_node_takes_is_taken_and_what_it_refuses_is_refused() {
        let table = include_str!("../../../../cache-server/src/auth/policy/cases.toml");
        let table: DocumentMut = table.parse().unwrap();
        let policy = table["policy"].as_str().unwrap();
        for case in table["cases"].as_array().unwrap().iter() {
            let case = case.as_inline_table().unwrap();
            let [from, to] = ["from", "to"].map(|name| case.get(name).and_then(Value::as_str).unwrap());
            let changed = policy.replacen(from, to, 1);
            assert_ne!(changed, policy, "{from}");
            let (told, taken) = (said(&changed), case.get("taken").and_then(Value::as_bool).unwrap());
            assert_eq!(told.is_ok(), taken, "{from} -> {to}: {told:?}");
        }
    }

    #[test]
    fn what_a_node_would_refuse_is_refused() {
        assert_eq!((said(GOOD), said("")), (Ok(()), Ok(())));
        for (from, to, says) in [
            ("\"loader\"", "\"loadr\"", "principal vision: roles: \"loadr\" is none of reader"),
            ("roles = [\"operator\"]", "roles = []", "roles: name one at least"),
            ("roles = [\"operator\"]", "", "roles: name one at least"),
            ("\"gs://\"", "\"foo\"", "principal vision: prefixes: \"foo\": foo: not a URI"),
            ("prefixes = [\"s3", "prefixes = [1, \"s3", "prefixes is no list of texts"),
            ("name = \"all\"", "name = \"vision\"", "principal vision is there twice"),
            ("name = \"all\"", "", "a name has"),
            ("s3_keys = [\"AK1\"]", "s3_keys = [\"AK1\", \"AK1\"]", "AK1 is there twice"),
            ("s3_keys = [\"AK1\"]", "token_sha256 = [\"hunter2\"]", "is not ID:HASH"),
            ("s3_keys = [\"AK1\"]", "colour = \"red\"", "`colour` is none of"),
            ("spiffe://corp/vision/*", "*", "would fit every name"),
            ("vision-*", "**", "would fit every name"),
            ("\"2GB\"", "\"much\"", "limits: bytes_per_s"),
            ("4096", "1", "limits: s3_bytes_per_s"),
            ("streams = 64", "streams = 0", "limits: streams"),
            ("streams = 64", "strems = 64", "`strems` is none of"),
            ("opens_per_s = 0.5", "opens_per_s = 0", "limits: opens_per_s"),
            (
                "[[principal]]\nname = \"vision\"",
                "[[principals]]\nname = \"vision\"",
                "`principals` is none of",
            ),
        ] {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            let e = said(&text).unwrap_err();
            assert!(e.contains(says) && !e.contains("hunter2"), "{says}: {e}");
        }
    }
}
