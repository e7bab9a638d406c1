//! Both sides against each other, with authorities made for each test.

use crate::{ClientCertificates, ClientTls, Purpose, ServerTls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use time::{Duration, OffsetDateTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_util::sync::CancellationToken;

type Authority = Issuer<'static, KeyPair>;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Puts a file in the place of another, as a tool that rotates certificates does.
    fn put(&self, name: &str, text: &str) -> PathBuf {
        let (new, path) = (self.0.path().join("new"), self.0.path().join(name));
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(new, &path).unwrap();
        path
    }

    fn authority(&self, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        self.put(&format!("{name}.pem"), &params.self_signed(&key).unwrap().pem());
        Issuer::new(params, key)
    }

    /// A certificate that begins and ends a number of days from now; its files bear the name.
    fn leaf(&self, name: &str, serial: u64, days: (i64, i64), by: &Authority) -> TlsFiles {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let now = OffsetDateTime::from_unix_timestamp(rustls::pki_types::UnixTime::now().as_secs() as i64);
        let now = now.unwrap();
        (params.not_before, params.not_after) = (now + Duration::days(days.0), now + Duration::days(days.1));
        let key = KeyPair::generate().unwrap();
        let cert = self.put(&format!("{name}-cert.pem"), &params.signed_by(&key, by).unwrap().pem());
        let key = self.put(&format!("{name}-key.pem"), &key.serialize_pem());
        TlsFiles { cert: Some(cert), key: Some(key), ..TlsFiles::default() }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.0.path().join(name))
    }
}

/// Shakes hands and sends a byte each way; returns the client's end, what the server knows of the client, and
/// the token that is called if that does not hold any more.
async fn meet(
    server: &Arc<ServerTls>,
    client: &ClientTls,
    host: &str,
) -> Result<
    (crate::ClientStream<DuplexStream>, Option<String>, CancellationToken, Box<dyn std::any::Any>),
    String,
> {
    let (near, far) = duplex(64 << 10);
    let cut = CancellationToken::new();
    let (server, given) = (server.clone(), cut.clone());
    let served = tokio::spawn(async move {
        let mut stream = server.accept(Purpose::Grpc, far, given).await.map_err(|e| e.to_string())?;
        stream.write_all(b"s").await.map_err(|e| e.to_string())?;
        stream.flush().await.map_err(|e| e.to_string())?;
        Ok::<_, String>(stream)
    });
    let mut stream = client.connect(host, near).await.map_err(|e| e.to_string())?;
    let mut byte = [0];
    stream.read_exact(&mut byte).await.map_err(|e| e.to_string())?;
    let served = served.await.unwrap()?;
    let serial = served.client.as_ref().map(|client| client.serial.clone());
    Ok((stream, serial, cut, Box::new(served)))
}

#[tokio::test]
async fn only_certificates_of_the_right_authority_and_time_are_let_in() {
    let folder = Folder::new();
    let (ours, other) = (folder.authority("ours"), folder.authority("other"));
    let ca = folder.path("ours.pem");
    let node = TlsFiles { ca: ca.clone(), ..folder.leaf("node", 1, (-1, 1), &ours) };
    let server = ServerTls::open(node, ClientCertificates::Required).unwrap();
    let client = |files: TlsFiles| ClientTls::new(TlsFiles { ca: ca.clone(), ..files });
    let good = client(folder.leaf("good", 7, (-1, 1), &ours));
    let (.., serial, _, _) = meet(&server, &good, "localhost").await.unwrap();
    assert_eq!(serial.as_deref(), Some("07"));
    for (files, says) in [
        (TlsFiles::default(), "asks for a client certificate"),
        (folder.leaf("foreign", 8, (-1, 1), &other), "does not know the authority"),
        (folder.leaf("old", 9, (-9, -1), &ours), "has expired"),
        (folder.leaf("young", 10, (1, 9), &ours), "does not begin yet"),
    ] {
        let e = meet(&server, &client(files), "localhost").await.map(drop).unwrap_err();
        assert!(e.contains(says), "{says}: {e}");
    }
    let e = meet(&server, &good, "cache-1").await.map(drop).unwrap_err();
    assert!(e.contains("not for cache-1: it is for localhost"), "{e}");
    // The node can tell so before anybody asks.
    for (host, is_good) in
        [("localhost", true), ("LOCALHOST", true), ("cache-1", false), ("::1", false), ("", false)]
    {
        let others = (!is_good).then(|| vec!["localhost".to_owned()]);
        assert_eq!(server.hosts_without(host), others, "{host}");
    }
    let stranger = ClientTls::new(TlsFiles { ca: folder.path("other.pem"), ..TlsFiles::default() });
    let e = meet(&server, &stranger, "localhost").await.map(drop).unwrap_err();
    assert!(e.contains("authority that is not known here"), "{e}");
}

