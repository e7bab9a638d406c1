//! Packed epochs: the sequences are those of the tokens in the plan's order, by any ranks, over resumes.

use super::world::{World, all_rows};
use crate::dataset::Dataset;
use crate::loader::{Batch, Event, Loader, LoaderSettings, LoaderState, Packing, Shuffle};
use arrow::array::{Array, AsArray, RecordBatch};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::plan::Order;

/// A document by its row, and a token by its number there.
type Token = (u64, u32);

fn lengths(all: &RecordBatch) -> Vec<u32> {
    let lists = all.column_by_name("list").unwrap().as_list::<i32>();
    let length = |row| if lists.is_null(row) { 0 } else { lists.value_length(row) as u32 };
    (0..lists.len()).map(length).collect()
}

/// All tokens of an epoch, cut into sequences.
fn reference(dataset: &Dataset, lengths: &[u32], settings: &LoaderSettings, epoch: u64) -> Vec<Vec<Token>> {
    let order = Order::new(&dataset.manifest, settings.seed, epoch, settings.shuffle);
    let segments = dataset.manifest.segments();
    let rows = (0..order.len()).map(|position| order.at(position).unwrap());
    let rows = rows.map(|sample| segments[sample.segment as usize].first_row + u64::from(sample.row));
    let tokens: Vec<Token> =
        rows.flat_map(|row| (0..lengths[row as usize]).map(move |token| (row, token))).collect();
    tokens.chunks(10).map(<[Token]>::to_vec).collect()
}

fn sequences(batch: &Batch) -> Vec<Vec<Token>> {
    let made = batch.sequences.unwrap();
    assert!(batch.mask.as_ref().is_none_or(|mask| mask.value(0)) || made.skip > 0 || made.tokens == 0);
    let tokens: Vec<Token> = batch
        .sample_ids
        .iter()
        .zip(lengths(&batch.columns))
        .flat_map(|(row, length)| (0..length).map(move |token| (*row, token)))
        .skip(made.skip as usize)
        .take(made.tokens as usize)
        .collect();
    assert_eq!((tokens.len() as u64, made.length), (made.tokens, 10));
    let made_of: Vec<_> = tokens.chunks(10).map(<[Token]>::to_vec).collect();
    assert!(made_of.len() as u64 == made.own && made.own <= made.count);
    made_of
}

/// What some steps of all ranks bring: their sequences, their digests, and the state after them.
async fn read(
    dataset: &Dataset,
    settings: &LoaderSettings,
    world: u32,
    steps: u64,
) -> (Vec<Vec<Token>>, OrderDigest, ContentDigest, LoaderState, u64) {
    let rank = |rank| Loader::start(dataset, LoaderSettings { rank, world, ..settings.clone() }).unwrap();
    let mut ranks: Vec<_> = (0..world).map(rank).collect();
    let epoch = ranks[0].state().key.epoch;
    let count = ranks[0].steps(epoch).min(steps);
    let (mut seen, mut order, mut content) = Default::default();
    let mut rows = 0;
    for _ in 0..count {
        let (mut step, mut of_step) = (Vec::new(), None);
        for loader in &mut ranks {
            let Some(Event::Batch(batch)) = loader.next().await.unwrap() else { panic!("no batch") };
            step.extend(sequences(&batch));
            of_step = Some(batch.sequences.unwrap().all);
            OrderDigest::merge(&mut order, batch.digest);
            ContentDigest::merge(&mut content, batch.content.unwrap());
            rows += batch.real_rows as u64;
        }
        assert_eq!(of_step, Some(step.len() as u64));
        Vec::extend(&mut seen, step);
    }
    let states: Vec<_> = ranks.iter().map(|loader| loader.state_dict()).collect();
    assert!(states.iter().all(|state| *state == states[0]), "all ranks stand at the same place");
    (seen, order, content, ranks[0].state(), rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_ranks_bring_the_same_sequences_over_resumes_too() {
    let world = World::new(&[130, 75, 40]);
    let dataset = world.open().await;
    let all = all_rows(&dataset).await;
    let lengths = lengths(&all);
    for shuffle in [Shuffle::None, Shuffle::Window(2), Shuffle::Full] {
        let packing = Packing::new(10, lengths.clone().into()).unwrap();
        let settings = LoaderSettings {
            seed: 7,
            shuffle,
            global_batch: 6,
            epochs: Some(2),
            pack: Some(packing.clone()),
            content_digest: true,
            ..Default::default()
        };
        let wanted = reference(&dataset, &lengths, &settings, 0);
        assert_eq!(wanted.len() as u64, packing.sequences(&dataset.manifest));
        let whole = read(&dataset, &settings, 1, u64::MAX).await;
        assert_eq!((&whole.0, whole.4), (&wanted, 245));
        for ranks in [2, 3, 6] {
            let other = read(&dataset, &settings, ranks, u64::MAX).await;
            assert_eq!((&other.0, other.1, other.2), (&whole.0, whole.1, whole.2), "{ranks} {shuffle}");
        }
        // Two ranks, then one, then three at another batch, to the end; the state is bytes in between.
        let (mut seen, mut order, mut content) =
            (Vec::new(), OrderDigest::default(), ContentDigest::default());
        let mut settings = settings;
        for (ranks, batch, steps) in [(2, 6, 2), (1, 5, 3), (3, 9, u64::MAX)] {
            settings.global_batch = batch;
            let stretch = read(&dataset, &settings, ranks, steps).await;
            seen.extend(stretch.0);
            order.merge(stretch.1);
            content.merge(stretch.2);
            settings.load_state_dict(&stretch.3.to_bytes()).unwrap();
        }
        assert_eq!((&seen, order, content), (&whole.0, whole.1, whole.2), "{shuffle}");
        // The epoch was complete: its state goes on with the next one.
        let next = read(&dataset, &settings, 3, u64::MAX).await;
        assert_eq!(next.0, reference(&dataset, &lengths, &settings, 1), "{shuffle}");
        assert_ne!((shuffle == Shuffle::None), (next.0 != whole.0));
    }
}

#[tokio::test]
async fn a_state_between_tokens_is_for_runs_that_pack() {
    let world = World::new(&[50]);
    let dataset = world.open().await;
    let lengths = lengths(&all_rows(&dataset).await);
    let pack = Some(Packing::new(10, lengths.into()).unwrap());
    let settings = LoaderSettings { global_batch: 2, pack, epochs: Some(1), ..Default::default() };
    let mut loader = Loader::start(&dataset, settings.clone()).unwrap();
    let Some(Event::Batch(_)) = loader.next().await.unwrap() else { panic!("no batch") };
    let mut plain = LoaderSettings { pack: None, ..settings.clone() };
    plain.load_state_dict(&loader.state_dict()).unwrap();
    let why = Loader::start(&dataset, plain.clone()).unwrap_err().message;
    assert!(why.contains("of a run that packs"), "{why}");
    // A run that did not pack stood between two documents.
    plain.resume = None;
    let resume = Some(Loader::start(&dataset, plain).unwrap().state());
    assert!(Loader::start(&dataset, LoaderSettings { resume, ..settings.clone() }).is_ok());
    let short = Some(Packing::new(10, [3].into()).unwrap());
    let why = Loader::start(&dataset, LoaderSettings { pack: short, ..settings }).unwrap_err().message;
    assert!(why.contains("the lengths of 1 rows are known, of 50"), "{why}");
}
