//! How often a byte leaves the object store: readers of one object at once, on three nodes.

use super::load::get_once;
use super::scale::{RawScale, judge};
use super::stage::{client_of, with_endpoint};
use crate::harness::check::Findings;
use crate::harness::differential::bytes_of;
use crate::harness::ports::free_addresses;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::s3_client::S3Ask;

pub const READERS: usize = 8;

/// Runs it.
pub fn run(scale: &RawScale) -> anyhow::Result<Findings> {
    let (s3, size) = (S3Server::start(), scale.spread_bytes);
    s3.put("spread", bytes_of(1, size));
    let mut ratios = Vec::new();
    for _ in 0..scale.rounds {
        let folder = tempfile::tempdir()?;
        let addresses = free_addresses(3)?;
        let list: Vec<String> =
            addresses.iter().flat_map(|at| ["--cluster-node".to_owned(), format!("http://{at}")]).collect();
        let start = |at: &String| {
            let options = ServerOptions::for_s3(&s3).args(&list).args(["--listen", at.as_str()]);
            with_endpoint(options, folder.path())?.try_start()
        };
        let nodes = addresses.iter().map(start).collect::<anyhow::Result<Vec<Server>>>()?;
        s3.take_log();
        let clients = nodes.iter().map(client_of).collect::<anyhow::Result<Vec<_>>>()?;
        let target = format!("/{}/spread", s3.bucket);
        let read = std::thread::scope(|scope| {
            let one = |n: usize| {
                let (client, target) = (&clients[n % clients.len()], &target);
                scope.spawn(move || get_once(&client.endpoint, &client.sign(&S3Ask::new("GET", target))?))
            };
            let threads: Vec<_> = (0..READERS).map(one).collect();
            let ended =
                threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a panic"))?);
            ended.collect::<anyhow::Result<Vec<u64>>>()
        })?;
        anyhow::ensure!(read.iter().all(|bytes| *bytes == size as u64), "{read:?} bytes");
        let log = s3.take_log();
        let fetched: u64 = log.iter().filter(|seen| seen.is_object_get()).map(|seen| seen.bytes).sum();
        ratios.push(fetched as f64 / size as f64);
        nodes.into_iter().try_for_each(Server::try_stop)?;
    }
    let mut found = Findings::default();
    let row = Row::of("raw_s3_amplification", "ratio", &ratios).against("each byte once", 1.0);
    judge(&mut found, row, None, Some(1.01));
    Ok(found)
}