#[tokio::test]
async fn a_revoked_certificate_is_cut_and_others_stay() {
    let folder = Folder::new();
    let ours = folder.authority("ours");
    let ca = folder.path("ours.pem");
    let revoke = |serial: u64| {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::days(20_000);
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: now,
            next_update: now + Duration::days(20_000),
            crl_number: SerialNumber::from(serial),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        folder.put("crl.pem", &list.signed_by(&ours).unwrap().pem().unwrap());
    };
    revoke(99);
    let node =
        TlsFiles { ca: ca.clone(), crl: folder.path("crl.pem"), ..folder.leaf("node", 1, (-1, 1), &ours) };
    let server = ServerTls::open(node, ClientCertificates::Required).unwrap();
    let client = |name, serial| {
        ClientTls::new(TlsFiles { ca: ca.clone(), ..folder.leaf(name, serial, (-1, 1), &ours) })
    };
    let (good, bad) = (client("good", 7), client("bad", 8));
    let of_good = meet(&server, &good, "localhost").await.unwrap();
    let of_bad = meet(&server, &bad, "localhost").await.unwrap();
    revoke(8);
    let reloading = server.clone();
    tokio::task::spawn_blocking(move || reloading.reload()).await.unwrap();
    assert!(of_bad.2.is_cancelled() && !of_good.2.is_cancelled());
    let e = meet(&server, &bad, "localhost").await.map(drop).unwrap_err();
    assert!(e.contains("revoked"), "{e}");
    meet(&server, &good, "localhost").await.unwrap();
}

#[tokio::test]
async fn files_that_make_no_sense_leave_the_old_ones_in_force() {
    let folder = Folder::new();
    let ours = folder.authority("ours");
    let files = folder.leaf("node", 1, (-1, 1), &ours);
    let server = ServerTls::open(files.clone(), ClientCertificates::Required).unwrap();
    let client = ClientTls::new(TlsFiles { ca: folder.path("ours.pem"), ..TlsFiles::default() });
    let cert = std::fs::read_to_string(files.cert.as_ref().unwrap()).unwrap();
    let key = std::fs::read_to_string(files.key.as_ref().unwrap()).unwrap();
    let other = KeyPair::generate().unwrap().serialize_pem();
    let (half, mut failed) = (&cert[..cert.len() / 2], 0);
    for (name, text) in [
        ("node-cert.pem", half),
        ("node-cert.pem", ""),
        ("node-cert.pem", "nonsense"),
        ("node-key.pem", &other),
    ] {
        folder.put(name, text);
        let reloading = server.clone();
        // A second look at the same files says nothing again.
        tokio::task::spawn_blocking(move || (reloading.reload(), reloading.reload())).await.unwrap();
        failed += 1;
        assert_eq!(server.failed_reloads(), failed, "{name}");
        meet(&server, &client, "localhost").await.unwrap();
        folder.put("node-cert.pem", &cert);
    }
    folder.put("node-key.pem", &key);
    let reloading = server.clone();
    tokio::task::spawn_blocking(move || reloading.reload()).await.unwrap();
    assert_eq!(server.failed_reloads(), failed);
    meet(&server, &client, "localhost").await.unwrap();
}

