//! TLS towards nodes at `https://`: which authorities this process believes, and the certificate that it
//! shows.
//!
//! Connections by TLS are made here, for gRPC channels and for batch streams.

use crate::environment::variable;
use forebay_proto::Result;
use forebay_tls::{ClientStream, ClientTls, TlsFiles};
use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// The variable that names the file of authorities that this process believes.
pub const CA_VARIABLE: &str = "FOREBAY_CA";

/// The variable that names the file of its certificate.
pub const CERT_VARIABLE: &str = "FOREBAY_CERT";

/// The variable that names the file of that certificate's key.
pub const KEY_VARIABLE: &str = "FOREBAY_KEY";

/// What a URL of a node with TLS begins with.
const HTTPS: &str = "https://";

/// The files that were named, or those of the environment: the same for the whole process.
static OF_PROCESS: Mutex<Option<ClientTls>> = Mutex::new(None);

/// Names files for connections to nodes at `https://` from now on; those that are left out come from the
/// environment. They are read again when they change. `Invalid` if one lacks another that it needs, or makes
/// no sense.
pub fn use_certificates(files: TlsFiles) -> Result<()> {
    let tls = by(files)?;
    tls.load()?;
    *OF_PROCESS.lock() = Some(tls);
    Ok(())
}

fn by(files: TlsFiles) -> Result<ClientTls> {
    let of = |name| variable(name).map(Into::into);
    let (cert, key) = match (files.cert, files.key) {
        (None, None) => (of(CERT_VARIABLE), of(KEY_VARIABLE)),
        both => both,
    };
    let files = TlsFiles { cert, key, ca: files.ca.or_else(|| of(CA_VARIABLE)), crl: None };
    files.check([
        "the certificate (--cert, FOREBAY_CERT)",
        "the key (--key, FOREBAY_KEY)",
        "--ca",
        "a list",
    ])?;
    Ok(ClientTls::new(files))
}

fn of_process() -> Result<ClientTls> {
    let mut known = OF_PROCESS.lock();
    match &*known {
        Some(tls) => Ok(tls.clone()),
        None => Ok(known.insert(by(TlsFiles::default())?).clone()),
    }
}

/// Whether a node is reached by TLS.
pub(crate) fn is_tls(url: &str) -> bool {
    url.starts_with(HTTPS)
}

/// Reads the files, so that a mistake in them is known before a node is asked. `Invalid` names the file.
pub(crate) fn check() -> Result<()> {
    of_process()?.load()
}

/// A connection to a host, after the handshake.
pub(crate) async fn dial(host: &str, port: u16) -> io::Result<ClientStream<TcpStream>> {
    let tls = of_process().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    tls.dial(host, port).await
}

/// How a node at a URL is reached; `None` if that is no URL.
pub(crate) fn endpoint(url: &str) -> Option<Endpoint> {
    let Some(host) = url.strip_prefix(HTTPS) else { return Endpoint::from_shared(url.to_owned()).ok() };
    // To tonic it is a plain connection: it sets up TLS once, and could not take new files.
    let endpoint = Endpoint::from_shared(format!("http://{host}")).ok()?;
    Some(endpoint.origin(url.parse().ok()?))
}

/// A channel to the node at `url`, which connects when it is first used.
pub(crate) fn channel(endpoint: &Endpoint, url: &str) -> Channel {
    if !is_tls(url) {
        return endpoint.connect_lazy();
    }
    let connect = |uri: Uri| async move {
        let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
            return Err(io::Error::other(format!("{uri} names no host and port")));
        };
        dial(bare(host), port).await.map(TokioIo::new)
    };
    endpoint.connect_with_connector_lazy(service_fn(connect))
}

/// An IPv6 address without its brackets.
pub(crate) fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_lack_another_or_make_no_sense_are_named() {
        let e = use_certificates(TlsFiles { cert: Some("c.pem".into()), ..TlsFiles::default() });
        assert!(e.unwrap_err().message.contains("--key"));
        let e = use_certificates(TlsFiles { ca: Some("/nonexistent/ca.pem".into()), ..TlsFiles::default() });
        assert!(e.unwrap_err().message.contains("/nonexistent/ca.pem"));
    }
}
