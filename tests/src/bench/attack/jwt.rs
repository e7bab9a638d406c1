//! JSON Web Tokens that are forged, stale, or for others: case 18.

use super::arena::{Arena, OWN};
use super::opened::open_request;
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::policy::{Policy, Who};
use crate::harness::process::{Server, ServerOptions};
use crate::harness::question::{Answer, Question, UNKNOWN, ask};
use anyhow::anyhow;
use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use aws_lc_rs::{encoding, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use time::OffsetDateTime;

const OPEN: &str = "/forebay.v1.Cache/Open";
const ISSUER: &str = "https://issuer.example.org";
const AUDIENCE: &str = "forebay";

/// Whom the policy knows by a claim.
const JOB: Who =
    Who { name: "job", roles: &["reader"], prefixes: &["tenants/vision/"], more: "jwt = { sub = 'job-1' }" };

/// How long the node may take until it has read the keys.
const KEYS_READ: Duration = Duration::from_secs(20);

/// Bytes of the largest claims that still fit into the headers of a request, which may have 16 KiB.
const LARGE: usize = 11_000;

/// An authority that signs tokens.
struct Issuer(KeyPair);

impl Issuer {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(KeyPair::generate(KeySize::Rsa2048).map_err(|e| anyhow!("make a key: {e}"))?))
    }

    /// Its public key, as the node reads it.
    fn jwk(&self, id: &str) -> Value {
        let public = self.0.public_key();
        json!({
            "kty": "RSA", "kid": id, "use": "sig", "alg": "RS256",
            "n": URL_SAFE_NO_PAD.encode(public.modulus().big_endian_without_leading_zero()),
            "e": URL_SAFE_NO_PAD.encode(public.exponent().big_endian_without_leading_zero()),
        })
    }

    /// All forms in which somebody may take the public key for a shared secret.
    fn public_forms(&self) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        let public = self.0.public_key();
        let der: encoding::PublicKeyX509Der<'_> =
            public.as_der().map_err(|e| anyhow!("encode the public key: {e}"))?;
        let text = STANDARD.encode(der.as_ref());
        let lines: Vec<&str> =
            (0..text.len()).step_by(64).map(|n| &text[n..text.len().min(n + 64)]).collect();
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"));
        Ok(vec![
            ("HS256 with the public key as PEM", pem.into_bytes()),
            ("HS256 with the public key as DER", der.as_ref().to_vec()),
            ("HS256 with the public key as PKCS #1", public.as_ref().to_vec()),
            ("HS256 with the modulus", public.modulus().big_endian_without_leading_zero().to_vec()),
        ])
    }

    /// A token, signed by RS256 whatever its header says.
    fn sign(&self, header: &Value, claims: &Value) -> anyhow::Result<String> {
        let text = unsigned(header, claims);
        let mut signature = vec![0; self.0.public_modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
            .map_err(|e| anyhow!("sign: {e}"))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

fn by_secret(secret: &[u8], claims: &Value) -> String {
    let text = unsigned(&json!({"alg": "HS256", "typ": "JWT", "kid": "k1"}), claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag))
}

fn header(kid: &str) -> Value {
    json!({"alg": "RS256", "typ": "JWT", "kid": kid})
}

fn claims() -> Value {
    let now = OffsetDateTime::now_utc().unix_timestamp();
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "job-1", "exp": now + 600, "nbf": now - 600})
}

/// The claims of a good token with one of them changed; without it for null.
fn but(name: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => drop(claims.as_object_mut().map(|all| all.remove(name))),
        value => claims[name] = value,
    }
    claims
}

