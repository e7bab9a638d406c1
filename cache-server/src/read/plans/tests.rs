//! The registry against brute force: every position of every stream, row by row.

mod measure;

use super::*;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_proto::manifest::{Manifest, Object, SegmentSize};
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::v1;
use proptest::prelude::*;
use std::collections::HashSet;

fn reading(name: &str, rows: &[u64]) -> Reading {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    let ipc = forebay_dataset::schema::to_ipc(&schema).unwrap();
    let object = Object { key: name.into(), etag: "e".into(), size: 1, ..Default::default() };
    let size = |rows: &u64| SegmentSize { object: 0, row_groups: 1, rows: *rows, decoded_bytes: rows * 8 };
    let sizes: Vec<_> = rows.iter().map(size).collect();
    let manifest = Manifest::new("s3://b/d", 1, ipc, vec![object], &sizes).unwrap();
    Reading::new(Arc::new(manifest), &schema, &[]).unwrap()
}

#[derive(Debug, Clone)]
struct Stream {
    rank: u32,
    world: u32,
    epoch: u64,
    first: u64,
    reached: u64,
}

fn announce(plans: &Arc<Plans>, reading: &Reading, ticket: &v1::PlanTicket) -> Result<Announced> {
    plans.announce(reading, &PlanWalk::new(&reading.manifest, ticket, &plans.orders)?)
}

fn ticket(
    reading: &Reading,
    seed: u64,
    shuffle: Shuffle,
    stream: &Stream,
    after: Option<u64>,
) -> v1::PlanTicket {
    let key = PlanKey { manifest: reading.manifest.digest(), seed, epoch: stream.epoch, shuffle };
    v1::PlanTicket {
        plan: Some(key.into()),
        global_batch: u64::from(stream.world),
        first_position: stream.first,
        rank: stream.rank,
        world: stream.world,
        ending: v1::plan_ticket::Ending::Drop.into(),
        epochs_after: after,
        ..Default::default()
    }
}

/// How far off the next window that a segment's rows are read in begins, counted position by position; the
/// epochs after `epoch + 1` are not known.
fn reference(
    reading: &Reading,
    seed: u64,
    shuffle: Shuffle,
    at: (u64, u64),
    last: Option<u64>,
    segment: u32,
) -> Option<u64> {
    let m = &reading.manifest;
    let n = m.rows();
    let mut distance = 0;
    for epoch in at.0..=at.0 + 1 {
        if last.is_some_and(|last| epoch > last) {
            return None;
        }
        let order = Order::new(m, seed, epoch, shuffle);
        // Windows, found by their rows: a window's segments share their first and last possible position.
        let width = match shuffle {
            Shuffle::None => 1,
            Shuffle::Window(w) => w as usize,
            Shuffle::Full => m.segments().len(),
        };
        let mut begin = 0;
        for window in order.segments_from(0).chunks(width) {
            let rows: u64 = window.iter().map(|s| m.segments()[*s as usize].rows).sum();
            let from = if epoch == at.0 { at.1 } else { 0 };
            if begin + rows > from && window.contains(&segment) {
                let really: HashSet<u32> =
                    (begin..begin + rows).map(|p| order.at(p).unwrap().segment).collect();
                assert!(really.contains(&segment));
                return Some(distance + begin.saturating_sub(from));
            }
            begin += rows;
        }
        distance += n - if epoch == at.0 { at.1.min(n) } else { 0 };
    }
    match last {
        Some(last) if at.0 + 2 > last => None,
        _ => Some(distance + n),
    }
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![Just(Shuffle::None), (1u32..4).prop_map(Shuffle::Window), Just(Shuffle::Full)]
}

