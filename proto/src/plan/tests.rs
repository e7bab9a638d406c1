//! The order against a brute-force reference, golden values, and its statistics.

use super::key::derive;
use super::permute::{Permutation, SplitMix64};
use super::steps::{Cut, Ending, Layout, RANK_BATCH_MAX, Slot, Steps, runs};
use super::*;
use crate::digest::OrderDigest;
use crate::manifest::Digest;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;

fn order(rows: &[u64], seed: u64, epoch: u64, shuffle: Shuffle) -> Order {
    Order::of_segments(rows, PlanKey { manifest: Digest(1), seed, epoch, shuffle })
}

fn all(order: &Order) -> Vec<Sample> {
    let mut out = vec![Sample { segment: 0, row: 0 }; order.len() as usize];
    order.fill(0, &mut out);
    out
}

/// The text of the module, followed literally: permute segments, cut windows, list rows, permute them,
/// concatenate.
fn reference(rows: &[u64], key: &PlanKey) -> Vec<Sample> {
    let mut seq: Vec<u32> = (0..rows.len() as u32).collect();
    let mut random = SplitMix64(derive(key, 0, 0));
    if key.shuffle != Shuffle::None {
        for i in (1..seq.len()).rev() {
            let j = ((u128::from(random.next()) * (i as u128 + 1)) >> 64) as usize;
            seq.swap(i, j);
        }
    }
    let window = match key.shuffle {
        Shuffle::Window(w) => w as usize,
        _ => seq.len().max(1),
    };
    let mut out = vec![];
    for (k, segments) in seq.chunks(window).enumerate() {
        let listed: Vec<Sample> = segments
            .iter()
            .flat_map(|&segment| (0..rows[segment as usize] as u32).map(move |row| Sample { segment, row }))
            .collect();
        match key.shuffle {
            Shuffle::None => out.extend(listed),
            _ => {
                let p = Permutation::new(listed.len() as u64, derive(key, 1, k as u64));
                out.extend((0..listed.len() as u64).map(|x| listed[p.apply(x) as usize]));
            }
        }
    }
    out
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![Just(Shuffle::None), (1u32..12).prop_map(Shuffle::Window), Just(Shuffle::Full)]
}

/// Every position lies in a span of its segment, and no span reaches further than a window.
fn check_spans(o: &Order, all: &[Sample]) {
    let spans = o.spans();
    assert!(spans.windows(2).all(|w| w[0].1.start <= w[1].1.start));
    assert!(spans.iter().all(|(_, s)| s.start < s.end && s.end <= o.len()));
    for (position, sample) in all.iter().enumerate() {
        let own = spans.iter().filter(|(segment, _)| *segment == sample.segment);
        assert!(own.into_iter().any(|(_, s)| s.contains(&(position as u64))), "position {position}");
    }
}

/// Positions that a seed names are read from the segments whose spans they touch, and no others.
fn check_segments_within(o: &Order, all: &[Sample], seed: u64) {
    let from = seed % o.len();
    let to = from + 1 + (seed >> 32) % (o.len() - from);
    let within: BTreeSet<u32> = o.segments_within(from..to).unwrap().into_iter().collect();
    let spans = o.spans().into_iter().filter(|(_, span)| span.start < to && from < span.end);
    assert_eq!(within, spans.map(|(segment, _)| segment).collect());
    let samples = &all[from as usize..to as usize];
    assert!(samples.iter().all(|sample| within.contains(&sample.segment)), "positions {from} to {to}");
}

