//! What the training data says about a model's settings where the flags leave it open: the number of classes,
//! the means that stand for nulls, and the lengths of documents that are to be packed.
//!
//! The first rank reads the columns in question once, in file order, so that the answer does not depend on
//! the number of ranks. The cache keeps what it read.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use arrow::array::{AsArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use forebay_c10d::{ProcessGroup, tensor_from_owner};
use forebay_client::loader::{Ending, Packing, Shuffle};
use forebay_client::{Batch, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use tch::Kind;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::input::numbers::floats;
use crate::input::schema::{top_level, values_of};
use crate::input::tokens;
use crate::model::{self, DataFacts};
use crate::rank::session::Session;

/// Between two words of the first rank while it reads: far less than peers wait for each other.
const TURN: Duration = Duration::from_millis(200);

/// Rows that are looked at together at most, and their bytes, about.
const ROWS: u64 = 16 << 10;
const ROWS_BYTES: u64 = 16 << 20;
/// More classes than this are hardly meant.
const CLASSES_MAX: i64 = 1 << 20;

/// Questions to the data, and the answer so far.
#[derive(Debug, Default)]
struct Survey {
    /// The column of labels, if the number of classes is asked for.
    label: Option<String>,
    /// The largest label.
    last: Option<i64>,
    means: Vec<Mean>,
    lengths: Option<Lengths>,
}

/// How many tokens each row has.
#[derive(Debug)]
struct Lengths {
    column: String,
    rows: Vec<u32>,
}

#[derive(Debug)]
struct Mean {
    column: String,
    sum: f64,
    count: u64,
}

/// What the data says of what the flags leave open. Collective.
pub(super) fn facts(session: &Session, spec: &DatasetSpec, dataset: &Dataset) -> Result<DataFacts> {
    let (args, uri) = (&session.settings.model, dataset.manifest.uri());
    let given = DataFacts { classes: args.classes.unwrap_or(CLASSES_MAX), ..DataFacts::default() };
    let (_, columns) = model::unfilled(args, &given, &dataset.schema, uri)?;
    let mean = |column: &str| Mean { column: column.to_owned(), sum: 0.0, count: 0 };
    let mut survey = Survey {
        label: args.infers_classes().then(|| args.label_column.clone()),
        last: None,
        means: columns.means_wanted(&args.fill).into_iter().map(mean).collect(),
        lengths: args.pack.then(|| Lengths {
            column: args.token_column.clone(),
            rows: vec![0; dataset.manifest.rows() as usize],
        }),
    };
    if survey.label.is_none() && survey.means.is_empty() && survey.lengths.is_none() {
        return Ok(given);
    }
    let reading = match session.env.is_first() {
        true => Some(async { survey.read(session, spec, dataset).await.context(uri.to_owned()) }),
        false => None,
    };
    first_alone(&session.group, &session.runtime, TURN, reading)?;
    let told = match session.env.is_first() {
        true => survey.answer().context(uri.to_owned())?,
        false => vec![0; 1 + survey.means.len()],
    };
    let told = &session.group.all_gather_i64(&told)?[0];
    let means = survey.means.iter().zip(&told[1..]);
    let means: HashMap<_, _> =
        means.map(|(mean, bits)| (mean.column.clone(), f64::from_bits(*bits as u64))).collect();
    for (column, mean) in &means {
        session.say(&format!("nulls of `{column}` are filled with its mean, {mean}"));
    }
    let packing = match survey.lengths {
        Some(lengths) => Some(packing(session, args.context, lengths, dataset).context(uri.to_owned())?),
        None => None,
    };
    match &survey.label {
        Some(label) => {
            session.say(&format!("`{label}` has {} classes", told[0]));
            Ok(DataFacts { classes: told[0], means, packing })
        }
        None => Ok(DataFacts { means, packing, ..given }),
    }
}

/// The lengths that the first rank has read, on all ranks. Collective.
fn packing(session: &Session, context: Option<i64>, lengths: Lengths, dataset: &Dataset) -> Result<Packing> {
    let context = context.and_then(|context| u32::try_from(context).ok());
    let context = context.context("--pack needs a --context")?;
    let mut lengths = lengths.rows;
    if session.env.world > 1 {
        // As signed ones, bit for bit: there is no tensor of the others.
        let shared = lengths.iter().map(|length| *length as i32).collect();
        let count = [lengths.len() as i64];
        let mut shared = tensor_from_owner(Buffer::from_vec::<i32>(shared), &count, Kind::Int)?;
        session.group.broadcast(&mut shared, 0)?;
        let shared = Vec::<i32>::try_from(&shared)?;
        lengths = shared.into_iter().map(|length| length as u32).collect();
    }
    let packing = Packing::new(context, lengths.into())?;
    let manifest = &dataset.manifest;
    let (tokens, sequences) = (packing.tokens(manifest), packing.sequences(manifest));
    let mean = if packing.is_alike(manifest) { "" } else { ", in an epoch of mean length" };
    session.say(&format!("packing: {tokens} tokens make {sequences} sequences of {context}{mean}"));
    Ok(packing)
}

/// Returns on all ranks when the `work` that the first has is done, which may take longer than peers wait for
/// each other: after each `turn` the ranks tell each other that it is not. Collective.
fn first_alone(
    group: &ProcessGroup,
    runtime: &Handle,
    turn: Duration,
    work: Option<impl Future<Output = Result<()>>>,
) -> Result<()> {
    let mut work = work.map(Box::pin);
    loop {
        let done = match &mut work {
            Some(work) => runtime.block_on(async { timeout(turn, work.as_mut()).await }).ok().transpose()?,
            None => None,
        };
        if group.all_gather_i64(&[i64::from(done.is_some())])?[0] == [1] {
            return Ok(());
        }
    }
}

impl Survey {
    async fn read(&mut self, session: &Session, spec: &DatasetSpec, dataset: &Dataset) -> Result<()> {
        let mut asked: Vec<&String> =
            self.label.iter().chain(self.means.iter().map(|mean| &mean.column)).collect();
        // An epoch of a mix does not have all rows of its parts.
        let apart = !spec.mix.is_empty();
        asked.extend(self.lengths.iter().filter(|_| !apart).map(|lengths| &lengths.column));
        if !asked.is_empty() {
            let mut loader = in_file_order(session, spec, dataset, &asked).await?;
            ensure!(
                loader.dataset().manifest.digest() == dataset.manifest.digest(),
                "it was overwritten just now: start again"
            );
            while let Some(event) = loader.next().await? {
                if let Event::Batch(batch) = event {
                    self.add(&batch.columns)?;
                    self.lengths.as_mut().filter(|_| !apart).map_or(Ok(()), |own| own.add(&batch, 0))?;
                }
            }
        }
        match &mut self.lengths {
            Some(lengths) if apart => lengths.read_parts(session, spec, dataset).await,
            _ => Ok(()),
        }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if let Some(column) = &self.label {
            let labels = cast(&values_of(batch, column)?, &DataType::Int64)?;
            let last = labels.as_primitive::<Int64Type>().iter().flatten().max();
            self.last = self.last.max(last);
        }
        for mean in &mut self.means {
            let (values, nulls) = floats(&mean.column, &values_of(batch, &mean.column)?)?;
            for (index, value) in values.values().iter().enumerate() {
                if !value.is_nan() && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(index)) {
                    mean.sum += f64::from(*value);
                    mean.count += 1;
                }
            }
        }
        Ok(())
    }

    /// The number of classes, 0 if it was not asked for, and the bits of the means.
    fn answer(&self) -> Result<Vec<i64>> {
        let mut told = vec![0];
        if let Some(column) = &self.label {
            let last = self.last.with_context(|| format!("column `{column}` has no label but nulls"))?;
            let classes = last.saturating_add(1);
            ensure!(
                classes <= CLASSES_MAX,
                "column `{column}` holds the label {last}: if that is no class, choose another --label-column or \
                 --task regression; if it is, say --classes"
            );
            ensure!(
                classes > 1,
                "column `{column}` holds no label above {last}: there is nothing to tell apart; if there are more \
                 classes, say --classes"
            );
            told[0] = classes;
        }
        for Mean { column, sum, count } in &self.means {
            let mean = sum / *count as f64;
            ensure!(
                mean.is_finite(),
                "column `{column}` has no mean, as {}: say a number, as in --fill {column}=0",
                if *count == 0 { "all of it is null" } else { "it holds infinite numbers" }
            );
            told.push(mean.to_bits() as i64);
        }
        Ok(told)
    }
}

