//! Batch streams that nobody reads: case 14.

use super::arena::{Arena, SLACK_BYTES, peak_bytes};
use super::bodies::reading;
use crate::harness::check::Check;
use std::time::{Duration, Instant};

/// Streams on one connection.
const EACH: usize = 200;

/// A node that has taken no memory for so long has made what it makes. A slow one takes its time.
const SETTLED: Duration = Duration::from_secs(2);
/// After so long its memory is judged as it is.
const SETTLES: Duration = Duration::from_secs(60);

/// 14: very many good streams whose windows are never opened.
pub fn streams(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut held = Vec::new();
    for first in (0..arena.scale.unread).step_by(EACH) {
        held.push(reading(arena, EACH.min(arena.scale.unread - first) as u32)?);
    }
    // Messages are made as far as memory goes.
    std::thread::sleep(arena.scale.slow.min(Duration::from_secs(20)));
    let (peak, limit) = (settled_peak_bytes(arena.server.pid())?, arena.scale.memory_bytes + SLACK_BYTES);
    let is_well = arena.answers(2);
    drop(held);
    let mb = |bytes: u64| format!("{} MiB", bytes >> 20);
    Ok(vec![
        Check::of(
            format!("{} streams that nobody reads stay below {}", arena.scale.unread, mb(limit)),
            mb(peak),
            peak <= limit,
        ),
        Check::of("others are served", "", is_well),
    ])
}

/// The most memory of a process, once that does not grow any more.
fn settled_peak_bytes(pid: u32) -> anyhow::Result<u64> {
    let (began, mut before) = (Instant::now(), 0);
    loop {
        let peak = peak_bytes(pid)?;
        if peak <= before + (1 << 20) || began.elapsed() >= SETTLES {
            return Ok(peak);
        }
        before = peak;
        std::thread::sleep(SETTLED);
    }
}
