//! The sockets that a node listens on: which connections each takes.

use super::admission::{Admission, ConnectionLimits};
use super::handshake::Handshakes;
use super::refusals::Refusals;
use crate::descriptors;
use crate::settings::Settings;
use std::sync::Arc;

/// Connections to /metrics at once, and from one address: there are few who look.
const METRICS: ConnectionLimits = ConnectionLimits { all: 128, per_address: 64 };

/// How many connections each socket of a node has, and may have.
#[derive(Debug)]
pub struct Listeners {
    /// By TCP and over the Unix socket.
    pub grpc: Admission,
    pub s3: Admission,
    pub metrics: Admission,
    /// What they all turn away.
    pub refusals: Arc<Refusals>,
    /// TLS of those by TCP; `None`: they speak none.
    pub tls: Option<Arc<Handshakes>>,
}

impl Listeners {
    /// None is open; the process may have this number of files.
    pub fn new(settings: &Settings, files: u64, tls: Option<Arc<Handshakes>>) -> Self {
        let (refusals, of) = (Arc::new(Refusals::default()), &settings.limits);
        let wanted = |all| ConnectionLimits { all, per_address: of.connections_per_address };
        let admission = |wanted| Admission::new(descriptors::limits(files, wanted), refusals.clone());
        let grpc = descriptors::limits(files, wanted(of.connections));
        if grpc.all < of.connections {
            tracing::info!(
                connections = grpc.all,
                open_files = files,
                "fewer connections than set: too few files"
            );
        }
        Self {
            grpc: admission(wanted(of.connections)),
            s3: admission(wanted(settings.gateway.connections_max)),
            metrics: admission(METRICS),
            refusals,
            tls,
        }
    }

    /// Connections that are open, by listener.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let all = [("grpc", &self.grpc), ("s3", &self.s3), ("metrics", &self.metrics)];
        all.into_iter().map(|(name, admission)| (name.to_owned(), admission.count())).collect()
    }
}
