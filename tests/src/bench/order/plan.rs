//! The plan by itself: speed, opening, and the quality of the shuffle.

use crate::harness::check::{Check, Findings};
use crate::harness::report::Row;
use forebay_proto::manifest::Digest;
use forebay_proto::plan::{Order, PlanKey, Sample, Shuffle};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

fn order(rows: &[u64], seed: u64, shuffle: Shuffle) -> Order {
    Order::of_segments(rows, PlanKey { manifest: Digest(7), seed, epoch: 0, shuffle })
}

/// Positions a second with a window of 16: one core keeps ahead of any reader.
const POSITIONS_PER_S: f64 = 50e6;

/// What it may take to open a plan of a million segments.
const OPEN_MS: f64 = 100.0;

/// Measures all of it. Other windows' speeds and the shuffle's quality have no target.
pub fn run() -> Findings {
    let mut rows = speed();
    let checks = judged(&rows);
    rows.extend(quality());
    Findings { rows, checks }
}

fn judged(rows: &[Row]) -> Vec<Check> {
    let check = |row: &Row| match row.name.as_str() {
        "plan_positions_per_s" => {
            let claim = format!("{} = {:.0}, at least {POSITIONS_PER_S:.0}", row.name, row.value);
            Some(Check::of(claim, "", row.value >= POSITIONS_PER_S))
        }
        "plan_open_ms_1m_segments" => {
            let claim = format!("{} = {:.1}, at most {OPEN_MS}", row.name, row.value);
            Some(Check::of(claim, "", row.value <= OPEN_MS))
        }
        _ => None,
    };
    rows.iter().filter_map(check).collect()
}

/// Positions per second on one core, and the time to open a plan over 10 billion rows in 1 million segments.
fn speed() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, shuffle) in [
        ("plan_positions_per_s", Shuffle::Window(16)),
        ("plan_positions_per_s_w64", Shuffle::Window(64)),
        ("plan_positions_per_s_full", Shuffle::Full),
    ] {
        let plan = order(&vec![40_000; 1000], 1, shuffle);
        let mut out = vec![Sample { segment: 0, row: 0 }; 8192];
        let runs: Vec<f64> = (0..9u64)
            .map(|run| {
                let begin = Instant::now();
                for block in 0..1000 {
                    plan.fill((run * 4_000_000 + block * 8192) % 39_000_000, &mut out);
                    black_box(&out);
                }
                8_192_000.0 / begin.elapsed().as_secs_f64()
            })
            .collect();
        rows.push(Row::of(name, "positions/s", &runs));
    }
    let segments = vec![10_000u64; 1_000_000];
    let opens: Vec<f64> = (0..9)
        .map(|seed| {
            let begin = Instant::now();
            black_box(order(&segments, seed, Shuffle::Window(16)).at(9_000_000_000));
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    rows.push(Row::of("plan_open_ms_1m_segments", "ms", &opens));
    rows
}

/// For each window: same-segment pairs within a batch against a uniform shuffle's, and mean displacement
/// against a uniform shuffle's (a third of the dataset). 1.0 is a uniform shuffle.
fn quality() -> Vec<Row> {
    const SEGMENTS: u64 = 256;
    const ROWS: u64 = 4000;
    const BATCH: usize = 256;
    let total = SEGMENTS * ROWS;
    let uniform_pairs = (ROWS - 1) as f64 / (total - 1) as f64;
    let mut rows = Vec::new();
    for (name, shuffle) in [
        ("w1", Shuffle::Window(1)),
        ("w4", Shuffle::Window(4)),
        ("w16", Shuffle::Window(16)),
        ("w64", Shuffle::Window(64)),
        ("full", Shuffle::Full),
    ] {
        let (mut pairs, mut moved) = (Vec::new(), Vec::new());
        for seed in 0..5 {
            let plan = order(&vec![ROWS; SEGMENTS as usize], seed, shuffle);
            let mut out = vec![Sample { segment: 0, row: 0 }; total as usize];
            plan.fill(0, &mut out);
            pairs.push(same_segment_pairs(&out, BATCH) / uniform_pairs);
            let distance = |(p, s): (usize, &Sample)| {
                (p as u64).abs_diff(u64::from(s.segment) * ROWS + u64::from(s.row)) as f64
            };
            moved.push(
                out.iter().enumerate().map(distance).sum::<f64>() / total as f64 / (total as f64 / 3.0),
            );
        }
        rows.push(Row::of(format!("same_segment_pairs_{name}"), "x uniform", &pairs));
        rows.push(Row::of(format!("mean_displacement_{name}"), "x uniform", &moved));
    }
    rows
}

/// The share of pairs within a batch whose samples come from one segment.
fn same_segment_pairs(samples: &[Sample], batch: usize) -> f64 {
    let (mut same, mut all) = (0u64, 0u64);
    for batch in samples.chunks_exact(batch) {
        let mut count: HashMap<u32, u64> = HashMap::new();
        batch.iter().for_each(|s| *count.entry(s.segment).or_default() += 1);
        same += count.values().map(|n| n * (n - 1)).sum::<u64>();
        all += (batch.len() * (batch.len() - 1)) as u64;
    }
    same as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_opening_are_judged_and_nothing_else() {
        let judge = |name: &str, value: f64| {
            let checks = judged(&[Row::of(name, "", &[value])]);
            checks.iter().map(|check| check.passed == Some(true)).collect::<Vec<_>>()
        };
        assert_eq!(
            [judge("plan_positions_per_s", 51e6), judge("plan_positions_per_s", 49e6)],
            [[true], [false]]
        );
        let opening = [judge("plan_open_ms_1m_segments", 99.0), judge("plan_open_ms_1m_segments", 101.0)];
        assert_eq!(opening, [[true], [false]]);
        assert!(judge("plan_positions_per_s_full", 1.0).is_empty());
        assert_eq!(judge("plan_open_ms_1m_segments", f64::NAN), [false]);
    }
}
