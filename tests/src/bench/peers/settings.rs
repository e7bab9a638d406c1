//! What the benchmark was told.

use super::peer::Peer;
use crate::bench::warm::Shape;
use std::path::PathBuf;

/// How large the measurement is, and where the peers are.
#[derive(Debug, Clone)]
pub struct PeerSettings {
    pub shapes: Vec<Shape>,
    pub peers: Vec<Peer>,
    pub rounds: u32,
    pub scale: f64,
    pub environments: PathBuf,
    pub scripts: PathBuf,
    pub repository: PathBuf,
}