proptest! {
    #[test]
    fn a_job_needs_what_its_slowest_stream_has_not_passed(
        rows in prop::collection::vec(1u64..20, 1..12), seed in 0u64..50, shuffle in shuffles(), epoch in 0u64..3,
        reached in prop::collection::vec(0u64..140, 1..4), after in prop_oneof![Just(None), (0u64..3).prop_map(Some)],
    ) {
        let plans = Arc::new(Plans::default());
        let reading = reading("o", &rows);
        let n = reading.manifest.rows();
        let world = reached.len() as u32;
        let mut open = Vec::new();
        for (rank, reached) in reached.iter().enumerate() {
            let stream = Stream { rank: rank as u32, world, epoch, first: 0, reached: (*reached).min(n) };
            let announced = announce(&plans, &reading, &ticket(&reading, seed, shuffle, &stream, after)).unwrap();
            announced.reached(stream.reached);
            open.push(announced);
        }
        let slowest = reached.iter().min().unwrap().min(&n);
        let ids: Vec<_> = (0..rows.len() as u32).map(|s| reading.manifest.segment_id(s).unwrap()).collect();
        let want: Vec<_> = (0..rows.len() as u32)
            .map(|s| reference(&reading, seed, shuffle, (epoch, *slowest), after.map(|a| epoch + a), s))
            .map(|d| NextUse::Planned(d.unwrap_or(view::AFTER_THE_RUN)))
            .collect();
        prop_assert_eq!(plans.next_uses(&ids), want);
    }

    #[test]
    fn of_several_jobs_the_nearest_counts(
        rows in prop::collection::vec(1u64..20, 1..12), jobs in prop::collection::vec((0u64..9, shuffles(), 0u64..100), 1..4),
    ) {
        let plans = Arc::new(Plans::default());
        let reading = reading("o", &rows);
        let n = reading.manifest.rows();
        let ids: Vec<_> = (0..rows.len() as u32).map(|s| reading.manifest.segment_id(s).unwrap()).collect();
        let mut want = vec![NextUse::Unplanned; ids.len()];
        let mut open = Vec::new();
        for (i, (seed, shuffle, reached)) in jobs.into_iter().enumerate() {
            // Each job its own seed: equal ones would be one job.
            let seed = seed * 10 + i as u64;
            let stream = Stream { rank: 0, world: 1, epoch: 0, first: reached.min(n - 1), reached: 0 };
            open.push(announce(&plans, &reading, &ticket(&reading, seed, shuffle, &stream, None)).unwrap());
            for (s, want) in want.iter_mut().enumerate() {
                let own = reference(&reading, seed, shuffle, (0, reached.min(n - 1)), None, s as u32).unwrap();
                *want = (*want).min(NextUse::Planned(own));
            }
        }
        prop_assert_eq!(plans.next_uses(&ids), want);
        prop_assert_eq!(plans.next_uses(&[SegmentId(Default::default())]), [NextUse::Unplanned]);
    }
}

/// Ten segments of ten rows in file order.
fn ten() -> (Arc<Plans>, Reading, Vec<SegmentId>) {
    let reading = reading("o", &[10; 10]);
    let ids = (0..10).map(|s| reading.manifest.segment_id(s).unwrap()).collect();
    (Arc::default(), reading, ids)
}

fn stream(rank: u32, world: u32, epoch: u64) -> Stream {
    Stream { rank, world, epoch, first: 0, reached: 0 }
}

#[test]
fn a_rank_between_two_epochs_holds_the_others_up_and_a_run_that_ended_nobody() {
    let (plans, reading, ids) = ten();
    let open = |rank, epoch, after| {
        announce(&plans, &reading, &ticket(&reading, 1, Shuffle::None, &stream(rank, 2, epoch), after))
            .unwrap()
    };
    let (a, b) = (open(0, 0, Some(1)), open(1, 0, Some(1)));
    a.reached(u64::MAX);
    b.reached(50);
    drop(a);
    assert_eq!(plans.next_uses(&ids[5..6]), [NextUse::Planned(0)]);
    b.reached(u64::MAX);
    drop(b);
    // Both are awaited at the last epoch's beginning.
    assert_eq!(plans.next_uses(&ids[..2]), [NextUse::Planned(0), NextUse::Planned(10)]);
    let a = open(0, 1, Some(0));
    a.reached(70);
    assert_eq!(plans.next_uses(&ids[..1]), [NextUse::Planned(0)], "rank 1 has not come yet");
    let b = open(1, 1, Some(0));
    b.reached(60);
    assert_eq!(plans.next_uses(&ids[5..7]), [NextUse::Planned(view::AFTER_THE_RUN), NextUse::Planned(0)]);
    assert_eq!(plans.jobs().len(), 1);
    for last in [a, b] {
        last.reached(u64::MAX);
        drop(last);
    }
    assert!(plans.jobs().is_empty());
    assert_eq!(plans.next_uses(&ids[9..]), [NextUse::Unplanned]);
    assert_eq!(plans.announced.load(Relaxed), 4);
}

#[test]
fn a_stream_that_broke_is_awaited_for_a_while_and_another_world_takes_over_at_once() {
    let (plans, reading, ids) = ten();
    let open = |rank, world| {
        announce(&plans, &reading, &ticket(&reading, 1, Shuffle::None, &stream(rank, world, 0), None))
            .unwrap()
    };
    let (a, b) = (open(0, 2), open(1, 2));
    a.reached(30);
    b.reached(80);
    drop(a);
    assert_eq!(plans.next_uses(&ids[3..4]), [NextUse::Planned(0)]);
    let again = open(0, 1);
    again.reached(40);
    assert_eq!(plans.next_uses(&ids[3..4]), [NextUse::Planned(60 + 30)], "the old rank 0 is no more");
    drop((b, again));
    let mut state = plans.state.lock();
    state.forget(Instant::now());
    assert_eq!(state.jobs.len(), 1);
    state.forget(Instant::now() + job::GRACE);
    assert!(state.jobs.is_empty());
}