impl Lengths {
    /// `first`: the number that row 0 of the batch's dataset has here.
    fn add(&mut self, batch: &Batch, first: u64) -> Result<()> {
        let rows = tokens::lengths(&self.column, &values_of(&batch.columns, &self.column)?)?;
        for (row, length) in batch.sample_ids.iter().zip(rows) {
            self.rows[(first + *row) as usize] = length;
        }
        Ok(())
    }

    /// Reads each part of a mix as a dataset of its own.
    async fn read_parts(&mut self, session: &Session, spec: &DatasetSpec, mix: &Dataset) -> Result<()> {
        let mut first = 0;
        for (named, part) in spec.mix.iter().zip(mix.manifest.parts()) {
            let split = named.split.and_then(|split| split.by);
            let own = DatasetSpec { uri: named.uri.clone(), split, mix: Vec::new(), ..spec.clone() };
            let column = self.column.clone();
            let mut loader = in_file_order(session, &own, mix, &[&column]).await?;
            let manifest = &loader.dataset().manifest;
            let own = (0..manifest.segments().len() as u32).map(|segment| manifest.segment_id(segment).ok());
            let known = part.segments.clone().map(|segment| mix.manifest.segment_id(segment).ok());
            ensure!(own.eq(known), "{}: it was overwritten just now: start again", named.uri);
            while let Some(event) = loader.next().await? {
                if let Event::Batch(batch) = event {
                    self.add(&batch, first)?;
                }
            }
            first += part.rows;
        }
        Ok(())
    }
}

