//! Cold speed with many requests at once behind connections so slow that two cores keep up with all of them:
//! how much of what the object store gives is taken. The cores decide the rows beside these.

use super::cold::{ColdSettings, directly, through_cache, upload};
use crate::harness::answers::EpochReport;
use crate::harness::check::Findings;
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use crate::harness::slow::{SlowProxy, Slowness};

/// Requests at once, which is the default.
const REQUESTS: usize = 32;

/// What one connection gets.
const CONNECTION_MB_S: f64 = 2.0;

/// Of what all of them together get, so much is taken at least. A process begins with 4 requests and doubles
/// their number round by round, which costs some seconds of these 220 MB.
const TAKEN: f64 = 0.5;

/// Memory of a small node: what one takes by default on a machine of 4 GiB.
const SMALL: [&str; 2] = ["--memory-bytes", "1GiB"];

/// Runs it.
pub fn run(settings: &ColdSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let slowness = Slowness { connection_mb_s: CONNECTION_MB_S, ..Slowness::remote_s3() };
    let proxy = SlowProxy::start(&s3.endpoint, slowness);
    let (stored, rows) = (upload(&s3, settings.objects)?, settings.rows());
    let taken = |epoch: &EpochReport| {
        let bytes_per_s = epoch.samples_per_s / rows as f64 * stored as f64;
        bytes_per_s / (REQUESTS as f64 * CONNECTION_MB_S * 1e6)
    };
    let (mut cache, mut small, mut direct) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.runs {
        cache.push(taken(&through_cache(&s3, &proxy, rows, REQUESTS, &[])?.0));
        small.push(taken(&through_cache(&s3, &proxy, rows, REQUESTS, &SMALL)?.0));
        direct.push(taken(&directly(&s3, &proxy, rows, REQUESTS)?));
    }
    let direct = Row::of("cold_narrow_direct_s3_taken", "of what S3 gives", &direct);
    let row =
        Row::of("cold_narrow_s3_taken", "of what S3 gives", &cache).against("our direct mode", direct.value);
    let mut found = Findings::default();
    found.check(row.value >= TAKEN, format!("{} = {:.2}, at least {TAKEN} wanted", row.name, row.value));
    let small = Row::of("cold_narrow_1gib_s3_taken", "of what S3 gives", &small);
    found.rows.extend([row, small, direct]);
    Ok(found)
}