#[test]
fn nothing_is_due_for_readers_who_wait_for_leave_alone() {
    let (plans, reading, _) = ten();
    let throttled = Reading { is_throttled: true, ..reading.clone() };
    let ask = |rank| ticket(&reading, 1, Shuffle::None, &stream(rank, 2, 0), None);
    let _slow = announce(&plans, &throttled, &ask(0)).unwrap();
    assert!(plans.due(plans.jobs()[0]).is_none());
    let _other = announce(&plans, &reading, &ask(1)).unwrap();
    let (found, due) = plans.due(plans.jobs()[0]).unwrap();
    assert!(!found.is_throttled && due.len() > 1);
}

#[test]
fn what_is_in_memory_is_stored_for_what_comes_after_its_pass() {
    let (plans, reading, ids) = ten();
    let a = announce(&plans, &reading, &ticket(&reading, 1, Shuffle::None, &stream(0, 1, 0), None)).unwrap();
    a.reached(25);
    let pass = Arc::new(plans.read_span(ids[2]));
    assert!(!pass.is_empty());
    plans.keep_in_memory(ids[2], pass.clone());
    // This job will read it in its next epoch: no better and no worse than all others.
    assert_eq!(plans.next_uses(&ids[2..3]), [NextUse::Planned(75 + 100)]);
    let soon = Stream { first: 15, ..stream(0, 1, 0) };
    let other = announce(&plans, &reading, &ticket(&reading, 2, Shuffle::None, &soon, Some(0))).unwrap();
    assert_eq!(plans.next_uses(&ids[2..4]), [NextUse::Planned(2 * 5), NextUse::Planned(5)]);
    other.reached(u64::MAX);
    drop(other);
    assert!(!plans.is_over(&pass));
    a.reached(30);
    assert!(plans.is_over(&pass));
    plans.left_memory(ids[2]);
    assert_eq!(plans.next_uses(&ids[2..3]), [NextUse::Planned(70 + 20)]);
    let (_, due) = plans.due(plans.jobs()[0]).unwrap();
    assert_eq!(due.iter().map(|d| d.segment).collect::<Vec<_>>(), (3..10).chain(0..10).collect::<Vec<_>>());
    assert_eq!(due.iter().filter(|d| d.is_read).count(), 1);
    // A segment is filled for its next turn, whether a stream has said that it has come there or not.
    let ahead = plans.read_span(ids[6]);
    a.reached(69);
    assert!(!plans.is_over(&ahead));
    a.reached(70);
    assert!(plans.is_over(&ahead) && plans.read_span(SegmentId(Default::default())).is_empty());
}

#[test]
fn ranks_that_have_not_come_yet_are_awaited_where_the_first_began() {
    let (plans, reading, ids) = ten();
    let open = |rank, world| {
        announce(&plans, &reading, &ticket(&reading, 1, Shuffle::None, &stream(rank, world, 0), Some(0)))
            .unwrap()
    };
    let a = open(0, 2);
    a.reached(55);
    assert_eq!(plans.next_uses(&ids[..1]), [NextUse::Planned(0)]);
    let b = open(1, 2);
    b.reached(45);
    assert_eq!(plans.next_uses(&ids[3..5]), [NextUse::Planned(view::AFTER_THE_RUN), NextUse::Planned(0)]);
    a.reached(u64::MAX);
    drop(a);
    assert_eq!(plans.next_uses(&ids[4..5]), [NextUse::Planned(0)]);
    b.reached(60);
    assert_eq!(
        plans.next_uses(&ids[4..5]),
        [NextUse::Planned(view::AFTER_THE_RUN)],
        "the one that ended has come"
    );
    let lone = open(0, 3);
    lone.reached(80);
    assert_eq!(plans.next_uses(&ids[..1]), [NextUse::Planned(0)]);
    plans.state.lock().forget(Instant::now() + std::time::Duration::from_secs(11));
    assert_eq!(plans.next_uses(&ids[..1]), [NextUse::Planned(view::AFTER_THE_RUN)], "enough is enough");
}

#[test]
fn the_rows_that_pad_the_last_step_are_foreseen() {
    let (plans, reading, ids) = ten();
    let mut asked = ticket(&reading, 1, Shuffle::None, &stream(0, 1, 0), Some(0));
    (asked.global_batch, asked.ending) = (64, v1::plan_ticket::Ending::Pad.into());
    let a = announce(&plans, &reading, &asked).unwrap();
    a.reached(64);
    // 28 rows are missing: those of segments 0, 1 and 2.
    let uses = plans.next_uses(&ids[..4]);
    assert_eq!(
        uses,
        [[NextUse::Planned(35); 3].as_slice(), &[NextUse::Planned(view::AFTER_THE_RUN)]].concat()
    );
}