/// Tokens that are no good, with words for them.
fn forged(issuer: &Issuer, other: &Issuer) -> anyhow::Result<Vec<(String, String)>> {
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let signed = |claims: Value| issuer.sign(&header("k1"), &claims);
    let mut all: Vec<(String, String)> = Vec::new();
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        let text = unsigned(&json!({"alg": alg, "typ": "JWT"}), &claims());
        all.extend([(format!("alg {alg:?}"), format!("{text}.")), (format!("alg {alg:?}, two parts"), text)]);
    }
    all.push(("alg none, signed".into(), issuer.sign(&json!({"alg": "none", "kid": "k1"}), &claims())?));
    for (what, secret) in issuer.public_forms()? {
        all.push((what.into(), by_secret(&secret, &claims())));
    }
    all.push(("HS256 with the shared secret of the set".into(), by_secret(b"shared", &claims())));
    let changed = [
        ("aud of others", signed(but("aud", json!("other")))?),
        ("aud of others, a list", signed(but("aud", json!(["other", "forebay2"])))?),
        ("no aud", signed(but("aud", Value::Null))?),
        ("iss of others", signed(but("iss", json!("https://evil.example.org")))?),
        ("no iss", signed(but("iss", Value::Null))?),
        ("expired", signed(but("exp", json!(now - 120)))?),
        ("no exp", signed(but("exp", Value::Null))?),
        ("exp that is no number", signed(but("exp", json!("tomorrow")))?),
        ("nbf in the future", signed(but("nbf", json!(now + 600)))?),
        ("sub of nobody in the policy", signed(but("sub", json!("job-2")))?),
        ("claims as large as headers may be", signed(but("more", json!("x".repeat(LARGE))))?),
        ("claims that are no object", signed(json!(["sub", "job-1"]))?),
    ];
    all.extend(changed.map(|(what, token)| (what.to_owned(), token)));
    for kid in ["../../../../dev/null", "/etc/passwd", "..\\k1", "k1/../k1", "", "k2", "k1\0", "k9"] {
        all.push((format!("kid {kid:?}"), issuer.sign(&header(kid), &claims())?));
    }
    let mut with_key = header("k1");
    with_key["jwk"] = other.jwk("k1");
    with_key["jku"] = json!("https://evil.example.org/jwks");
    all.push(("signed by another key".into(), other.sign(&header("k1"), &claims())?));
    all.push(("signed by another key, which it brings along".into(), other.sign(&with_key, &claims())?));
    let good = signed(claims())?;
    let (head, rest) = good.split_once('.').unwrap_or_default();
    let signature = rest.rsplit('.').next().unwrap_or_default();
    let others = URL_SAFE_NO_PAD.encode(but("exp", json!(now + 6000)).to_string());
    all.push(("other claims under a good signature".into(), format!("{head}.{others}.{signature}")));
    all.push(("a good one cut short".into(), good[..good.len() - 4].to_owned()));
    all.push((
        "a good one without its signature".into(),
        format!("{head}.{}.", rest.split('.').next().unwrap_or_default()),
    ));
    Ok(all)
}

/// A node that knows an issuer's keys; the folder of its policy.
fn node(arena: &Arena<'_>, issuer: &Issuer) -> anyhow::Result<(Server, Policy)> {
    let policy = Policy::new(arena.store, &[JOB]);
    // One key that is good, and a shared secret, which the node must not take.
    let set = json!({"keys": [
        issuer.jwk("k1"),
        {"kty": "oct", "kid": "k2", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode("shared")},
    ]});
    std::fs::write(policy.path("jwks"), set.to_string())?;
    let server = ServerOptions::for_s3(arena.store)
        .args(policy.arguments())
        .args(["--audit-file", &policy.path("audit").display().to_string()])
        .env("FOREBAY_AUTH__JWT__JWKS", &policy.path("jwks").display().to_string())
        .env("FOREBAY_AUTH__JWT__ISSUER", ISSUER)
        .env("FOREBAY_AUTH__JWT__AUDIENCE", AUDIENCE)
        .try_start()?;
    Ok((server, policy))
}

/// 18: every way to forge a token of another authority.
pub fn forged_tokens(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (issuer, other) = (Issuer::new()?, Issuer::new()?);
    let (server, policy) = node(arena, &issuer)?;
    let open = open_request(&[&arena.store.uri(OWN)]);
    let runtime = runtime()?;
    let asked = |token: &str| -> anyhow::Result<Answer> {
        let header = format!("Bearer {token}");
        let question =
            Question { endpoint: &server.endpoint, path: OPEN, header: Some(&header), message: &open };
        runtime.block_on(ask(question))
    };
    let good = issuer.sign(&header("k1"), &claims())?;
    let end = Instant::now() + KEYS_READ;
    while asked(&good)?.code != 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut checks = Vec::new();
    for (what, token) in [
        ("a good token is good", good.clone()),
        ("one without a kid too", issuer.sign(&json!({"alg": "RS256"}), &claims())?),
        ("one for several audiences too", issuer.sign(&header("k1"), &but("aud", json!(["x", AUDIENCE])))?),
    ] {
        let answer = asked(&token)?;
        checks.push(Check::of(what, format!("code {} {}", answer.code, answer.message), answer.code == 0));
    }
    let forged = forged(&issuer, &other)?;
    for (what, token) in &forged {
        let answer = asked(token)?;
        let is_refused = answer.code == UNKNOWN && answer.body.is_empty();
        checks.push(Check::of(
            format!("{what}: UNAUTHENTICATED"),
            format!("code {}", answer.code),
            is_refused,
        ));
    }
    let code = asked(&good)?.code;
    checks.push(Check::of("the good token is good still", format!("code {code}"), code == 0));
    let told = server.log() + &std::fs::read_to_string(policy.path("audit"))?;
    let is_told = |token: &str| token.split('.').any(|part| part.len() > 60 && told.contains(&part[..60]));
    let count = forged.iter().filter(|(_, token)| is_told(token)).count() + usize::from(is_told(&good));
    checks.push(Check::of("no part of a token is in the logs", format!("{count}"), count == 0));
    server.try_stop()?;
    Ok(checks)
}
