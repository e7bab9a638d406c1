//! MNIST as Parquet, the data that tests and the demo read (`tests/data/README.md`).

use std::io;
use std::path::{Path, PathBuf};

use crate::harness::s3::S3Server;

/// Images of the training split.
pub const TRAIN_SAMPLES: u64 = 60_000;
/// Images of the test split.
pub const TEST_SAMPLES: u64 = 10_000;

/// The folder with `train/` and `test/`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/mnist")
}

/// Puts both splits under `mnist/train/` and `mnist/test/` of the server's bucket; returns the number of
/// bytes.
pub fn upload(server: &S3Server) -> io::Result<u64> {
    let mut bytes = 0;
    for split in ["train", "test"] {
        bytes += upload_folder(server, &folder().join(split), &format!("mnist/{split}"))?;
    }
    Ok(bytes)
}

/// Puts the files of `folder` under `prefix/` of the server's bucket; returns the number of bytes.
pub fn upload_folder(server: &S3Server, folder: &Path, prefix: &str) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let data = std::fs::read(entry.path())?;
            bytes += data.len() as u64;
            server.put(&format!("{prefix}/{}", entry.file_name().to_string_lossy()), data);
        }
    }
    Ok(bytes)
}
