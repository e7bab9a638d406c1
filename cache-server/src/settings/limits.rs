//! `[limits]`: what strangers may take of a node before it knows anything of them.

use super::load::refuse;
use forebay_proto::Result;
use serde::{Deserialize, Serialize};

/// Limits of connections and requests.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// gRPC connections at once, Unix socket included; a quarter of the files that may be open at most.
    pub connections: usize,
    /// Of them from one address (IPv6: from one /64 network), half of all at most. A training node has one
    /// for each stream of each of its ranks.
    pub connections_per_address: usize,
    /// Seconds after which a connection that has asked for nothing is closed; also for an HTTP request's
    /// head.
    pub handshake_s: f64,
    /// Seconds after which a gRPC connection without a request is closed. Longer than the pause of a job
    /// that validates or writes a checkpoint; clients connect again by themselves.
    pub idle_s: f64,
    /// Requests at once on one connection.
    pub streams_per_connection: u32,
    /// Batch streams at once, of all connections.
    pub streams: usize,
    /// Bytes of a request's headers.
    pub header_bytes: u32,
    /// Seconds that the text of /metrics is used again: making it looks at every file.
    pub metrics_age_s: f64,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_address: 512,
            handshake_s: 10.0,
            idle_s: 3600.0,
            streams_per_connection: 256,
            streams: 4096,
            header_bytes: 16 << 10,
            metrics_age_s: 1.0,
        }
    }
}

impl LimitSettings {
    /// `Invalid` names the setting that makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        let counts = [
            ("connections", self.connections as u64, 1, 1_000_000),
            ("connections_per_address", self.connections_per_address as u64, 1, 1_000_000),
            ("streams_per_connection", self.streams_per_connection.into(), 1, 1_000_000),
            ("streams", self.streams as u64, 1, 1_000_000),
            ("header_bytes", self.header_bytes.into(), 4096, 1 << 20),
        ];
        for (name, value, least, most) in counts {
            let range = format!("[limits] {name} = {value}: must be {least} to {most}");
            refuse(!(least..=most).contains(&value), range)?;
        }
        let times = [
            ("handshake_s", self.handshake_s, 0.1, 3600.0),
            ("idle_s", self.idle_s, 0.1, 1e9),
            ("metrics_age_s", self.metrics_age_s, 0.0, 3600.0),
        ];
        for (name, s, least, most) in times {
            let range = format!("[limits] {name} = {s}: must be {least} to {most} seconds");
            refuse(!(least..=most).contains(&s), range)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |change: &dyn Fn(&mut LimitSettings)| {
            let mut settings = LimitSettings::default();
            change(&mut settings);
            settings.check().map_err(|e| e.message)
        };
        assert!(check(&|_| ()).is_ok());
        assert!(check(&|s| s.connections = 0).unwrap_err().contains("connections = 0"));
        assert!(check(&|s| s.connections_per_address = 0).unwrap_err().contains("connections_per_address"));
        assert!(check(&|s| s.streams_per_connection = 0).unwrap_err().contains("streams_per_connection"));
        assert!(check(&|s| s.header_bytes = 1).unwrap_err().contains("header_bytes"));
        assert!(check(&|s| s.handshake_s = 0.0).unwrap_err().contains("handshake_s"));
        assert!(check(&|s| s.idle_s = f64::NAN).unwrap_err().contains("idle_s"));
        assert!(check(&|s| s.metrics_age_s = -1.0).unwrap_err().contains("metrics_age_s"));
    }
}
