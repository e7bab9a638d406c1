use super::*;
use crate::manifest::{Object, SegmentSize};
use crate::plan::steps::{Ending, Layout, Slot};
use crate::plan::{Sample, Shuffle};
use proptest::prelude::*;

/// A token, by its row in the dataset and its number there.
type Token = (u64, u32);

/// A dataset whose rows have `lengths`, in segments of up to `segment_rows`.
fn manifest(lengths: &[u32], segment_rows: usize) -> Manifest {
    let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
    let size =
        |rows: &[u32]| SegmentSize { object: 0, row_groups: 1, rows: rows.len() as u64, decoded_bytes: 1 };
    let sizes: Vec<_> = lengths.chunks(segment_rows).map(size).collect();
    Manifest::new("s3://b/d", 1, vec![], vec![object], &sizes).unwrap()
}

/// A mix of two datasets, 7 to 3, of the first half of the lengths and of the others.
fn mix(lengths: &[u32], segment_rows: usize) -> Manifest {
    let (first, second) = lengths.split_at(lengths.len() / 2);
    Manifest::mix(&[(manifest(first, segment_rows), 0.7), (manifest(second, segment_rows), 0.3)]).unwrap()
}

fn row(manifest: &Manifest, sample: Sample) -> u64 {
    manifest.segments()[sample.segment as usize].first_row + u64::from(sample.row)
}

/// All tokens of an epoch, one after the other.
fn stream(manifest: &Manifest, order: &Order, lengths: &[u32]) -> Vec<Token> {
    let rows = (0..order.len()).map(|position| row(manifest, order.at(position).unwrap()));
    rows.flat_map(|row| (0..lengths[row as usize]).map(move |token| (row, token))).collect()
}

/// What a rank makes of the rows that a step brings: its tokens, and the rows that count.
fn read(
    manifest: &Manifest,
    lengths: &[u32],
    steps: &Steps<'_>,
    packed: &PackedSteps,
    step: usize,
) -> (Vec<Token>, Vec<u64>) {
    let mut slots: Vec<Slot> = Vec::new();
    steps.batch(step as u64, 0, &mut slots);
    assert_eq!(slots.len() as u64, steps.slots(step as u64));
    let PackedStep { skip, tokens, .. } = packed.steps[step];
    let all = slots.iter().map(|slot| row(manifest, slot.sample));
    let all = all.flat_map(|row| (0..lengths[row as usize]).map(move |token| (row, token)));
    let own = all.skip(skip as usize).take(tokens as usize).collect();
    let real = slots.iter().filter(|slot| steps.is_real(slot)).map(|slot| row(manifest, slot.sample));
    (own, real.collect())
}

