//! Settings of a node's place in a cluster.

use super::load::refuse;
use clap::Args;
use forebay_proto::{Error, Result};
use forebay_tls::TlsFiles;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// How the node finds the others through etcd, and how it presents itself to them and to clients.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSettings {
    /// URL of etcd, e.g. http://etcd-1:2379, which keeps the list of nodes; repeat it for each member of
    /// etcd.
    #[arg(long, value_name = "URL")]
    pub etcd: Vec<String>,
    /// PEM file with the authorities that sign the certificates of etcd at https://.
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// PEM file with the certificate that this node shows etcd; read again for each connection to it.
    #[arg(long, value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,
    /// PEM file with its private key.
    #[arg(long, value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,
    /// User by which etcd knows this node, where it has users.
    #[arg(long, value_name = "NAME")]
    pub etcd_user: Option<String>,
    /// File with the user's password.
    #[arg(long, value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
    /// What all keys in etcd begin with: clusters with different prefixes share one etcd.
    #[arg(long, value_name = "PREFIX", default_value = "/forebay")]
    pub etcd_prefix: String,
    /// URL that clients and other nodes are told, e.g. http://cache-1:7070 [default: the address of
    /// --listen].
    #[arg(long, value_name = "URL")]
    pub advertise: Option<String>,
    /// Share of the segments that this node takes, relative to the others'; 0: none.
    #[arg(long, default_value = "1")]
    pub weight: f64,
    /// Where the node stands, such as a rack or an availability zone.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub zone: String,
    /// Seconds without a sign of life after which etcd considers a node dead, 2 to 3600.
    // Clients notice a dead node by themselves within a second, so it need not be short.
    #[arg(long, value_name = "S", default_value = "5")]
    pub lease_ttl_s: u64,
    /// Nodes that are to hold each segment, its owner included, 1 to 16, unless `forebay replicas` said
    /// otherwise of its dataset; the same on every node. With 2, a node that dies costs no read from the
    /// object store.
    #[arg(long, value_name = "N", default_value = "1")]
    pub replicas: u32,
}

/// A node of a fixed cluster; `NAME=URL` or `URL` in the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct StaticNode {
    pub name: String,
    pub url: String,
}

impl From<String> for StaticNode {
    fn from(text: String) -> Self {
        match text.split_once('=') {
            Some((name, url)) => Self { name: name.to_owned(), url: url.to_owned() },
            None => Self { name: host_and_port(&text).to_owned(), url: text },
        }
    }
}

impl From<StaticNode> for String {
    fn from(node: StaticNode) -> Self {
        format!("{}={}", node.name, node.url)
    }
}

/// A node's name where it is given none.
pub(super) fn host_and_port(url: &str) -> &str {
    without_scheme(url).unwrap_or(url).trim_start_matches("unix:")
}

/// What follows `http://` or `https://`.
fn without_scheme(url: &str) -> Option<&str> {
    url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))
}

/// What the URL of a node begins with, with TLS and without.
pub(super) fn scheme(with_tls: bool) -> &'static str {
    if with_tls { "https://" } else { "http://" }
}

/// Whether `url` is `http://host:port` or `https://host:port`.
pub(super) fn is_node_url(url: &str) -> bool {
    let parsed = without_scheme(url).and_then(|at| at.rsplit_once(':'));
    parsed.is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok())
}

impl ClusterSettings {
    pub(super) fn check(&self) -> Result<()> {
        for url in &self.etcd {
            let is_wrong = without_scheme(url)
                .is_none_or(|rest| rest.trim_end_matches('/').is_empty() || rest.contains(' '));
            refuse(is_wrong, format!("etcd `{url}`: use its URL, as in http://etcd-1:2379"))?;
        }
        self.check_etcd()?;
        let Self { etcd_prefix: prefix, weight, lease_ttl_s, replicas, .. } = self;
        let is_path =
            prefix.starts_with('/') && !prefix.ends_with('/') && !prefix.chars().any(char::is_control);
        refuse(!is_path, format!("etcd_prefix = `{prefix}`: must begin with / and not end with it"))?;
        refuse(!(0.0..=1e6).contains(weight), format!("weight = {weight}: must be 0 to 1,000,000"))?;
        let lease = format!("lease_ttl_s = {lease_ttl_s}: must be 2 to 3600 seconds");
        refuse(!(2..=3600).contains(lease_ttl_s), lease)?;
        refuse(!(1..=16).contains(replicas), format!("replicas = {replicas}: must be 1 to 16"))?;
        let Some(url) = &self.advertise else { return Ok(()) };
        let no_url = format!("advertise `{url}`: use the node's URL, as in http://cache-1:7070");
        refuse(!is_node_url(url), no_url)?;
        let nowhere = format!(
            "advertise `{url}`: nobody can reach that address: give this node's own host name or address"
        );
        refuse(is_nowhere(url), nowhere)
    }

