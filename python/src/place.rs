//! Where data comes from, and who this process is to the nodes there, as keywords of Python say.

use crate::local_node::{node, source_settings};
use forebay_client::{
    Access, DIRECT_MEMORY_BYTES, Direct, ENDPOINT_VARIABLE, Endpoints, LOCAL, TlsFiles, ZONE_VARIABLE,
    use_certificates, use_token_file, variable,
};
use forebay_dataset::TokenFile;
use forebay_proto::{Error, Result};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Where data comes from, as keywords say.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Place {
    endpoint: Option<String>,
    direct: bool,
    zone: Option<String>,
    shown: Shown,
    /// How a node of this machine is started, in JSON; empty if no keyword says.
    local: String,
    /// `SourceSettings` in JSON; empty if no keyword concerns the object store.
    source: String,
    direct_memory_bytes: Option<u64>,
}

/// Files with what this process believes of nodes, and what it shows to them. The environment names those
/// that are left out.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Shown {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl Place {
    /// `Invalid` if the keywords contradict each other. What neither they nor the environment name is a node
    /// of this machine.
    pub fn access(self) -> Result<Access> {
        if self.direct && self.endpoint.is_some() {
            return Err(Error::invalid(
                "endpoint= and direct=True contradict each other: read through the cache, or the object store directly",
            ));
        }
        if !self.shown.is_empty() && (self.direct || self.urls().is_none()) {
            return Err(Error::invalid(
                "ca=, cert=, key= and token_file= are for the nodes of a cluster: name one by endpoint=, or leave them out",
            ));
        }
        if self.direct {
            let memory = self.direct_memory_bytes.unwrap_or(DIRECT_MEMORY_BYTES);
            return Direct::new(source_settings(&self.source)?, memory).map(Access::Direct);
        }
        if self.direct_memory_bytes.is_some() {
            return Err(Error::invalid(
                "direct_memory_bytes needs direct=True: a cache has its own settings",
            ));
        }
        let Some(urls) = self.urls() else {
            return Ok(Access::local(node(&self.local, &self.source)?));
        };
        if !self.source.is_empty() {
            return Err(Error::invalid(format!(
                "keywords for the object store (s3_...) need direct=True, or a node of this machine (endpoint=\"{LOCAL}\"): \
                 the cache at {urls} has its own settings"
            )));
        }
        self.shown.show()?;
        let mut endpoints = Endpoints::parse(&urls)?.spread();
        endpoints.zone = self.zone.or_else(|| variable(ZONE_VARIABLE));
        Ok(Access::Endpoint(endpoints))
    }

    /// The addresses of a cluster; `None` for a node of this machine.
    fn urls(&self) -> Option<String> {
        let urls = self.endpoint.clone().or_else(|| variable(ENDPOINT_VARIABLE));
        urls.filter(|urls| urls.trim() != LOCAL)
    }
}

impl Shown {
    fn is_empty(&self) -> bool {
        let Self { ca, cert, key, token_file } = self;
        [ca, cert, key, token_file].into_iter().all(Option::is_none)
    }

    /// Names the files to the client library, which has one set of them for the whole process. They are read
    /// here, so that a mistake is told before a node is asked; `Invalid` or `Denied` name the file.
    fn show(&self) -> Result<()> {
        let Self { ca, cert, key, token_file } = self.clone();
        let files = TlsFiles { ca, cert, key, crl: None };
        if !files.is_empty() {
            files.check(["cert=", "key=", "ca=", ""])?;
            use_certificates(files).map_err(|e| e.context("ca=, cert= and key= name PEM files"))?;
        }
        if let Some(path) = token_file {
            let token = TokenFile::new(&path).bearer();
            token.map_err(|e| e.context("token_file= names the file that holds your token"))?;
            use_token_file(path);
        }
        Ok(())
    }
}
