//! Objects by a rule, read to their ends by several readers at once, whatever happens to the node meanwhile.
//! Every byte that comes is compared, those of answers that break off too.

use super::load::{exchange, head_of};
use super::timed_part::TimedPart;
use crate::harness::made::MadeObject;
use crate::harness::s3::S3Server;
use crate::harness::s3_client::{S3Ask, S3Client};
use anyhow::Context;
use forebay_client::Access;
use forebay_client::objects::Objects;
use futures::StreamExt;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Objects that are read at once.
const READERS: usize = 4;

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(120);

/// Before it is tried again.
const PAUSE: Duration = Duration::from_millis(20);

const BUFFER_BYTES: usize = 256 << 10;

/// Objects in an object store.
pub struct MadeSet {
    objects: Vec<(String, MadeObject)>,
    pub bytes: u64,
    bucket: String,
}

/// What came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckedBytes {
    pub bytes: u64,
    pub wrong: u64,
}

/// How an object is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawWay {
    /// By the S3 endpoint.
    Endpoint,
    /// By the client library.
    Library,
}

/// A node, in both ways.
pub struct RawReaders<'a> {
    pub endpoint: S3Client,
    pub library: Objects,
    pub runtime: &'a Runtime,
}

impl MadeSet {
    /// Puts `small` objects of each size around a block, and `large` ones of `large_bytes`.
    pub fn put(s3: &S3Server, small: u64, large: u64, large_bytes: u64) -> Self {
        const BLOCK: u64 = 4 << 20;
        let sizes = (0..small).flat_map(|_| [0, 1, BLOCK - 1, BLOCK, BLOCK + 1]);
        let sizes = (0..large).map(|_| large_bytes).chain(sizes);
        let object = |(seed, size): (u64, u64)| {
            let (key, object) = (format!("set/{seed:04}-{size}"), MadeObject { seed, size });
            s3.put_made(&key, object);
            (key, object)
        };
        let objects: Vec<_> = (0..).zip(sizes).map(object).collect();
        let bytes = objects.iter().map(|(_, object)| object.size).sum();
        Self { objects, bytes, bucket: s3.bucket.clone() }
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Blocks of 4 MiB, all in all.
    pub fn blocks(&self) -> u64 {
        self.objects.iter().map(|(_, object)| object.size.div_ceil(4 << 20)).sum()
    }

    /// Reads all objects once, half of them each way; the other half if `turned`.
    pub fn read(
        &self,
        from: &RawReaders<'_>,
        timed: &TimedPart,
        turned: bool,
    ) -> anyhow::Result<CheckedBytes> {
        let way = |n: usize| [RawWay::Endpoint, RawWay::Library][(n + usize::from(turned)) % 2];
        self.read_in_turn(from, timed, |n| (n < self.len()).then(|| (n, way(n))))
    }

    /// Reads objects as `turn` says, by the number of the turn, until it says no more. An error when the part
    /// says that it takes too long.
    pub fn read_in_turn(
        &self,
        from: &RawReaders<'_>,
        timed: &TimedPart,
        turn: impl Fn(usize) -> Option<(usize, RawWay)> + Sync,
    ) -> anyhow::Result<CheckedBytes> {
        let next = AtomicUsize::new(0);
        let reader = || -> anyhow::Result<CheckedBytes> {
            let mut compared = CheckedBytes::default();
            while let Some((n, way)) = turn(next.fetch_add(1, Relaxed)) {
                let (key, object) = &self.objects[n];
                let mut read = Reading::of(object, timed);
                match way {
                    RawWay::Endpoint => read.by_endpoint(&from.endpoint, &format!("/{}/{key}", self.bucket)),
                    RawWay::Library => {
                        let uri = format!("s3://{}/{key}", self.bucket);
                        from.runtime.block_on(read.by_library(&from.library, &uri))
                    }
                }
                .with_context(|| format!("{key} by {way:?}"))?;
                compared.bytes += read.compared.bytes;
                compared.wrong += read.compared.wrong;
            }
            Ok(compared)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
            threads.into_iter().try_fold(CheckedBytes::default(), |sum, thread| {
                let one = thread.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
                Ok(CheckedBytes { bytes: sum.bytes + one.bytes, wrong: sum.wrong + one.wrong })
            })
        })
    }
}

impl<'a> RawReaders<'a> {
    /// Of the node at these addresses.
    pub fn new(endpoint: S3Client, node: &str, runtime: &'a Runtime) -> anyhow::Result<Self> {
        let _entered = runtime.enter();
        Ok(Self { endpoint, library: Objects::new(&Access::endpoint(node)?), runtime })
    }
}

/// An object that is being read.
struct Reading<'a> {
    object: &'a MadeObject,
    timed: &'a TimedPart,
    /// Bytes that have come.
    at: u64,
    compared: CheckedBytes,
    buffer: Vec<u8>,
    /// When the last ones came.
    since: Instant,
}

impl<'a> Reading<'a> {
    fn of(object: &'a MadeObject, timed: &'a TimedPart) -> Self {
        let (compared, buffer, since) = (CheckedBytes::default(), Vec::new(), Instant::now());
        Self { object, timed, at: 0, compared, buffer, since }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.compared.wrong += self.object.wrong_bytes(self.at, bytes, &mut self.buffer);
        self.compared.bytes += bytes.len() as u64;
        self.at += bytes.len() as u64;
        self.timed.add(bytes.len() as u64);
        self.since = Instant::now();
    }

    /// After an attempt: whether all has come. An error if nothing has for too long, or the time is up.
    fn is_over(&self, attempt: anyhow::Result<()>) -> anyhow::Result<bool> {
        self.timed.check()?;
        match attempt {
            Ok(()) => {
                let (at, size) = (self.at, self.object.size);
                anyhow::ensure!(at == size, "an answer was whole with {at} of {size} bytes");
                Ok(true)
            }
            Err(error) if self.since.elapsed() > PATIENCE => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn by_endpoint(&mut self, client: &S3Client, target: &str) -> anyhow::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let attempt = self.ask_endpoint(client, target, &mut buffer);
            if self.is_over(attempt)? {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// One answer, from the first byte that is missing on.
    fn ask_endpoint(&mut self, client: &S3Client, target: &str, buffer: &mut [u8]) -> anyhow::Result<()> {
        use std::io::Write as _;
        if self.at > 0 && self.at == self.object.size {
            return Ok(());
        }
        let mut ask = S3Ask::new("GET", target);
        if self.at > 0 {
            ask = ask.header("range", &format!("bytes={}-", self.at));
        }
        let head = head_of(&client.endpoint, &client.sign(&ask)?);
        let mut stream = TcpStream::connect(client.endpoint.trim_start_matches("http://"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        let deadline = Some(self.timed.deadline());
        let is_whole = exchange(&mut stream, buffer, deadline, |bytes| self.take(bytes))?;
        anyhow::ensure!(is_whole, "the time is up");
        Ok(())
    }

    async fn by_library(&mut self, objects: &Objects, uri: &str) -> anyhow::Result<()> {
        loop {
            let attempt = self.ask_library(objects, uri).await;
            if self.is_over(attempt)? {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask_library(&mut self, objects: &Objects, uri: &str) -> anyhow::Result<()> {
        let version = timeout(PATIENCE, objects.version(uri)).await??;
        let mut pieces = objects.read(&version, self.at..version.size)?;
        while let Some(piece) = timeout(PATIENCE, pieces.next()).await? {
            self.take(&piece?);
            self.timed.check()?;
        }
        Ok(())
    }
}
