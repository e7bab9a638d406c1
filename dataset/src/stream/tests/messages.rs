//! What a message holds.

use super::*;

#[tokio::test]
async fn a_message_holds_as_many_small_steps_as_fit() {
    let (made, manifest, schema) = dataset(&[50, 70, 40]);
    let cut =
        Cut { first_position: 0, global_batch: 8, world: 1, ending: Ending::Exact, layout: Layout::Segment };
    let ask = ticket(&manifest, Shuffle::Window(2), cut, 0);
    for (message_bytes, most) in [(1 << 20, 1), (1200, 19)] {
        let budget = StreamBudget { message_bytes, messages: 1, segments_ahead: Some(1) };
        let mut stream = plan(made.clone(), manifest.clone(), &schema, &ask, budget).unwrap();
        let (mut count, mut next) = (0, 0);
        while let Some(message) = stream.messages.recv().await {
            let meta = message.unwrap().meta.unwrap();
            let last = meta.runs.chunks_exact(3).map(|run| meta.first_step + u64::from(run[0])).max();
            assert!(meta.first_step <= next, "no step is left out");
            next = last.unwrap() + 1;
            count += 1;
        }
        assert_eq!(next, 20, "all steps");
        assert!(count <= most, "{message_bytes} bytes: {count} messages of 20 steps");
    }
}

/// An object whose only column is all null is estimated at no bytes, where the others say what the column
/// holds.
#[tokio::test]
async fn rows_that_are_estimated_at_nothing_come_in_messages_that_have_rows() {
    let rows = 70_000;
    let (made, manifest, schema) = dataset(&[rows, 10]);
    let sizes = [(rows, 0), (10, 200)].into_iter().enumerate();
    let size =
        |(i, (rows, decoded_bytes))| SegmentSize { object: i as u32, row_groups: 1, rows, decoded_bytes };
    let sizes: Vec<_> = sizes.map(size).collect();
    let manifest =
        Manifest::new("s3://b/p", 1, manifest.schema().to_vec(), manifest.objects().to_vec(), &sizes);
    let manifest = Arc::new(manifest.unwrap());
    let cut = Cut {
        first_position: 0,
        global_batch: 1000,
        world: 1,
        ending: Ending::Exact,
        layout: Layout::Segment,
    };
    let ask = ticket(&manifest, Shuffle::None, cut, 0);
    let budget = StreamBudget { message_bytes: 1 << 20, messages: 1, segments_ahead: Some(1) };
    let mut stream = plan(made, manifest, &schema, &ask, budget).unwrap();
    let mut came = 0;
    while let Some(message) = stream.messages.recv().await {
        let meta = message.unwrap().meta.unwrap();
        let rows: u64 = meta.runs.chunks_exact(3).map(|run| u64::from(run[2])).sum();
        assert!(rows > 0, "a message without rows after {came}");
        came += rows;
    }
    assert_eq!(came, rows + 10);
}
