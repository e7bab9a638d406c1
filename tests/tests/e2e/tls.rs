//! TLS on every hop, and what does not get through it.
//!
//! * [`hops`]: a cluster of which nothing can be overheard.
//! * [`refusals`]: certificates that are not good, and other protocols.
//! * [`rotation`]: certificates and authorities that change while a job reads.

mod hops;
mod refusals;
mod rotation;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use forebay_client::TlsFiles;
use forebay_tests::harness::pki::{Authority, Leaf, Pki, client_flags, node_flags};
use forebay_tests::harness::process::{Run, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

/// What a policy knows the clients by.
const VISION: &str = "spiffe://test/vision";
const ROOT: &str = "spiffe://test/root";

/// Who may what: the nodes are known by their host name.
const POLICY: &str = "
[[principal]]
name = 'vision'
roles = ['reader', 'loader']
prefixes = ['s3://forebay/hidden/']
cert = ['spiffe://test/vision']
[[principal]]
name = 'root'
roles = ['operator', 'reader', 'metrics']
prefixes = ['s3://forebay/']
cert = ['spiffe://test/root']
[[principal]]
name = 'nodes'
roles = ['peer']
prefixes = []
cert = ['localhost']
";

/// A folder of certificates with one authority, in `ca.pem`, and a policy.
struct World {
    pki: Pki,
    authority: Authority,
}

impl World {
    fn new() -> Self {
        let pki = Pki::new().expect("a folder");
        let authority = Pki::authority("ours").expect("an authority");
        pki.put("ca.pem", &authority.pem).expect("write it");
        pki.put("policy.toml", POLICY).expect("write a policy");
        Self { pki, authority }
    }

    fn issue(&self, leaf: Leaf<'_>) -> TlsFiles {
        self.pki.issue(leaf, Some(&self.authority)).expect("a certificate").0
    }

    /// A node that reads from a store, with the certificate of these files and the policy.
    fn node(&self, s3: &S3Server, files: &TlsFiles) -> ServerOptions {
        self.node_of(s3, &s3.endpoint, files)
    }

    /// The same, by another way to the store.
    fn node_of(&self, s3: &S3Server, endpoint: &str, files: &TlsFiles) -> ServerOptions {
        let policy = self.pki.path("policy.toml").display().to_string();
        let options = ServerOptions::for_endpoint(s3, endpoint);
        options.args(node_flags(files)).args(["--auth-policy", &policy])
    }
}

/// `forebay ARGUMENTS` at a node, with a certificate.
fn forebay(files: &TlsFiles, endpoint: &str, arguments: &[&str]) -> Run {
    Run::new("forebay").args(arguments).args(client_flags(files)).args(["--endpoint", endpoint])
}

/// `curl ARGUMENTS`, with a certificate.
fn curl(files: &TlsFiles, arguments: &[&str]) -> Run {
    let flags =
        client_flags(files).into_iter().map(|word| if word == "--ca" { "--cacert".into() } else { word });
    Run::program("curl", "curl").args(["-sS", "--max-time", "20"]).args(flags).args(arguments)
}

/// What all rows of [`upload`] have in them.
const KNOWN: &str = "a-known-value-of-row-";

/// Puts a table into the store whose values can be searched for, in objects of several row groups.
fn upload(s3: &S3Server) -> String {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(500))
        .build();
    for object in 0..4_i64 {
        let rows = (0..4000).map(|row| object * 4000 + row);
        let text: StringArray = rows.clone().map(|row| Some(format!("{KNOWN}{row}"))).collect();
        let columns: [(&str, ArrayRef); 2] =
            [("id", Arc::new(Int64Array::from_iter_values(rows))), ("text", Arc::new(text))];
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut bytes = Vec::new();
        let mut writer =
            ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.clone())).expect("a writer");
        writer.write(&batch).expect("write");
        writer.close().expect("close");
        s3.put(&format!("hidden/{object}.parquet"), bytes);
    }
    s3.uri("hidden/")
}
