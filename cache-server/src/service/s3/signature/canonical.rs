//! The canonical request of Signature Version 4.

use crate::service::s3::request::Named;
use forebay_proto::hex;
use http::request;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};
use sha2::{Digest, Sha256};
use std::borrow::Cow;

/// What AWS leaves as it is.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const PATH: &AsciiSet = &VALUE.remove(b'/');

/// The text of a request that is signed.
pub fn request_of(head: &request::Parts, named: &Named, signed: &[&str], payload: &str) -> String {
    let mut text = String::with_capacity(512);
    text.extend([head.method.as_str(), "\n"]);
    // As it came, in the one spelling: clients escape more or fewer characters.
    let path: Cow<'_, [u8]> = percent_decode_str(head.uri.path()).into();
    text.extend(percent_encode(&path, PATH));
    text.push('\n');
    push_query(&mut text, named);
    text.push('\n');
    let mut signed = signed.to_vec();
    signed.sort_unstable();
    for name in &signed {
        text.extend([name, ":"]);
        for (n, value) in head.headers.get_all(*name).iter().enumerate() {
            if n > 0 {
                text.push(',');
            }
            let value = String::from_utf8_lossy(value.as_bytes());
            for (n, word) in value.split_ascii_whitespace().enumerate() {
                text.extend([if n > 0 { " " } else { "" }, word]);
            }
        }
        text.push('\n');
    }
    text.push('\n');
    for (n, name) in signed.iter().enumerate() {
        text.extend([if n > 0 { ";" } else { "" }, name]);
    }
    text.extend(["\n", payload]);
    text
}

/// Parameters by name, then by value; without the signature itself.
fn push_query(text: &mut String, named: &Named) {
    let encoded = |part: &str| utf8_percent_encode(part, VALUE).to_string();
    let rest = named.query.iter().filter(|(name, _)| name != "X-Amz-Signature");
    let mut pairs: Vec<_> = rest.map(|(name, value)| (encoded(name), encoded(value))).collect();
    pairs.sort_unstable();
    for (n, (name, value)) in pairs.iter().enumerate() {
        text.extend([if n > 0 { "&" } else { "" }, name, "=", value]);
    }
}

/// The SHA-256 of a text, as hexadecimal digits.
pub fn hex_sha256(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes()))
}
