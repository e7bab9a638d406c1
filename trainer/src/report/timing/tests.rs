use super::*;
use forebay_c10d::Store;

fn step(parts: [u64; PARTS]) -> StepTimes {
    let parts = parts.map(Duration::from_millis);
    StepTimes { parts, total: parts.iter().sum(), ..Default::default() }
}

#[test]
fn utilisation_is_dlios() {
    let mut ledger = Ledger::default();
    // The first step, a cold start, counts for nothing.
    ledger.add(step([500, 0, 100, 0, 0]));
    for _ in 0..4 {
        ledger.add(step([10, 10, 30, 40, 10]));
    }
    // 4 x 80 ms of computation in 4 x 100 ms.
    let group_timeout = Duration::from_secs(10);
    let group = ProcessGroup::gloo(Store::serve(1, group_timeout).unwrap(), 0, 1, group_timeout).unwrap();
    let times = ledger.merge(&group, Duration::from_millis(1000)).unwrap();
    assert!((times.accelerator_utilisation.unwrap() - 0.8).abs() < 1e-9, "{times:?}");
    assert_eq!((times.ranks[0].backward_ms, times.ranks[0].total_ms), (40.0, 100.0));
    assert_eq!((times.straggler, ledger.waited()), (None, Duration::from_millis(540)));
    // A wait is a wait, in the first step too.
    assert_eq!(times.data_wait_ms_max, 500.0);

    let mut one = Ledger::default();
    one.add(step([1, 1, 1, 1, 1]));
    assert_eq!(one.utilisation(Duration::from_millis(5)), None);
    assert_eq!(Ledger::default().utilisation(Duration::from_millis(5)), None);
}

/// Medians of ranks from their steps, as [`Ledger::merge`] has them of all ranks.
fn medians(ledgers: &[&Ledger]) -> Vec<StepMedians> {
    let all = |ledger: &&Ledger| {
        let mut numbers: Vec<i64> = (0..PARTS).map(|part| ledger.median(|step| step.parts[part])).collect();
        numbers.extend([ledger.median(|step| step.total), 0, 0]);
        numbers.extend((0..PARTS).map(|part| ledger.median(|step| step.own()[part])));
        numbers.extend(ledger.quartiles(|step| step.own().iter().sum()));
        StepMedians::of(&numbers)
    };
    ledgers.iter().map(all).collect()
}

fn exchanging(step: StepTimes, communication: u64, overlap: u64, buffers: u64) -> StepTimes {
    let [communication, overlap, buffers] = [communication, overlap, buffers].map(Duration::from_millis);
    StepTimes { exchange: Exchange { communication, overlap, buffers }, ..step }
}

fn ledger(steps: impl IntoIterator<Item = StepTimes>) -> Ledger {
    let mut ledger = Ledger::default();
    steps.into_iter().for_each(|step| ledger.add(step));
    ledger
}

#[test]
fn a_slow_rank_is_named_with_its_reason() {
    // The fast rank's backward pass waits for the slow one's.
    let fast = ledger([exchanging(step([1, 0, 0, 59, 0]), 52, 2, 0)]);
    let slow = ledger([exchanging(step([51, 0, 0, 9, 0]), 2, 2, 0)]);
    let found = straggler(&medians(&[&fast, &slow, &fast])).unwrap();
    assert_eq!(found, Straggler { rank: 1, part: "data wait", slower_by_ms: 50.0 });
    assert_eq!(straggler(&medians(&[&fast, &fast])), None);
    assert_eq!(straggler(&medians(&[&slow])), None);
    // With buffers it is the forward pass that waits, for rank 0.
    let waiting = ledger([exchanging(step([1, 0, 55, 9, 0]), 2, 2, 50)]);
    let found = straggler(&medians(&[&slow, &waiting])).unwrap();
    assert_eq!(found, Straggler { rank: 0, part: "data wait", slower_by_ms: 50.0 });
}

#[test]
fn what_chance_does_blames_nobody() {
    let steps = |times: [u64; 9]| ledger(times.map(|forward| step([0, 0, forward, 1, 1])));
    let (quick, slower) = ([50, 40, 60, 45, 55, 41, 59, 46, 54], [55, 45, 65, 50, 60, 46, 64, 51, 59]);
    assert_eq!(straggler(&medians(&[&steps(quick), &steps(slower)])), None);
    let found = straggler(&medians(&[&steps(quick), &steps(slower.map(|time| time + 10))])).unwrap();
    assert_eq!((found.rank, found.part), (1, "forward"));
}

#[test]
fn one_slow_pass_blames_nobody() {
    let steps = |first: StepTimes| {
        ledger(std::iter::once(first).chain([exchanging(step([0, 0, 5, 9, 1]), 6, 5, 0); 4]))
    };
    // The first pass of rank 1 takes half a second longer: the others' communication does.
    let waited = steps(exchanging(step([0, 0, 5, 509, 1]), 506, 5, 0));
    let slow = steps(exchanging(step([0, 0, 505, 9, 1]), 6, 5, 0));
    assert_eq!(straggler(&medians(&[&waited, &slow])), None);
}

#[test]
fn what_turns_out_to_be_another_part_is_moved() {
    let mut watch = Stopwatch::start();
    std::thread::sleep(Duration::from_millis(3));
    watch.lap(Part::Backward);
    watch.shift(Part::Backward, Part::Copy, Duration::from_millis(1));
    let times = watch.end();
    assert_eq!(times.of(Part::Copy), Duration::from_millis(1));
    assert!(times.of(Part::Backward) >= Duration::from_millis(2));
    // No more than there is.
    watch.lap(Part::Forward);
    watch.shift(Part::Forward, Part::Copy, Duration::from_secs(900));
    let times = watch.end();
    assert!(times.of(Part::Forward).is_zero() && times.of(Part::Copy) < Duration::from_secs(60));
}

#[test]
fn long_epochs_take_no_more_room_than_short_ones() {
    let mut ledger = Ledger::default();
    for index in 0..100_000 {
        ledger.add(step([0, 0, index / 1000, 0, 0]));
    }
    assert!(ledger.steps.len() < REMEMBERED && ledger.steps.len() > REMEMBERED / 4);
    assert!((ledger.median(|step| step.of(Part::Forward)) / 1_000_000).abs_diff(50) <= 1);
}

#[test]
fn laps_add_up() {
    let mut watch = Stopwatch::start();
    watch.lap(Part::DataWait);
    std::thread::sleep(Duration::from_millis(2));
    watch.lap(Part::Forward);
    watch.skip();
    watch.lap(Part::Forward);
    let times = watch.end();
    assert!(times.of(Part::Forward) >= Duration::from_millis(2));
    assert!(times.compute() + times.of(Part::DataWait) <= times.total);
    assert_eq!(watch.end().of(Part::Forward), Duration::ZERO);
}