proptest! {
    #[test]
    fn follows_the_reference(
        rows in prop::collection::vec(1u64..60, 1..25), seed: u64, epoch in 0u64..5, shuffle in shuffles(),
    ) {
        let o = order(&rows, seed, epoch, shuffle);
        let want = reference(&rows, o.key());
        prop_assert_eq!(&all(&o), &want);
        check_spans(&o, &want);
        check_segments_within(&o, &want, seed);
        let set: BTreeSet<_> = want.iter().collect();
        prop_assert_eq!(set.len() as u64, rows.iter().sum::<u64>(), "each epoch is a permutation");
        for p in [0, o.len() / 2, o.len() - 1] {
            prop_assert_eq!(o.at(p), Some(want[p as usize]));
            let touched: BTreeSet<u32> = o.segments_from(p).into_iter().collect();
            prop_assert!(want[p as usize..].iter().all(|s| touched.contains(&s.segment)));
        }
        prop_assert_eq!(o.at(o.len()), None);
    }

    #[test]
    fn permutations_are_bijections(n in 1u64..3000, key: u64) {
        let p = Permutation::new(n, key);
        let image: BTreeSet<u64> = (0..n).map(|x| p.apply(x)).collect();
        prop_assert_eq!(image.len() as u64, n);
        prop_assert!(image.iter().all(|&y| y < n));
        let first = key % n;
        let mut run = vec![0; (n - first) as usize];
        p.apply_all(first, &mut run);
        prop_assert!(run.iter().enumerate().all(|(i, &y)| y == p.apply(first + i as u64)));
    }

    #[test]
    fn digests_do_not_depend_on_ranks(
        rows in prop::collection::vec(1u64..60, 1..12), seed: u64, shuffle in shuffles(), first in 0u64..100,
        ending in prop_oneof![Just(Ending::Pad), Just(Ending::Exact), Just(Ending::Drop)],
        layout in prop_oneof![Just(Layout::Segment), Just(Layout::Position)],
    ) {
        let o = order(&rows, seed, 0, shuffle);
        let first_position = first.min(o.len());
        let starts: Vec<u64> = rows.iter().scan(0, |t, r| { *t += r; Some(*t - r) }).collect();
        let digest = |world: u32| {
            let cut = Cut { first_position, global_batch: 48, world, ending, layout };
            let steps = Steps::new(&o, cut).unwrap();
            let (mut digest, mut real, mut slots) = (OrderDigest::default(), 0, Vec::new());
            for step in 0..steps.count() {
                let counts: BTreeSet<usize> = (0..world).map(|rank| {
                    steps.batch(step, rank, &mut slots);
                    digest.merge(steps.digest(&slots, |s| starts[s as usize]));
                    real += slots.iter().filter(|s| steps.is_real(s)).count() as u64;
                    assert_eq!(runs(&slots).map(|r| r.rows as usize).sum::<usize>(), slots.len());
                    slots.len()
                }).collect();
                assert_eq!(counts.len(), 1, "all ranks have equally many slots");
            }
            (digest, real)
        };
        let one = digest(1);
        let left = o.len() - first_position;
        prop_assert_eq!(one.1, if ending == Ending::Drop { left / 48 * 48 } else { left });
        for world in [2, 3, 4, 6, 8, 16] {
            prop_assert_eq!(digest(world), one, "world {}", world);
        }
    }
}

#[test]
fn golden_order() {
    // What version 1 yields, pinned: a change here breaks every run's resume and needs a new plan version.
    let o = order(&[5, 3, 4, 6], 7, 2, Shuffle::Window(2));
    let got: Vec<_> = all(&o).iter().map(|s| (s.segment, s.row)).collect();
    assert_eq!(got, GOLDEN_WINDOW);
    let p = Permutation::new(1_000_003, 12345);
    assert_eq!([0, 1, 2, 999_999].map(|x| p.apply(x)), GOLDEN_PERMUTATION);
}

const GOLDEN_WINDOW: [(u32, u32); 18] = [
    (0, 3),
    (1, 1),
    (0, 2),
    (0, 1),
    (1, 2),
    (0, 0),
    (1, 0),
    (0, 4),
    (3, 0),
    (3, 2),
    (2, 3),
    (3, 3),
    (2, 2),
    (3, 1),
    (3, 5),
    (3, 4),
    (2, 1),
    (2, 0),
];
const GOLDEN_PERMUTATION: [u64; 4] = [268746, 304989, 437837, 956122];

