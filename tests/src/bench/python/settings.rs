//! How large the measurement is, and where the package lies.

use crate::bench::warm::Shape;
use std::path::PathBuf;

/// See the flags of [`PythonOptions`](super::PythonOptions).
#[derive(Debug, Clone)]
pub struct PythonSettings {
    pub shapes: Vec<Shape>,
    pub rounds: u32,
    pub scale: f64,
    pub epochs: u32,
    pub kills: u32,
    pub repository: PathBuf,
}
