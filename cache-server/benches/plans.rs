//! What plans cost a node with 1,024 ranks and 60,000 segments: `look_ms`, a look at what to prefetch, and
//! `order_bytes_per_stream`, the memory of the order that each stream walks. Run by `make bench-order`.

use forebay_server::measure;

const RANKS: u32 = 1024;
const SEGMENTS: u32 = 60_000;

fn main() {
    let before = resident_bytes();
    let walks = measure::walks(RANKS, SEGMENTS);
    let bytes = resident_bytes().saturating_sub(before) / u64::from(RANKS);
    drop(walks);
    let look = measure::look(RANKS, SEGMENTS, 100);
    println!("look_ms {:.3}", look.as_secs_f64() * 1e3);
    println!("order_bytes_per_stream {bytes}");
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}
