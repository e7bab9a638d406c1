//! Tickets with mistakes, sources that break off, readers that leave, and segments that are damaged.

use super::*;
use crate::ready::Verifier;

#[tokio::test]
async fn mistakes_are_named() {
    let (made, manifest, schema) = dataset(&[5]);
    let cut =
        Cut { first_position: 0, global_batch: 4, world: 2, ending: Ending::Pad, layout: Layout::Segment };
    let good = ticket(&manifest, Shuffle::Full, cut, 0);
    let ask = |t: &v1::PlanTicket| plan(made.clone(), manifest.clone(), &schema, t, StreamBudget::default());
    assert!(ask(&good).is_ok());
    for (bad, word) in [
        (v1::PlanTicket { rank: 2, ..good.clone() }, "rank 2 of 2"),
        (v1::PlanTicket { world: 0, ..good.clone() }, "world size 0"),
        (v1::PlanTicket { global_batch: 0, ..good.clone() }, "global batch 0"),
        (v1::PlanTicket { first_position: 6, ..good.clone() }, "sample 6"),
        (v1::PlanTicket { columns: vec!["nope".into()], ..good.clone() }, "nope"),
        (v1::PlanTicket { ending: 9, ..good.clone() }, "ending"),
        (v1::PlanTicket { row_spans: vec![0], ..good.clone() }, "spans of rows"),
        (v1::PlanTicket { row_spans: vec![0, 1 << 23], ..good.clone() }, "that the epoch does not have"),
        (v1::PlanTicket { row_spans: vec![12, 1], ..good.clone() }, "that the epoch does not have"),
        (v1::PlanTicket { row_spans: vec![0, 0], ..good.clone() }, "that the epoch does not have"),
        (v1::PlanTicket { plan: None, ..good.clone() }, "no plan"),
    ] {
        let e = ask(&bad).unwrap_err();
        assert!(e.message.contains(word), "{e}");
    }
    let mut other = good;
    other.plan.as_mut().unwrap().version = 99;
    assert!(ask(&other).unwrap_err().message.contains("plan version 99"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error() {
    struct Broken;
    impl SegmentSource for Broken {
        fn get<'a>(&'a self, _: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
            match segment {
                0 => async { Ok(Arc::new(SegmentBatch::from(batch(0, 5))).into()) }.boxed(),
                _ => panic!("for the test"),
            }
        }
    }
    let (_, manifest, schema) = dataset(&[5, 5]);
    let t = v1::ScanTicket::default();
    let answer = scan(Arc::new(Broken), manifest, &schema, &t, StreamBudget::default()).unwrap();
    assert!(read(answer).await.unwrap_err().message.contains("failed"));
}

#[tokio::test]
async fn a_reader_that_leaves_ends_the_work() {
    let (made, manifest, schema) = dataset(&[1000; 50]);
    let cut =
        Cut { first_position: 0, global_batch: 10, world: 1, ending: Ending::Pad, layout: Layout::Segment };
    let small = StreamBudget { message_bytes: 100, messages: 1, segments_ahead: Some(1) };
    let t = ticket(&manifest, Shuffle::Window(1), cut, 0);
    let mut answer = plan(made.clone(), manifest, &schema, &t, small).unwrap();
    answer.messages.recv().await.unwrap().unwrap();
    drop(answer);
    until("the work goes on", || Arc::strong_count(&made) == 1).await;
    assert!(made.asked.lock().len() < 10, "it read ahead without bound");
}

/// Segments of which every other one got is damaged: its rows are wrong, and it says so when it is asked.
struct Rotting(Arc<Made>);

impl SegmentSource for Rotting {
    fn get<'a>(&'a self, reading: &'a Reading, segment: u32) -> BoxFuture<'a, Result<ReadySegment>> {
        async move {
            let good = self.0.get(reading, segment).await?;
            let asked = self.0.asked.lock().iter().filter(|s| **s == segment).count();
            let batch = match asked % 2 {
                1 => {
                    let wrong = batch(-1_000_000, good.batch.num_rows() as u64);
                    Arc::new(wrong.project(&reading.projection).unwrap().into())
                }
                _ => good.batch,
            };
            Ok(ReadySegment::in_file(batch.clone(), Arc::new(Signs(batch))))
        }
        .boxed()
    }
}

/// Takes negative numbers for damage.
#[derive(Debug)]
struct Signs(Arc<SegmentBatch>);

impl Verifier for Signs {
    fn is_sound(&self) -> bool {
        let batch = self.0.columns().unwrap();
        let ids = batch.column_by_name("id").unwrap();
        arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(ids).value(0) >= 0
    }

    fn is_in_memory(&self, _: &[u8]) -> bool {
        true
    }
}

#[tokio::test]
async fn rows_of_damaged_segments_are_gathered_again() {
    let (made, manifest, schema) = dataset(&[500]);
    let rotting: Arc<dyn SegmentSource> = Arc::new(Rotting(made));
    let ticket = v1::ScanTicket::default();
    let answer = scan(rotting.clone(), manifest.clone(), &schema, &ticket, StreamBudget::default()).unwrap();
    let (rows, _) = read(answer).await.unwrap();
    assert_eq!(rows.iter().map(|r| r.2).collect::<Vec<_>>(), (0..500).collect::<Vec<_>>());
    let ticket = v1::RowsTicket { segment: vec![0, 0], row: vec![7, 3], ..Default::default() };
    // That was an even number of gets: the next one is damaged again.
    let answer = super::rows(rotting, manifest, &schema, &ticket, StreamBudget::default()).unwrap();
    let (rows, _) = read(answer).await.unwrap();
    assert_eq!(rows.iter().map(|r| r.2).collect::<Vec<_>>(), [7, 3]);
}

/// A file of which nothing is in memory.
#[derive(Debug)]
struct Cold;

impl Verifier for Cold {
    fn is_sound(&self) -> bool {
        true
    }

    fn is_in_memory(&self, _: &[u8]) -> bool {
        false
    }
}

#[tokio::test]
async fn lent_bytes_that_left_memory_are_copied_before_they_are_sent() {
    let made = batch(0, 20_000);
    let source = Arc::new(SegmentBatch::from(made.clone()));
    for (lender, is_copied) in [
        (ReadySegment::in_file(source.clone(), Arc::new(Cold)), true),
        (ReadySegment::in_memory(source.clone(), None), false),
    ] {
        let pool = crate::shared::MessagePool::from(crate::pool::Pool::new(0));
        let message = Message::new(&made, v1::MessageMeta::default(), &pool).unwrap();
        let before: Vec<_> = message.body.iter().map(|part| part.as_ptr()).collect();
        let message = Message { lender: Some(lender), ..message }.in_memory().await.unwrap();
        let after: Vec<_> = message.body.iter().map(|part| part.as_ptr()).collect();
        assert_eq!(before != after, is_copied);
        assert_eq!(message.to_record_batch(&made.schema()).unwrap(), made);
    }
}