/// A loader of all rows of a dataset, in file order, for the columns of `paths`, which `known` has too.
async fn in_file_order(
    session: &Session,
    spec: &DatasetSpec,
    known: &Dataset,
    paths: &[&String],
) -> Result<Loader> {
    let columns = paths.iter().map(|path| top_level(&known.schema, path).to_owned()).collect();
    let spec = DatasetSpec { columns: Some(columns), ..spec.clone() };
    let settings = LoaderSettings {
        shuffle: Shuffle::None,
        ending: Ending::Exact,
        global_batch: (ROWS_BYTES / row_bytes(known).max(1)).clamp(1, ROWS),
        epochs: Some(1),
        ..LoaderSettings::default()
    };
    let opened = Dataset::open(&session.access, &spec).await?;
    Ok(Loader::start(&opened, settings)?)
}

/// Bytes of a row, about, with all its columns.
fn row_bytes(dataset: &Dataset) -> u64 {
    let segments = dataset.manifest.segments();
    segments.iter().map(|segment| segment.decoded_bytes).sum::<u64>() / dataset.manifest.rows().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, UInt8Array};
    use forebay_c10d::Store;

    fn survey(labels: Vec<Option<u8>>, values: Vec<Option<f64>>) -> Result<Vec<i64>> {
        let mean = Mean { column: "x".to_owned(), sum: 0.0, count: 0 };
        let mut survey = Survey { label: Some("y".to_owned()), last: None, means: vec![mean], lengths: None };
        let x: ArrayRef = Arc::new(Float64Array::from(values));
        let y: ArrayRef = Arc::new(UInt8Array::from(labels));
        let batch = RecordBatch::try_from_iter([("x", x), ("y", y)]).unwrap();
        // In parts, as it comes.
        survey.add(&batch.slice(0, 1))?;
        survey.add(&batch.slice(1, batch.num_rows() - 1))?;
        survey.answer()
    }

    #[test]
    fn the_first_rank_may_read_for_longer_than_its_peers_wait() {
        let patience = Duration::from_secs(3);
        let store = Store::serve(2, patience).unwrap();
        let port = store.port().unwrap();
        let rank = move |rank: usize| {
            let store = Store::tcp("127.0.0.1", port, 2, false, patience).unwrap();
            let group = ProcessGroup::gloo(store, rank, 2, patience).unwrap();
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let reading = (rank == 0).then_some(async move {
                tokio::time::sleep(2 * patience).await;
                Ok(())
            });
            first_alone(&group, runtime.handle(), TURN, reading)
        };
        let ranks = [0, 1].map(|number| std::thread::spawn(move || rank(number)));
        ranks.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    }

    #[test]
    fn classes_are_counted_and_means_leave_out_gaps() {
        let told = survey(vec![Some(1), None, Some(4)], vec![Some(1.0), Some(f64::NAN), Some(2.0)]).unwrap();
        assert_eq!((told[0], f64::from_bits(told[1] as u64)), (5, 1.5));
        let error = |labels, values| survey(labels, values).unwrap_err().to_string();
        let one = Some(1.0);
        assert!(error(vec![Some(0); 2], vec![one; 2]).contains("no label above 0"));
        assert!(error(vec![None; 2], vec![one; 2]).contains("`y` has no label but nulls"));
        assert!(error(vec![Some(1); 2], vec![None; 2]).contains("all of it is null: say a number"));
        assert!(error(vec![Some(1); 2], vec![one, Some(f64::INFINITY)]).contains("infinite numbers"));
    }
}
