//! An object store, a node whose endpoint serves it, and the key to that.

use crate::bench::stages::runtime;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::s3::S3Server;
use crate::harness::s3_client::S3Client;
use anyhow::Context;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const KEY: (&str, &str) = ("bench", "secret-of-the-bench");

/// The node that is measured, and its object store.
pub struct RawStage {
    /// Dropped before the object store that it reads.
    pub node: Server,
    pub s3: S3Server,
    pub runtime: Runtime,
    pub folder: tempfile::TempDir,
}

impl RawStage {
    /// A node with these settings besides.
    pub fn start(change: impl FnOnce(ServerOptions) -> ServerOptions) -> anyhow::Result<Self> {
        let (s3, folder) = (S3Server::start(), tempfile::tempdir()?);
        let options = with_endpoint(ServerOptions::for_s3(&s3), folder.path())?;
        let node = change(options).try_start()?;
        Ok(Self { node, s3, runtime: runtime()?, folder })
    }

    /// A client of the object store.
    pub fn store(&self) -> S3Client {
        S3Client {
            endpoint: self.s3.endpoint.clone(),
            key_id: self.s3.access_key.clone(),
            secret: self.s3.secret_key.clone(),
        }
    }

    /// A client of the endpoint.
    pub fn client(&self) -> anyhow::Result<S3Client> {
        client_of(&self.node)
    }
}

/// A client of a node's endpoint.
pub fn client_of(node: &Server) -> anyhow::Result<S3Client> {
    let endpoint = node.s3.clone().context("the node serves S3")?;
    Ok(S3Client { endpoint, key_id: KEY.0.into(), secret: KEY.1.into() })
}

/// The key, in a file of this folder.
pub fn keys_file(folder: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let keys = folder.join("keys");
    std::fs::write(&keys, format!("{} {}\n", KEY.0, KEY.1))?;
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600))?;
    Ok(keys)
}

/// The settings of an endpoint, its keys in a file of this folder.
pub fn with_endpoint(options: ServerOptions, folder: &Path) -> anyhow::Result<ServerOptions> {
    let keys = keys_file(folder)?;
    Ok(options.args(["--s3-listen", "127.0.0.1:0", "--s3-keys", &keys.to_string_lossy()]))
}
