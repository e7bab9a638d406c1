//! One checkpoint on disk: written so that it is there whole or not at all, read so that damage shows.
//!
//! The files are written into a directory of another name, each flushed to the disk, then that directory,
//! which is then renamed, then its parent is flushed. A crash at any moment leaves at most a directory that
//! nobody takes for a checkpoint.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use forebay_c10d::Span;
use forebay_proto::hash::{Hash128, xxh3_128};
use tch::{TchError, Tensor};

use super::meta::FORMAT;
use super::meta::Meta;
use super::state::{Checkpoint, NamedTensors};

/// Directories that are being written begin so.
pub(super) const UNFINISHED: &str = ".writing-";

const WEIGHTS: &str = "weights.safetensors";
const TRAINING: &str = "training.safetensors";
const META: &str = "checkpoint.json";
const CHECKSUMS: &str = "CHECKSUMS";
/// Those that the last one tells of, in its order.
const FILES: [&str; 3] = [WEIGHTS, TRAINING, META];

/// Why a checkpoint cannot be used.
#[derive(Debug)]
pub enum Damage {
    /// It is not what was written: the one before it may be better.
    Damaged(anyhow::Error),
    /// It is whole, but not for this build.
    Refused(anyhow::Error),
    /// What it is cannot be told: the disk does not let it be read now.
    Unreadable(anyhow::Error),
}

impl Damage {
    /// Of a failure on the way to its bytes: a file that is gone or no file is damage, but one that the disk,
    /// or a server behind it, does not give now may be as good as ever.
    fn of(error: anyhow::Error) -> Self {
        use std::io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound};
        let io = error.chain().find_map(|cause| match cause.downcast_ref::<TchError>() {
            Some(TchError::Io(io)) => Some(io),
            _ => cause.downcast_ref::<std::io::Error>(),
        });
        match io.map(std::io::Error::kind) {
            None | Some(NotFound | NotADirectory | IsADirectory | InvalidData) => Self::Damaged(error),
            Some(_) => Self::Unreadable(error),
        }
    }
}

/// Writes a checkpoint into `folder`; gives its directory. Weights that are not finite are an error: the loss
/// shows it a step later only, and a run that went on from them would fail for ever.
pub fn write(folder: &Path, checkpoint: &Checkpoint) -> Result<PathBuf> {
    let _span = Span::new("write checkpoint")?;
    for (name, tensor) in &checkpoint.weights {
        ensure!(
            !tensor.is_floating_point() || bool::try_from(tensor.isfinite().all())?,
            "step {}: `{name}` is not finite any more, no checkpoint of it is written: lower --lr, or use --clip-norm",
            checkpoint.meta.step
        );
    }
    let name = name(checkpoint.meta.step);
    let place = folder.join(&name);
    let beside = folder.join(format!("{UNFINISHED}{name}"));
    let made = || -> Result<()> {
        clear(&beside)?;
        fs::create_dir(&beside)?;
        write_files(&beside, checkpoint)?;
        // One of the same step can only be damaged or of a run that went another way: this one is newer.
        if place.exists() {
            let old = folder.join(format!("{UNFINISHED}old-{name}"));
            clear(&old)?;
            fs::rename(&place, &old)?;
            fs::rename(&beside, &place)?;
            clear(&old)?;
        } else {
            fs::rename(&beside, &place)?;
        }
        Ok(flush(folder)?)
    };
    made().with_context(|| format!("write the checkpoint {}", place.display()))?;
    Ok(place)
}

fn write_files(folder: &Path, checkpoint: &Checkpoint) -> Result<()> {
    Tensor::write_safetensors(&checkpoint.weights, folder.join(WEIGHTS))?;
    Tensor::write_safetensors(&checkpoint.training, folder.join(TRAINING))?;
    fs::write(folder.join(META), serde_json::to_string_pretty(&checkpoint.meta)? + "\n")?;
    FILES.iter().try_for_each(|file| flush(&folder.join(file)))?;
    fs::write(folder.join(CHECKSUMS), checksums(folder)?)?;
    flush(&folder.join(CHECKSUMS))?;
    Ok(flush(folder)?)
}

/// The text of `CHECKSUMS` for the files as they are: hash, length and name of each, and of its own lines so
/// far.
fn checksums(folder: &Path) -> Result<String> {
    let mut sums = String::new();
    for file in FILES {
        let (bytes, hash) = measure(&folder.join(file)).context(file)?;
        sums += &format!("{hash:032x} {bytes} {file}\n");
    }
    let own = xxh3_128(sums.as_bytes());
    Ok(format!("{sums}{own:032x} {} {CHECKSUMS}\n", sums.len()))
}

/// Reads a checkpoint, every byte of it verified.
pub fn read(place: &Path) -> Result<Checkpoint, Damage> {
    verify(place).map_err(Damage::of)?;
    let meta = read_meta(place)?;
    let tensors = |file: &str| Tensor::read_safetensors(place.join(file)).map_err(anyhow::Error::from);
    let both = || -> Result<(NamedTensors, NamedTensors)> { Ok((tensors(WEIGHTS)?, tensors(TRAINING)?)) };
    let (weights, training) = both().map_err(Damage::of)?;
    Ok(Checkpoint { meta, weights, training })
}

fn read_meta(place: &Path) -> Result<Meta, Damage> {
    let text = fs::read(place.join(META)).map_err(|error| Damage::of(error.into()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| Damage::Damaged(error.into()))?;
    let format = &value["format"];
    if *format != FORMAT {
        let writer = value["version"].as_str().unwrap_or("unknown");
        return Err(Damage::Refused(anyhow!(
            "it has format {format} (written by forebay-train {writer}), this build reads format {FORMAT}: use that \
             version, or start over with --fresh"
        )));
    }
    serde_json::from_value(value).map_err(|error| Damage::Refused(error.into()))
}

/// Compares every file with what `CHECKSUMS` says of it.
fn verify(place: &Path) -> Result<()> {
    let written = fs::read_to_string(place.join(CHECKSUMS)).context(CHECKSUMS)?;
    let found = checksums(place)?;
    for (written, found) in written.lines().zip(found.lines()) {
        let name = found.rsplit(' ').next().unwrap_or_default();
        ensure!(written == found, "{name} does not match its checksum");
    }
    ensure!(written == found, "CHECKSUMS has another length");
    Ok(())
}

/// Length and hash of a file.
fn measure(file: &Path) -> std::io::Result<(u64, u128)> {
    let mut source = File::open(file)?;
    let (mut hash, mut bytes) = (Hash128::default(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match source.read(&mut buffer)? {
            0 => return Ok((bytes, hash.digest())),
            read => {
                hash.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// Has the disk keep a file's bytes, or a directory's names.
fn flush(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a directory, if it is there.
pub(super) fn clear(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The directory's name for a step.
pub(super) fn name(step: u64) -> String {
    format!("step-{step:010}")
}