#[test]
fn too_many_segments_are_not_foreseen_but_read() {
    let plans = Arc::new(Plans::default());
    let all = reading("o", &vec![1; BYTES_MAX / (16 + 2 * 32)]);
    let one = reading("other", &[5]);
    let small = announce(&plans, &one, &ticket(&one, 1, Shuffle::None, &stream(0, 1, 0), None)).unwrap();
    let large = announce(&plans, &all, &ticket(&all, 1, Shuffle::None, &stream(0, 1, 0), None)).unwrap();
    large.reached(5);
    assert_eq!(plans.next_uses(&[all.manifest.segment_id(9).unwrap()]), [NextUse::Unplanned]);
    drop(small);
    assert_eq!(plans.jobs().len(), 0);
}

#[test]
fn streams_of_one_job_do_not_make_it_grow_without_bounds() {
    let plans = Arc::new(Plans::default());
    let reading = reading("o", &vec![1; 400_000]);
    let open = |epoch| {
        let wanted = vec![255; 50_000];
        let ticket = ticket(&reading, 1, Shuffle::None, &stream(0, 1, epoch), None);
        announce(&plans, &reading, &v1::PlanTicket { segments: wanted.into(), ..ticket }).unwrap()
    };
    let streams: Vec<_> = (0..15).map(|n| open(10 * n)).collect();
    let state = plans.state.lock();
    let job = state.jobs.values().next().unwrap();
    let (bytes, epochs) = (job.bytes(), job.schedules.len());
    assert!(bytes <= BYTES_MAX && bytes > BYTES_MAX / 2, "{bytes} bytes");
    assert!((10..30).contains(&epochs), "{epochs} epochs are known");
    drop(state);
    assert!(streams.iter().filter(|s| s.job.is_none()).count() > 2);
}

#[test]
fn a_stream_that_stands_still_costs_no_memory_while_others_of_its_job_go_on() {
    let (plans, reading, ids) = ten();
    let open = |epoch| {
        announce(
            &plans,
            &reading,
            &ticket(&reading, 1, Shuffle::None, &stream(0, 1, epoch), Some(2000 - epoch)),
        )
        .unwrap()
    };
    let still = open(0);
    still.reached(15);
    for epoch in 0..1000 {
        open(epoch).reached(u64::MAX);
    }
    let epochs: Vec<u64> = plans
        .state
        .lock()
        .jobs
        .values()
        .flat_map(|job| job.schedules.keys().copied().collect::<Vec<_>>())
        .collect();
    assert_eq!(epochs, [0, 1, 999, 1000]);
    assert_eq!(plans.next_uses(&ids[..2]), [NextUse::Planned(85), NextUse::Planned(0)]);
}

#[test]
fn what_is_asked_of_a_hundred_thousand_files_is_answered_in_one_go() {
    // An eviction's scan asks for all files at once. Two jobs that read everything, and one that reads
    // something else.
    let rows = vec![100; 100_000];
    let (all, other) = (reading("o", &rows), reading("p", &rows[..1000]));
    let plans = Arc::new(Plans::default());
    let open = |reading: &Reading, seed| {
        announce(&plans, reading, &ticket(reading, seed, Shuffle::Window(16), &stream(0, 1, 0), Some(5)))
            .unwrap()
    };
    let open = [open(&all, 1), open(&all, 2), open(&other, 3)];
    let ids: Vec<_> = (0..100_000).map(|s| all.manifest.segment_id(s).unwrap()).collect();
    let ask = |count: usize| {
        let asked = Instant::now();
        assert!(plans.next_uses(&ids[..count]).iter().all(|next| matches!(next, NextUse::Planned(_))));
        asked.elapsed()
    };
    // By turns: a slow moment meets both.
    let times = (0..5).map(|_| [ask(10_000), ask(100_000)]);
    let [some, whole] = times.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1])]).unwrap();
    println!("next uses of 100,000 segments: {whole:?}; of 10,000: {some:?}");
    assert!(whole < 50 * some, "{whole:?} for ten times as many as took {some:?}");
    drop(open);
}

#[test]
fn a_look_at_what_is_due_takes_no_longer_with_many_ranks() {
    // A limit far above the millisecond that it takes: other tests run beside this one, without optimization.
    let took = measure::looks(1024, 20_000, 20)[0];
    assert!(took < std::time::Duration::from_millis(100), "{took:?}");
}
