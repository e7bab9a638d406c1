//! `forebay get`: an object, or ranges of its bytes, to standard output or a file.

use crate::failure::{Failure, usage};
use crate::output::Out;
use crate::presence::is_empty;
use clap::Args;
use forebay_client::args::AccessArgs;
use forebay_client::objects::{ByteStream, Objects};
use forebay_proto::object::RangeSpec;
use forebay_proto::{Error, Kind};
use futures::TryStreamExt;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Object to read, e.g. s3://bucket/key
    uri: String,
    #[command(flatten)]
    access: AccessArgs,
    /// Bytes to read: 0-99 (both included), 100- or -50 (the last 50); may be repeated [default: all]
    #[arg(short, long, value_name = "RANGE", allow_hyphen_values = true)]
    range: Vec<RangeSpec>,
    /// File to write, which appears when it is complete [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Get {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let access = self.access.access().map_err(usage)?;
        let objects = Objects::new(&access);
        let version = match objects.version(&self.uri).await {
            Err(e) if e.kind == Kind::NotFound && is_empty(&access, &self.uri).await == Some(false) => {
                let uri = &self.uri;
                let why =
                    format!("{uri}: is a folder, not an object: `forebay ls {uri}` lists what it holds");
                return Err(Error::not_found(why).into());
            }
            version => version?,
        };
        let in_uri = |e: Error| e.context(&version.uri);
        let all = std::iter::once(0..version.size);
        // All of an empty object is no byte, and no error.
        let ranges: Vec<_> = match self.range.is_empty() {
            true => all.collect(),
            false => {
                let ranges = self.range.iter().map(|range| range.of(version.size));
                ranges.collect::<Result<_, _>>().map_err(in_uri)?
            }
        };
        let bytes =
            ranges.into_iter().map(|range| objects.read(&version, range)).collect::<Result<Vec<_>, _>>()?;
        match self.output {
            None => write(bytes, out).await,
            Some(file) => write_file(bytes, &file).await,
        }
    }
}

async fn write(all: Vec<ByteStream>, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    for mut bytes in all {
        while let Some(piece) = bytes.try_next().await? {
            out.write_all(&piece)?;
        }
    }
    Ok(out.flush()?)
}

/// Under another name, until it is complete.
async fn write_file(all: Vec<ByteStream>, path: &Path) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| Error::invalid(format!("cannot write {}: {e}", path.display()));
    let mut name = path.file_name().ok_or_else(|| Error::invalid("-o: name a file"))?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let mut file = std::fs::File::create(&part).map_err(cannot)?;
    let written = async {
        for mut bytes in all {
            while let Some(piece) = bytes.try_next().await? {
                file.write_all(&piece).map_err(cannot)?;
            }
        }
        std::fs::rename(&part, path).map_err(cannot)
    };
    let written = written.await;
    if written.is_err() {
        std::fs::remove_file(&part).ok();
    }
    Ok(written?)
}