#[tokio::test]
async fn a_client_goes_by_the_authorities_of_now() {
    let folder = Folder::new();
    let (old, new) = (folder.authority("old"), folder.authority("new"));
    let server =
        |name, by| ServerTls::open(folder.leaf(name, 1, (-1, 1), by), ClientCertificates::Required).unwrap();
    let (before, after) = (server("before", &old), server("after", &new));
    let text = |name: &str| std::fs::read_to_string(folder.path(name).unwrap()).unwrap();
    let ca = folder.put("ca.pem", &text("old.pem"));
    let client = ClientTls::new(TlsFiles { ca: Some(ca), ..TlsFiles::default() });
    assert!(meet(&before, &client, "localhost").await.is_ok());
    assert!(meet(&after, &client, "localhost").await.is_err());
    folder.put("ca.pem", &(text("old.pem") + &text("new.pem")));
    assert!(meet(&before, &client, "localhost").await.is_ok());
    assert!(meet(&after, &client, "localhost").await.is_ok());
    folder.put("ca.pem", &text("new.pem"));
    assert!(meet(&before, &client, "localhost").await.is_err());
}

#[tokio::test]
async fn plain_http_is_refused_at_once() {
    let folder = Folder::new();
    let server = ServerTls::open(
        folder.leaf("node", 1, (-1, 1), &folder.authority("ours")),
        ClientCertificates::Required,
    );
    let (mut near, far) = duplex(1 << 10);
    near.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
    let e =
        server.unwrap().accept(Purpose::Metrics, far, CancellationToken::new()).await.map(drop).unwrap_err();
    assert!(e.to_string().contains("no TLS is spoken there"), "{e}");
}

#[test]
fn files_are_refused_by_name() {
    let folder = Folder::new();
    let ours = folder.authority("ours");
    let (one, two) = (folder.leaf("one", 1, (-1, 1), &ours), folder.leaf("two", 2, (-1, 1), &ours));
    let open = |files: &TlsFiles| ServerTls::open(files.clone(), ClientCertificates::Required).map(drop);
    let mixed = TlsFiles { key: two.key.clone(), ..one.clone() };
    assert!(open(&mixed).unwrap_err().message.contains("two-key.pem: is not the key of the certificate"));
    let chain = std::fs::read_to_string(folder.path("ours.pem").unwrap()).unwrap();
    let leaf = std::fs::read_to_string(one.cert.as_ref().unwrap()).unwrap();
    folder.put("one-cert.pem", &(chain.clone() + &leaf));
    assert!(open(&one).unwrap_err().message.contains("wrong order"));
    folder.put("one-cert.pem", &(leaf + &chain));
    open(&one).unwrap();
    std::fs::set_permissions(one.key.as_ref().unwrap(), PermissionsExt::from_mode(0o644)).unwrap();
    let e = open(&one).unwrap_err();
    assert!(e.message.contains("one-key.pem: its mode is 0644"), "{e}");
}

/// What a client says of a certificate that signs itself, and that it believes.
async fn said_of_its_own_authority(change: impl FnOnce(&mut CertificateParams)) -> String {
    let folder = Folder::new();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let cert = Some(folder.put("cert.pem", &params.self_signed(&key).unwrap().pem()));
    let key = Some(folder.put("key.pem", &key.serialize_pem()));
    let files = TlsFiles { cert: cert.clone(), key, ..TlsFiles::default() };
    let server = ServerTls::open(files, ClientCertificates::default()).unwrap();
    let client = ClientTls::new(TlsFiles { ca: cert, ..TlsFiles::default() });
    let (near, far) = duplex(64 << 10);
    let accept = server.accept(Purpose::Grpc, far, CancellationToken::new());
    let (_, said) = tokio::join!(accept, client.connect("localhost", near));
    said.map(drop).unwrap_err().to_string()
}

#[tokio::test]
async fn certificates_that_no_node_can_show_are_told_as_such() {
    let is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let e = said_of_its_own_authority(|params| params.is_ca = is_ca).await;
    assert!(e.starts_with("its certificate is that of an authority"), "{e}");
    let purpose = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let e = said_of_its_own_authority(|params| params.extended_key_usages = purpose).await;
    assert!(e.starts_with("its certificate is not for this end of a connection"), "{e}");
}
