//! `[tls]`: the node's certificate, and which certificates of others are good.

use super::load::refuse;
use clap::Args;
use forebay_proto::{Error, Result};
use forebay_tls::{ClientCertificates, TlsFiles};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// TLS of all TCP listeners, and towards other nodes.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// PEM file with this node's certificate and those between it and its authority: all TCP listeners then
    /// speak TLS only; read again when it changes [default: no TLS].
    #[arg(long = "tls-cert", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// PEM file with its private key; other users of the machine must not be able to read it.
    #[arg(long = "tls-key", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// PEM file with the authorities whose certificates are believed, of clients and of other nodes
    /// [default: clients are not asked for certificates, nodes need one that the system believes].
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// PEM file with certificates that these authorities revoked.
    #[arg(long = "tls-crl", value_name = "FILE")]
    pub crl: Option<PathBuf>,
    /// Whether clients without a certificate are let in: `required` or `optional` [default: required with
    /// --tls-ca].
    #[arg(long = "tls-client-certificates", value_name = "required|optional")]
    pub client_certificates: Option<String>,
}

impl TlsSettings {
    /// Whether the listeners speak TLS.
    pub fn is_on(&self) -> bool {
        self.cert.is_some()
    }

    /// As the library takes them.
    pub fn files(&self) -> TlsFiles {
        let Self { cert, key, ca, crl, .. } = self.clone();
        TlsFiles { cert, key, ca, crl }
    }

    /// Which certificates clients need. `Invalid` where that is neither of the two words.
    pub fn clients(&self) -> Result<ClientCertificates> {
        match self.client_certificates.as_deref() {
            None | Some("required") => Ok(ClientCertificates::Required),
            Some("optional") => Ok(ClientCertificates::Optional),
            Some(other) => Err(Error::invalid(format!(
                "[tls] client_certificates = `{other}`: use required or optional"
            ))),
        }
    }

    /// `Invalid` names the setting that makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        self.files().check(["--tls-cert", "--tls-key", "--tls-ca", "--tls-crl"])?;
        self.clients()?;
        let plain = "--tls-ca needs --tls-cert and --tls-key: without them nothing here speaks TLS";
        refuse(self.ca.is_some() && !self.is_on(), plain)?;
        let unused = "[tls] client_certificates needs --tls-ca: the authorities that sign them";
        refuse(self.client_certificates.is_some() && self.ca.is_none(), unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_together_or_not_at_all() {
        let path = |name: &str| Some(PathBuf::from(name));
        let whole = TlsSettings { cert: path("c"), key: path("k"), ca: path("a"), ..TlsSettings::default() };
        whole.check().unwrap();
        TlsSettings::default().check().unwrap();
        for (bad, says) in [
            (TlsSettings { key: None, ..whole.clone() }, "--tls-cert needs --tls-key"),
            (TlsSettings { cert: None, ..whole.clone() }, "--tls-key needs --tls-cert"),
            (TlsSettings { ca: None, crl: path("l"), ..whole.clone() }, "--tls-crl needs --tls-ca"),
            (TlsSettings { cert: None, key: None, ..whole.clone() }, "--tls-ca needs --tls-cert"),
            (TlsSettings { client_certificates: Some("no".into()), ..whole.clone() }, "required or optional"),
            (
                TlsSettings { ca: None, client_certificates: Some("required".into()), ..whole },
                "needs --tls-ca",
            ),
        ] {
            let e = bad.check().unwrap_err();
            assert!(e.message.contains(says), "{says}: {e}");
        }
    }
}