    /// What this node shows etcd, and whom it believes.
    pub fn etcd_files(&self) -> TlsFiles {
        let Self { etcd_ca: ca, etcd_cert: cert, etcd_key: key, .. } = self.clone();
        TlsFiles { cert, key, ca, crl: None }
    }

    fn check_etcd(&self) -> Result<()> {
        self.etcd_files().check(["--etcd-cert", "--etcd-key", "--etcd-ca", "a list"])?;
        let Self { etcd_user: user, etcd_password_file: password, .. } = self;
        let is_given = !self.etcd_files().is_empty() || user.is_some() || password.is_some();
        let unused = "--etcd-ca, --etcd-cert, --etcd-key, --etcd-user and --etcd-password-file need --etcd: without it \
                      no etcd is asked";
        refuse(is_given && self.etcd.is_empty(), unused)?;
        let is_tls = |url: &String| url.starts_with("https://");
        let plain = self.etcd.iter().find(|url| !is_tls(url));
        refuse(
            !self.etcd_files().is_empty() && plain.is_some(),
            format!(
                "etcd `{}`: --etcd-ca, --etcd-cert and --etcd-key are for https://",
                plain.map_or("", String::as_str)
            ),
        )?;
        let no_ca = "etcd at https:// needs --etcd-ca: the authorities that sign its certificates";
        refuse(self.etcd.iter().any(is_tls) && self.etcd_ca.is_none(), no_ca)?;
        let alone = "--etcd-user and --etcd-password-file go together: name both or neither";
        refuse(self.etcd_user.is_some() != self.etcd_password_file.is_some(), alone)
    }

    /// The URL that others are told of a node that listens on `bound`, with TLS or without. `Invalid` where
    /// that is every address.
    pub fn url(&self, bound: SocketAddr, with_tls: bool) -> Result<String> {
        let scheme = scheme(with_tls);
        match &self.advertise {
            Some(url) => Ok(url.clone()),
            None if bound.ip().is_unspecified() && !self.etcd.is_empty() => Err(Error::invalid(format!(
                "{bound} is every address of this machine and cannot be told to others: say what they shall use, \
                 with --advertise {scheme}HOST:{}",
                bound.port()
            ))),
            None => Ok(format!("{scheme}{bound}")),
        }
    }
}

/// The host in the URL of a node; of IPv6 without brackets.
pub(super) fn host_of(url: &str) -> &str {
    let host = without_scheme(url).unwrap_or(url).rsplit_once(':').map_or("", |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn is_nowhere(url: &str) -> bool {
    host_of(url).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_nobodys() {
        let mut s = ClusterSettings { etcd: vec!["http://e:2379".into()], ..Default::default() };
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 7070));
        assert!(s.url(everywhere, false).unwrap_err().message.contains("--advertise http://HOST:7070"));
        let here = SocketAddr::from(([10, 0, 0, 1], 7));
        assert_eq!(s.url(here, false).unwrap(), "http://10.0.0.1:7");
        assert_eq!(s.url(here, true).unwrap(), "https://10.0.0.1:7");
        for (url, good) in [
            ("http://c-1:7070", true),
            ("https://c-1:7070", true),
            ("https://0.0.0.0:7070", false),
            ("http://0.0.0.0:7070", false),
            ("http://[::]:1", false),
            ("c:1", false),
        ] {
            s.advertise = Some(url.into());
            assert_eq!(s.check().is_ok(), good, "{url}");
        }
        s.advertise = Some("http://c-1:7070".into());
        assert_eq!(s.url(everywhere, false).unwrap(), "http://c-1:7070");
        s.etcd.push("etcd:2379".into());
        assert!(s.check().unwrap_err().message.contains("etcd:2379"));
    }

    #[test]
    fn files_for_etcd_go_with_https() {
        let of = |change: &dyn Fn(&mut ClusterSettings)| {
            let ca = Some(PathBuf::from("ca.pem"));
            let mut s =
                ClusterSettings { etcd: vec!["https://e:2379".into()], etcd_ca: ca, ..Default::default() };
            change(&mut s);
            s.check().map_err(|e| e.message)
        };
        assert_eq!(of(&|_| ()), Ok(()));
        assert!(of(&|s| s.etcd.clear()).unwrap_err().contains("need --etcd"));
        assert!(of(&|s| s.etcd_ca = None).unwrap_err().contains("--etcd-ca"));
        assert!(of(&|s| s.etcd = vec!["http://e:1".into()]).unwrap_err().contains("http://e:1"));
        assert!(of(&|s| s.etcd_cert = s.etcd_ca.clone()).unwrap_err().contains("--etcd-key"));
        assert!(of(&|s| s.etcd_user = Some("u".into())).unwrap_err().contains("--etcd-password-file"));
    }
}
