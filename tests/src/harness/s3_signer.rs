//! Signature Version 4 by hand: of any time, for any region, of anything. `s3_client` signs as clients do.

use super::s3_client::{S3Ask, S3Client};
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use forebay_proto::hex;
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};

/// Whose key signs, for which host and region, at which time.
#[derive(Clone)]
pub struct Signer {
    /// The id of the key.
    pub key_id: String,
    /// Its secret.
    pub secret: String,
    /// Of `Host`.
    pub host: String,
    /// Of the credential's scope.
    pub region: &'static str,
    /// When it is signed.
    pub at: OffsetDateTime,
}

impl Signer {
    /// As a client would sign now.
    pub fn of(client: &S3Client) -> Self {
        Self {
            key_id: client.key_id.clone(),
            secret: client.secret.clone(),
            host: client.endpoint.trim_start_matches("http://").to_owned(),
            region: super::s3::REGION,
            at: OffsetDateTime::now_utc(),
        }
    }

    /// The same some minutes ago; ahead if negative.
    pub fn minutes_ago(self, minutes: i64) -> Self {
        Self { at: self.at - Duration::minutes(minutes), ..self }
    }

    /// A request with its signature in the headers. The path must be spelled as S3 does; the parameters of
    /// the query have no escapes.
    pub fn header(&self, method: &'static str, target: &str) -> S3Ask {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let payload = hex::encode(&Sha256::digest(b""));
        let stamp = self.stamp();
        let headers = [("host", &*self.host), ("x-amz-content-sha256", &payload), ("x-amz-date", &stamp)];
        let signature = self.signature(method, path, query, &headers, &payload);
        let names = headers.map(|(name, _)| name).join(";");
        let credential = format!("{}/{}", self.key_id, self.scope());
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}");
        let ask =
            headers.iter().fold(S3Ask::new(method, target), |ask, (name, value)| ask.header(name, value));
        ask.header("authorization", &authorization)
    }

    /// A request that is signed in its query, good for some seconds.
    pub fn url(&self, method: &'static str, path: &str, expires_s: i64) -> S3Ask {
        let credential = format!("{}/{}", self.key_id, self.scope()).replace('/', "%2F");
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={}&X-Amz-Expires={expires_s}\
             &X-Amz-SignedHeaders=host",
            self.stamp()
        );
        let headers = [("host", &*self.host)];
        let signature = self.signature(method, path, &query, &headers, "UNSIGNED-PAYLOAD");
        let target = format!("{path}?{query}&X-Amz-Signature={signature}");
        S3Ask::new(method, target).header("host", &self.host)
    }

    fn signature(
        &self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        payload: &str,
    ) -> String {
        let mut pairs: Vec<String> = query.split('&').filter(|pair| !pair.is_empty()).map(valued).collect();
        pairs.sort_unstable();
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let (query, names) = (pairs.join("&"), names.join(";"));
        let request = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
        let request = hex::encode(&Sha256::digest(request.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{}\n{}\n{request}", self.stamp(), self.scope());
        let key = generate_signing_key(&self.secret, self.at.into(), self.region, "s3");
        calculate_signature(key, text.as_bytes())
    }

    fn scope(&self) -> String {
        format!("{}/{}/s3/aws4_request", &self.stamp()[..8], self.region)
    }

    fn stamp(&self) -> String {
        let (date, time) = (self.at.date(), self.at.time());
        let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
        let (hour, minute, second) = (time.hour(), time.minute(), time.second());
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
    }
}

/// A parameter as it is signed: with `=`, also where it has no value, and with `/` escaped.
fn valued(pair: &str) -> String {
    let pair = pair.replace('/', "%2F");
    if pair.contains('=') { pair } else { format!("{pair}=") }
}
