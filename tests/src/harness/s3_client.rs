//! A client of S3 that says just what it is told to, signed by `object_store`, and shows all of the answer.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpStream;

use super::s3::REGION;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of S3, and the key to it.
#[derive(Debug, Clone)]
pub struct S3Client {
    /// `http://HOST:PORT`
    pub endpoint: String,
    /// The id of the key.
    pub key_id: String,
    /// Its secret.
    pub secret: String,
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct S3Ask {
    /// GET and so on.
    pub method: &'static str,
    /// Path and query, escaped.
    pub target: String,
    /// `x-amz-*` are signed, others are not.
    pub headers: Vec<(String, String)>,
    /// The bytes that are uploaded.
    pub body: Bytes,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Reply {
    /// Of HTTP.
    pub status: u16,
    /// By name.
    pub headers: BTreeMap<String, String>,
    /// All of it.
    pub body: Bytes,
}

impl S3Ask {
    /// Without headers or body.
    pub fn new(method: &'static str, target: impl Into<String>) -> Self {
        Self { method, target: target.into(), headers: Vec::new(), body: Bytes::new() }
    }

    /// With one more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl S3Reply {
    /// `<Code>` of an error document.
    pub fn code(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.body);
        let (_, rest) = text.split_once("<Code>")?;
        Some(rest.split_once("</Code>")?.0.to_owned())
    }
}

impl S3Client {
    /// Sends a signed request over a connection of its own.
    pub async fn send(&self, ask: &S3Ask) -> anyhow::Result<S3Reply> {
        self.send_unsigned(&self.sign(ask)?).await
    }

    /// The request with its signature among the headers, good for a quarter of an hour.
    pub fn sign(&self, ask: &S3Ask) -> anyhow::Result<S3Ask> {
        let credential =
            AwsCredential { key_id: self.key_id.clone(), secret_key: self.secret.clone(), token: None };
        let mut signed = HttpRequest::new(HttpRequestBody::from(ask.body.clone()));
        *signed.method_mut() = ask.method.parse()?;
        *signed.uri_mut() = format!("{}{}", self.endpoint, ask.target).parse()?;
        for (name, value) in ask.headers.iter().filter(|(name, _)| name.starts_with("x-amz-")) {
            signed.headers_mut().append(hyper::header::HeaderName::try_from(name)?, value.parse()?);
        }
        AwsAuthorizer::new(&credential, "s3", REGION).try_authorize(&mut signed, None)?;
        let rest = ask.headers.iter().filter(|(name, _)| !name.starts_with("x-amz-"));
        let mut all = ask.clone();
        all.headers = rest.cloned().collect();
        for (name, value) in signed.headers() {
            all.headers.push((name.to_string(), value.to_str()?.to_owned()));
        }
        Ok(all)
    }

    /// Sends a request as it is.
    pub async fn send_unsigned(&self, ask: &S3Ask) -> anyhow::Result<S3Reply> {
        tokio::time::timeout(PATIENCE, self.exchange(ask)).await.context("an answer in time")?
    }

    async fn exchange(&self, ask: &S3Ask) -> anyhow::Result<S3Reply> {
        let address = self.endpoint.trim_start_matches("http://");
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(ask.method).uri(&ask.target);
        if !ask.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header(HOST, address);
        }
        for (name, value) in &ask.headers {
            request = request.header(name, value);
        }
        let answer = sender.send_request(request.body(Full::new(ask.body.clone()))?).await?;
        let (head, body) = answer.into_parts();
        let text =
            |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
        Ok(S3Reply {
            status: head.status.as_u16(),
            headers: headers.collect(),
            body: body.collect().await?.to_bytes(),
        })
    }
}