proptest! {
    #[test]
    fn sequences_are_the_stream_of_tokens_cut_into_equal_parts(
        lengths in prop::collection::vec(prop_oneof![3 => 0u32..6, 1 => 20u32..60, 1 => Just(0)], 1..70),
        segment_rows in 1usize..20,
        each in 1u32..12,
        shuffle in prop_oneof![Just(Shuffle::None), (1u32..4).prop_map(Shuffle::Window), Just(Shuffle::Full)],
        seed in any::<u64>(),
        stretches in prop::collection::vec((1u32..4, 1u64..4, 0usize..4), 1..5),
        mixed in any::<bool>(),
    ) {
        prop_assume!(lengths.iter().any(|length| *length > 0));
        let mixed = mixed && lengths.len() > 1;
        let manifest = if mixed { mix(&lengths, segment_rows) } else { manifest(&lengths, segment_rows) };
        let order = Order::new(&manifest, seed, 1, shuffle);
        let packing = Packing::new(each, lengths.clone().into()).unwrap();
        let expected = stream(&manifest, &order, &lengths);
        prop_assert!(mixed || packing.tokens(&manifest) == expected.len() as u64);
        prop_assert_eq!(packing.is_alike(&manifest), !mixed);
        prop_assert!(mixed || packing.sequences(&manifest) == expected.len().div_ceil(each as usize) as u64);
        let (mut seen, mut rows) = (Vec::new(), Vec::new());
        let mut at = TokenPlace::default();
        // Each stretch is read by other ranks with another batch, the last one to the end.
        for (index, (world, own, steps)) in stretches.iter().enumerate() {
            let cut = Cut {
                first_position: at.position,
                global_batch: own * u64::from(*world),
                world: *world,
                ending: Ending::Pad,
                layout: Layout::Position,
            };
            let ranks: Vec<_> = (0..*world)
                .map(|rank| packing.cut(&manifest, &order, cut, at.offset, rank).unwrap())
                .collect();
            let count = ranks[0].steps.len();
            let left = expected.len() - seen.len();
            let whole = packing.steps(&manifest, &order, cut.global_batch);
            prop_assert!(ranks.iter().all(|rank| rank.epoch_steps == whole));
            prop_assert!(index > 0 || count as u64 == whole);
            prop_assert_eq!(ranks[0].first_step, seen.len() as u64 / (cut.global_batch * u64::from(each)));
            prop_assert!(left == 0 || count as u64 == (left as u64).div_ceil(cut.global_batch * u64::from(each)));
            let is_last = index + 1 == stretches.len();
            for step in 0..if is_last { count } else { count.min(*steps) } {
                let before = seen.len();
                for rank in &ranks {
                    prop_assert_eq!(rank.steps.len(), count);
                    let wire = RowSpan::from_wire(&RowSpan::to_wire(&rank.spans)).unwrap();
                    prop_assert_eq!(&wire, &rank.spans);
                    RowSpan::check(&wire, &order).unwrap();
                    let steps = Steps::of_spans(&order, cut, &wire).unwrap();
                    let (tokens, real) = read(&manifest, &lengths, &steps, rank, step);
                    prop_assert!(tokens.len() as u64 == rank.steps[step].tokens);
                    prop_assert!(tokens.len() as u64 <= own * u64::from(each));
                    seen.extend(tokens);
                    rows.extend(real);
                    at = rank.steps[step].end;
                    prop_assert_eq!(at, ranks[0].steps[step].end);
                }
                let sequences = (seen.len() - before).div_ceil(each as usize) as u64;
                prop_assert!(ranks.iter().all(|rank| rank.steps[step].sequences == sequences));
            }
        }
        prop_assert_eq!(&seen, &expected);
        prop_assert_eq!(at, TokenPlace { position: order.len(), offset: 0 });
        rows.sort_unstable();
        let mut once: Vec<u64> =
            (0..order.len()).map(|position| row(&manifest, order.at(position).unwrap())).collect();
        once.sort_unstable();
        prop_assert!(mixed || once == (0..lengths.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(rows, once);
    }
}

#[test]
fn epochs_of_a_mix_have_the_mean_of_its_parts_over_time() {
    let lengths: Vec<u32> = (0..100).map(|row| row % 7 + if row < 50 { 0 } else { 30 }).collect();
    let (manifest, packing) = (mix(&lengths, 9), Packing::new(8, lengths.clone().into()).unwrap());
    let of_epoch = |epoch| {
        let order = Order::new(&manifest, 5, epoch, Shuffle::Full);
        assert_eq!(order.len(), 70, "7 blocks of 10");
        stream(&manifest, &order, &lengths).len() as u64
    };
    let epochs: Vec<u64> = (0..100).map(of_epoch).collect();
    assert!(epochs.iter().any(|tokens| *tokens != epochs[0]));
    // 49 of 50 rows of the one part, 21 of 50 of the other: 100 epochs are whole rounds of both.
    assert_eq!(packing.tokens(&manifest), epochs.iter().sum::<u64>() / 100);
    assert!(!packing.is_alike(&manifest));
}

#[test]
fn the_tokens_of_a_long_mix_are_all_counted_once() {
    let lengths: Vec<u32> = (0..15_000).map(|row| row % 5).collect();
    let (manifest, packing) = (mix(&lengths, 1000), Packing::new(8, lengths.clone().into()).unwrap());
    let order = Order::new(&manifest, 5, 1, Shuffle::Window(2));
    let samples = SAMPLES as u64;
    assert!(order.len() > 2 * samples && !order.len().is_multiple_of(samples), "{}", order.len());
    let tokens = stream(&manifest, &order, &lengths).len() as u64;
    assert_eq!(packing.steps(&manifest, &order, 1), tokens.div_ceil(8));
}

#[test]
fn rows_without_tokens_that_are_left_are_a_step() {
    let lengths = [3, 0];
    let (manifest, packing) = (manifest(&lengths, 2), Packing::new(3, lengths.into()).unwrap());
    let order = Order::new(&manifest, 1, 0, Shuffle::None);
    let steps = |first_position| {
        let (ending, layout) = (Ending::Pad, Layout::Position);
        let cut = Cut { first_position, global_batch: 1, world: 1, ending, layout };
        packing.cut(&manifest, &order, cut, 0, 0).unwrap().steps.len()
    };
    assert_eq!([steps(0), steps(1), steps(2)], [1, 1, 0]);
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let why = |packed: Result<Packing>| packed.unwrap_err().message;
    assert!(why(Packing::new(4, [0, 0].into())).contains("no row has a token"));
    assert!(why(Packing::new(0, [1].into())).contains("sequences of 0 tokens"));
    let lengths = [3, 4];
    let (manifest, packing) = (manifest(&lengths, 2), Packing::new(4, lengths.into()).unwrap());
    let order = Order::new(&manifest, 1, 0, Shuffle::None);
    let cut =
        Cut { first_position: 0, global_batch: 2, world: 2, ending: Ending::Pad, layout: Layout::Position };
    let refused =
        |packing: &Packing, offset| packing.cut(&manifest, &order, cut, offset, 0).unwrap_err().message;
    assert_eq!(refused(&packing, 4), "row 0 has no 4 tokens: the state is of other data");
    let other = Packing::new(4, [3, 4, 5].into()).unwrap();
    assert_eq!(refused(&other, 0), "the lengths of 3 rows are known, of 2");
    let late = Cut { first_position: 3, ..cut };
    assert!(packing.cut(&manifest, &order, late, 0, 0).unwrap_err().message.contains("sample 3"));
    // Steps larger than any epoch do not overflow.
    let (large, huge) =
        (Cut { global_batch: 1 << 22, ..cut }, Packing::new(u32::MAX, lengths.into()).unwrap());
    let all = huge.cut(&manifest, &order, large, 0, 0).unwrap();
    assert_eq!((all.steps.len(), all.steps[0].tokens), (1, 7));
    for (first, rows, continued) in [(0, 0, false), (3, 1, false), (2, 1, true), (0, u32::MAX, false)] {
        assert!(RowSpan::check(&[RowSpan { first, rows, continued }], &order).is_err(), "{first} {rows}");
    }
    for wire in [&[1][..], &[u64::MAX, 1, u64::MAX, 1, 9, 1], &[0, 1 << 32]] {
        assert!(RowSpan::from_wire(wire).is_err(), "{wire:?}");
    }
}