#[test]
fn seeds_and_epochs_differ() {
    let rows = [100u64; 20];
    let base = all(&order(&rows, 1, 0, Shuffle::Window(4)));
    for (seed, epoch, shuffle) in [
        (2, 0, Shuffle::Window(4)),
        (1, 1, Shuffle::Window(4)),
        (1, 0, Shuffle::Window(5)),
        (1, 0, Shuffle::Full),
    ] {
        let other = all(&order(&rows, seed, epoch, shuffle));
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 40, "{same} of 2000 places agree for {seed} {epoch} {shuffle}");
    }
}

#[test]
fn permutations_look_uniform() {
    // Each (x, P(x)) pair of a small domain over many keys: chi-square within 5 sigma of its expectation.
    for n in [7u64, 16, 30] {
        let keys = 20_000u64;
        let mut count = vec![0f64; (n * n) as usize];
        let mut random = SplitMix64(n);
        for _ in 0..keys {
            let p = Permutation::new(n, random.next());
            (0..n).for_each(|x| count[(x * n + p.apply(x)) as usize] += 1.0);
        }
        let expected = keys as f64 / n as f64;
        let chi: f64 = count.iter().map(|c| (c - expected) * (c - expected) / expected).sum();
        let freedom = ((n - 1) * (n - 1)) as f64;
        assert!(
            (chi - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(),
            "n {n}: chi-square {chi}, expected {freedom}"
        );
    }
}

#[test]
fn mean_displacement_is_uniform() {
    // |x - P(x)| of a uniform permutation is n/3 on average.
    let n = 200_000u64;
    let p = Permutation::new(n, 99);
    let mean = (0..n).map(|x| x.abs_diff(p.apply(x)) as f64).sum::<f64>() / n as f64;
    assert!((mean / (n as f64 / 3.0) - 1.0).abs() < 0.01, "{mean}");
}

#[test]
fn layout_groups_by_segment_and_keeps_positions() {
    let o = order(&[50, 50, 50], 3, 0, Shuffle::Full);
    let cut =
        Cut { first_position: 10, global_batch: 20, world: 2, ending: Ending::Pad, layout: Layout::Segment };
    let mut slots = vec![];
    Steps::new(&o, cut).unwrap().batch(2, 1, &mut slots);
    let key = |s: &Slot| (s.sample.segment, s.position);
    assert!(slots.is_sorted_by_key(key));
    assert!(slots.iter().all(|s| (60..70).contains(&s.position) && o.at(s.position) == Some(s.sample)));
}

#[test]
fn the_layout_of_many_segments_is_by_segment_too() {
    // More than a byte counts, and more than two.
    for segments in [1, 2, 255, 256, 257, 70_000] {
        let o = order(&vec![3; segments], 3, 0, Shuffle::Full);
        let cut = Cut {
            first_position: 0,
            global_batch: 500,
            world: 1,
            ending: Ending::Pad,
            layout: Layout::Segment,
        };
        let (mut slots, mut wanted) = (vec![], vec![]);
        Steps::new(&o, cut).unwrap().batch(0, 0, &mut slots);
        Steps::new(&o, Cut { layout: Layout::Position, ..cut }).unwrap().batch(0, 0, &mut wanted);
        wanted.sort_by_key(|s| s.sample.segment);
        assert_eq!(slots, wanted, "{segments} segments");
    }
}

#[test]
fn padding_wraps_and_is_not_counted() {
    let o = order(&[3], 0, 0, Shuffle::None);
    let cut =
        Cut { first_position: 0, global_batch: 8, world: 2, ending: Ending::Pad, layout: Layout::Position };
    let steps = Steps::new(&o, cut).unwrap();
    let mut slots = vec![];
    steps.batch(0, 1, &mut slots);
    assert_eq!(slots.iter().map(|s| s.sample.row).collect::<Vec<_>>(), [1, 2, 0, 1]);
    assert!(slots.iter().all(|s| !steps.is_real(s)));
    assert_eq!(steps.digest(&slots, |_| 0), OrderDigest::default());
}

#[test]
fn bad_cuts_say_what_fits() {
    let cut =
        Cut { first_position: 0, global_batch: 50, world: 4, ending: Ending::Pad, layout: Layout::Segment };
    assert_eq!(
        cut.check().unwrap_err().message,
        "global batch 50 cannot be shared equally by 4 ranks: use 48 or 52"
    );
    assert!(Cut { world: 0, ..cut }.check().is_err());
    assert!(Cut { global_batch: 0, ..cut }.check().is_err());
    let o = order(&[5], 0, 0, Shuffle::None);
    assert!(Steps::new(&o, Cut { first_position: 6, world: 1, ..cut }).is_err());
    assert_eq!(Steps::new(&o, Cut { first_position: 5, world: 1, ..cut }).unwrap().count(), 0);
}

#[test]
fn empty_datasets_have_no_steps() {
    let o = order(&[], 0, 0, Shuffle::Full);
    assert!(o.is_empty());
    let cut =
        Cut { first_position: 0, global_batch: 4, world: 1, ending: Ending::Pad, layout: Layout::Segment };
    assert_eq!(Steps::new(&o, cut).unwrap().count(), 0);
    assert!(o.segments_from(0).is_empty());
}

/// The module's text on mixes, followed position by position.
fn mixed_reference(rows: &[Vec<u64>], slots: &[u32], key: &PlanKey) -> Vec<Sample> {
    let block: u64 = slots.iter().map(|&s| u64::from(s)).sum();
    let totals: Vec<u64> = rows.iter().map(|r| r.iter().sum()).collect();
    let blocks = totals.iter().zip(slots).map(|(n, &s)| n / u64::from(s)).min().unwrap().max(1);
    let mut out = vec![];
    for k in 0..blocks {
        let p = Permutation::new(block, derive(key, 2, k));
        for x in 0..block {
            let (mut y, mut d) = (p.apply(x), 0);
            while y >= u64::from(slots[d]) {
                y -= u64::from(slots[d]);
                d += 1;
            }
            let m = (key.epoch * blocks + k) * u64::from(slots[d]) + y;
            let seed = derive(&PlanKey { epoch: 0, ..*key }, 3, d as u64);
            let own = PlanKey { seed, epoch: m / totals[d], ..*key };
            let sample = reference(&rows[d], &own)[(m % totals[d]) as usize];
            let before: usize = rows[..d].iter().map(Vec::len).sum();
            out.push(Sample { segment: sample.segment + before as u32, ..sample });
        }
    }
    out
}

fn mixed(rows: &[Vec<u64>], slots: &[u32], key: PlanKey) -> Order {
    let mut at = 0;
    let parts: Vec<crate::manifest::Part> = rows
        .iter()
        .zip(slots)
        .map(|(r, &slots)| {
            let start = at;
            at += r.len() as u32;
            crate::manifest::Part { uri: String::new(), segments: start..at, rows: r.iter().sum(), slots }
        })
        .collect();
    Order { key, kind: OrderKind::Mix(Mix::new(&rows.concat(), &parts, key)) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn mixes_follow_the_reference(
        rows in prop::collection::vec(prop::collection::vec(1u64..30, 1..6), 2..4),
        slots in prop::collection::vec(1u32..9, 3), seed: u64, epoch in 0u64..4, shuffle in shuffles(),
    ) {
        let slots = &slots[..rows.len()];
        let key = PlanKey { manifest: Digest(1), seed, epoch, shuffle };
        let (o, want) = (mixed(&rows, slots, key), mixed_reference(&rows, slots, &key));
        prop_assert_eq!(o.len(), want.len() as u64);
        prop_assert_eq!(&all(&o), &want);
        check_spans(&o, &want);
        if shuffle == Shuffle::None {
            // A span begins and ends with the blocks of its first and last rows.
            let block: u64 = slots.iter().map(|&s| u64::from(s)).sum();
            for (segment, span) in o.spans() {
                let reads = |mut block: Range<u64>| block.any(|p| want[p as usize].segment == segment);
                prop_assert!(reads(span.start..span.start + block) && reads(span.end - block..span.end));
            }
        }
        for p in [0, o.len() / 3, o.len() - 1] {
            prop_assert_eq!(o.at(p), Some(want[p as usize]));
            let touched: BTreeSet<u32> = o.segments_from(p).into_iter().collect();
            prop_assert!(want[p as usize..].iter().all(|s| touched.contains(&s.segment)));
        }
    }
}

#[test]
fn golden_mix() {
    let key = PlanKey { manifest: Digest(1), seed: 7, epoch: 1, shuffle: Shuffle::Window(2) };
    let got: Vec<_> =
        all(&mixed(&[vec![5, 3], vec![6, 4]], &[2, 1], key)).iter().map(|s| (s.segment, s.row)).collect();
    assert_eq!(got, GOLDEN_MIX);
}

const GOLDEN_MIX: [(u32, u32); 12] =
    [(0, 2), (3, 3), (1, 2), (1, 0), (0, 3), (2, 5), (1, 1), (2, 1), (0, 1), (2, 3), (0, 0), (0, 4)];

#[test]
fn mixes_keep_their_proportions_and_read_every_sample_before_any_again() {
    let rows = vec![vec![40u64, 30], vec![50, 25, 60]];
    let key = |epoch| PlanKey { manifest: Digest(1), seed: 5, epoch, shuffle: Shuffle::Window(2) };
    let mut seen: Vec<Sample> = Vec::new();
    for epoch in 0..4 {
        let o = mixed(&rows, &[7, 3], key(epoch));
        assert_eq!(o.len(), 100, "the first part is read once");
        let samples = all(&o);
        for block in samples.chunks(10) {
            assert_eq!(block.iter().filter(|s| s.segment < 2).count(), 7);
        }
        seen.extend(samples);
    }
    // 4 epochs read 280 of 70 samples of the first part (4 times each), 120 of 135 of the second (once at
    // most).
    let times = |s: &Sample| seen.iter().filter(|t| *t == s).count();
    assert!(seen.iter().filter(|s| s.segment < 2).all(|s| times(s) == 4));
    assert!(seen.iter().filter(|s| s.segment >= 2).all(|s| times(s) == 1));
}

#[test]
fn a_segment_is_touched_up_to_its_last_position() {
    let order = order(&[3, 2], 0, 0, Shuffle::None);
    assert_eq!([0, 2, 3, 4].map(|from| order.segments_from(from).len()), [2, 2, 1, 1]);
    assert!(order.segments_from(5).is_empty());
}

#[test]
fn a_position_may_be_read_from_the_segments_of_a_window() {
    for (shuffle, segments) in [(Shuffle::None, 1), (Shuffle::Window(3), 3), (Shuffle::Full, usize::MAX)] {
        assert_eq!(order(&[3, 2, 4, 1], 0, 0, shuffle).window_segments(), segments, "{shuffle}");
    }
    let key = PlanKey { manifest: Digest(1), seed: 0, epoch: 0, shuffle: Shuffle::Window(3) };
    assert_eq!(mixed(&[vec![3, 2], vec![4]], &[1, 1], key).window_segments(), 6, "of each part");
}

#[test]
fn as_many_samples_as_a_step_may_have_are_allowed() {
    let fits = |global_batch, world| {
        let (ending, layout) = (Ending::Pad, Layout::Segment);
        Cut { first_position: 0, global_batch, world, ending, layout }.check().is_ok()
    };
    let ranks = 1 << 20;
    assert!(fits(1 << 31, ranks));
    assert!(!fits((1 << 31) + u64::from(ranks), ranks) && !fits(1 << 40, ranks));
    assert!(fits(2 * RANK_BATCH_MAX, 2));
    assert!(!fits(2 * RANK_BATCH_MAX + 2, 2) && !fits(4 * RANK_BATCH_MAX, 2));
}

#[test]
fn the_last_exact_step_has_the_slots_of_the_rows_that_are_left() {
    let o = order(&[5, 4], 0, 0, Shuffle::Full);
    let cut =
        Cut { first_position: 0, global_batch: 4, world: 2, ending: Ending::Exact, layout: Layout::Segment };
    let steps = Steps::new(&o, cut).unwrap();
    assert_eq!((0..steps.count()).map(|step| steps.slots(step)).collect::<Vec<_>>(), [2, 2, 1]);
}
