//! The connections that have a client certificate.

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Connections with a client certificate.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    pub next: u64,
    pub all: HashMap<u64, Certified>,
}

#[derive(Debug)]
pub(super) struct Certified {
    pub chain: Vec<CertificateDer<'static>>,
    pub since: UnixTime,
    pub cut: CancellationToken,
}

/// A connection in the list, until dropped.
#[derive(Debug)]
pub(super) struct Registration {
    pub open: Arc<Mutex<OpenConnections>>,
    pub number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.open.lock().all.remove(&self.number);
    }
}
