//! TensorBoard's event files: scalars by step.
//!
//! A file of records, each framed by its length and two masked CRC-32Cs (the TFRecord format), each holding
//! an `Event` message of which only what scalars need is known here. TensorBoard's own reader checks this in
//! the tests.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use prost::Message;

/// What others see of the file is at most so old while steps come.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// An event file that is being written. A failure to write ends it with a warning, not the training.
#[derive(Debug)]
pub struct Events {
    file: BufWriter<File>,
    flushed: Instant,
    broken: bool,
}

impl Events {
    /// A new file in `folder`, which is made if it is not there. `first_step` is where a resumed run goes on:
    /// what an earlier file says of steps from there on is then not shown.
    pub fn create(folder: &Path, first_step: u64) -> Result<Self> {
        let seconds = now() as u64;
        let name = format!("events.out.tfevents.{seconds}.{}.{}", host(), std::process::id());
        let create = || -> Result<Self> {
            std::fs::create_dir_all(folder)?;
            let file = BufWriter::new(File::create(folder.join(name))?);
            let mut events = Self { file, flushed: Instant::now(), broken: false };
            let version = What::FileVersion("brain.Event:2".to_owned());
            events.record(&Event { wall_time: now(), step: 0, what: Some(version) })?;
            if first_step > 0 {
                let start = What::SessionLog(SessionLog { status: SESSION_START });
                events.record(&Event { wall_time: now(), step: first_step as i64, what: Some(start) })?;
            }
            events.file.flush()?;
            Ok(events)
        };
        create().with_context(|| format!("write TensorBoard events into {}", folder.display()))
    }

    /// Writes scalars of one step; after a write that failed, nothing any more.
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) {
        let value =
            |(tag, value): &(&str, f64)| Value { tag: (*tag).to_owned(), simple_value: Some(*value as f32) };
        let summary = Summary { value: scalars.iter().map(value).collect() };
        let event = Event { wall_time: now(), step: step as i64, what: Some(What::Summary(summary)) };
        if self.broken {
            return;
        }
        let written = self.record(&event).and_then(|()| match self.flushed.elapsed() > FLUSH_EVERY {
            true => self.flush(),
            false => Ok(()),
        });
        if let Err(error) = written {
            tracing::warn!("TensorBoard events are no longer written: {error}");
            self.broken = true;
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.flushed = Instant::now();
        self.file.flush()
    }

    fn record(&mut self, event: &Event) -> std::io::Result<()> {
        self.file.write_all(&frame(&event.encode_to_vec()))
    }
}

/// A TFRecord.
fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut frame = Vec::with_capacity(data.len() + 16);
    frame.extend_from_slice(&length);
    frame.extend_from_slice(&masked_crc(&length).to_le_bytes());
    frame.extend_from_slice(data);
    frame.extend_from_slice(&masked_crc(data).to_le_bytes());
    frame
}

/// Rotated and shifted, so that the CRC of data that holds CRCs is still good.
fn masked_crc(data: &[u8]) -> u32 {
    let crc = crc_fast::checksum(Crc32Iscsi, data) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[expect(clippy::disallowed_methods, reason = "TensorBoard's events bear the time of day")]
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "host".to_owned() } else { name }
}

/// `SessionLog.START`.
const SESSION_START: i32 = 1;

/// tensorflow/core/util/event.proto
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// tensorflow/core/framework/summary.proto
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_framed_as_tensorflow_does() {
        // The CRC-32C of "123456789" is the check value that everyone publishes.
        assert_eq!(crc_fast::checksum(Crc32Iscsi, b"123456789"), 0xe306_9283);
        let framed = frame(b"abc");
        assert_eq!(
            (framed.len(), &framed[..8], &framed[12..15]),
            (19, &[3, 0, 0, 0, 0, 0, 0, 0][..], &b"abc"[..])
        );
    }

    #[test]
    fn a_file_holds_what_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = Events::create(&folder.path().join("runs"), 7).unwrap();
        events.scalars(7, &[("loss", 0.5), ("lr", 0.1)]);
        drop(events);
        let file = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
        assert!(file.file_name().unwrap().to_string_lossy().starts_with("events.out.tfevents."));
        let bytes = std::fs::read(file).unwrap();
        let (mut rest, mut all) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let data = &rest[12..12 + length];
            assert_eq!(rest[..16 + length], frame(data));
            all.push(Event::decode(data).unwrap());
            rest = &rest[16 + length..];
        }
        assert_eq!(all[0].what, Some(What::FileVersion("brain.Event:2".into())));
        assert_eq!((all[1].step, all[1].what.clone()), (7, Some(What::SessionLog(SessionLog { status: 1 }))));
        let Some(What::Summary(summary)) = &all[2].what else { panic!("{all:?}") };
        assert_eq!((summary.value[1].tag.as_str(), summary.value[1].simple_value), ("lr", Some(0.1)));
        assert!(Events::create(Path::new("/dev/null/x"), 0).is_err());
    }
}
