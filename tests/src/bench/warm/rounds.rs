//! The rounds: every floor and every subject once in each, and before and after each subject its own floor:
//! one TCP connection, or a copy in memory for what comes through shared memory. A machine that is shared
//! changes its speed within seconds, so a subject is compared with the two beside it.

use super::floor::{FILE, FloorKind, FloorRead, PIECE};
use super::price;
use super::rank::MEASURED_EPOCH;
use super::shape::{Shape, Stored};
use super::subject::{OF_ONE_RANK, Subject, SubjectRead};
use crate::bench::stages::runtime;
use crate::harness::check::Findings;
use crate::harness::process::{Server, ServerOptions};
use crate::harness::reader::planned_digest;
use crate::harness::report::Row;
use crate::harness::s3::S3Server;
use anyhow::Context;
use fastrand::Rng;
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::digest::OrderDigest;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the unit of a speed over that of a floor begins with; the floor's name follows.
pub const RATIO: &str = "of floor.";

/// How large the measurement is.
#[derive(Debug, Clone)]
pub struct Settings {
    pub subjects: Vec<Subject>,
    /// Those of them that are measured with the content digest too.
    pub verified: Vec<Subject>,
    pub rounds: u32,
    pub scale: f64,
}

impl Settings {
    /// The shapes of the subjects.
    pub fn shapes(&self) -> Vec<Shape> {
        let mut shapes: Vec<Shape> = self.subjects.iter().map(|subject| subject.shape).collect();
        shapes.dedup();
        shapes
    }
}

/// Data in an object store, and a node that has read it.
struct WarmStage {
    /// Dropped before the object store that it reads.
    node: Server,
    s3: S3Server,
    data: Vec<Stored>,
    /// What floors read.
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// The measurements of a subject, one of each round.
struct Measured {
    subject: Subject,
    planned: OrderDigest,
    reads: Vec<SubjectRead>,
    /// MB/s of its floor beside each: the mean of before and after.
    floor: Vec<f64>,
    /// With the content digest, one of each round, if that is measured.
    verified: Option<Vec<SubjectRead>>,
}

/// Runs it.
pub fn run(settings: &Settings) -> anyhow::Result<Findings> {
    let began = Instant::now();
    let stage = WarmStage::new(settings)?;
    let mut found = Findings::default();
    let mut subjects = stage.subjects(settings, &mut found)?;
    stage.warm(&subjects)?;
    println!("  data made and read once: {:.0} s", began.elapsed().as_secs_f64());
    let mut floors: Vec<(FloorKind, Vec<FloorRead>)> =
        FloorKind::of_round(&settings.shapes()).into_iter().map(|floor| (floor, Vec::new())).collect();
    let mut tcp = Vec::new();
    for round in 1..=settings.rounds {
        let began = Instant::now();
        for (floor, reads) in &mut floors {
            reads.push(floor.measure(&stage.file).with_context(|| floor.name())?);
        }
        stage.round(&mut subjects, &mut tcp)?;
        println!("  round {round} of {}: {:.0} s", settings.rounds, began.elapsed().as_secs_f64());
    }
    floors.insert(0, (FloorKind::Tcp, tcp));
    stage.node.try_stop()?;
    print_table(&subjects);
    floors.iter().for_each(|(floor, reads)| add_floor(&mut found, *floor, reads));
    for measured in &subjects {
        measured.add_rows(&mut found, &subjects);
        measured.judge(&mut found, &subjects, settings.scale);
        if let Some(verified) = &measured.verified {
            price::add(&mut found, measured.subject, &measured.reads, verified, settings.scale);
        }
    }
    Ok(found)
}

impl WarmStage {
    fn new(settings: &Settings) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("floor");
        write_file(&file, settings.scale)?;
        let s3 = S3Server::start();
        let data = settings.shapes().into_iter().map(|shape| shape.upload(&s3, settings.scale));
        let data = data.collect::<Result<_, _>>()?;
        let node = ServerOptions::for_s3(&s3).slow_disk().try_start()?;
        Ok(Self { node, s3, data, file, _folder: folder })
    }

    /// The subjects, each with its plan's digest; and how many segments each dataset has.
    fn subjects(&self, settings: &Settings, found: &mut Findings) -> anyhow::Result<Vec<Measured>> {
        let runtime = runtime()?;
        let access = Access::endpoint(&self.node.endpoint)?;
        let mut measured = Vec::new();
        for data in &self.data {
            let dataset = runtime.block_on(Dataset::open(&access, &DatasetSpec::new(&data.uri)))?;
            let manifest = &dataset.manifest;
            let segments = manifest.segments().len() as f64;
            found.value(format!("data.{:?}.segments", data.shape), "segments", segments);
            for &subject in settings.subjects.iter().filter(|subject| subject.shape == data.shape) {
                let loader = subject.rank(0, &self.node, data).settings();
                let planned = planned_digest(manifest, &loader, MEASURED_EPOCH)?;
                let verified = settings.verified.contains(&subject).then(Vec::new);
                let (reads, floor) = (Vec::new(), Vec::new());
                measured.push(Measured { subject, planned, reads, floor, verified });
            }
        }
        Ok(measured)
    }

    fn data(&self, subject: Subject) -> anyhow::Result<&Stored> {
        self.data.iter().find(|data| data.shape == subject.shape).context("each shape has data")
    }

    /// Fills the node's disk; then nothing is left to be written to it.
    fn warm(&self, subjects: &[Measured]) -> anyhow::Result<()> {
        let mut filled: Vec<Shape> = Vec::new();
        for measured in subjects {
            if !filled.contains(&measured.subject.shape) {
                filled.push(measured.subject.shape);
                self.measure(measured)?;
            }
        }
        rustix::fs::sync();
        Ok(())
    }

    fn measure(&self, measured: &Measured) -> anyhow::Result<SubjectRead> {
        let subject = measured.subject;
        let read = subject.measure(&self.s3, &self.node, self.data(subject)?, measured.planned);
        read.with_context(|| subject.name())
    }

    fn measure_verified(&self, measured: &Measured) -> anyhow::Result<SubjectRead> {
        let (subject, planned) = (measured.subject, measured.planned);
        let read = subject.measure_verified(&self.s3, &self.node, self.data(subject)?, planned);
        read.with_context(|| format!("{} with the content digest", subject.name()))
    }

    /// Each subject once, between two measurements of its floor. One with the content digest follows at once.
    fn round(&self, subjects: &mut [Measured], tcp: &mut Vec<FloorRead>) -> anyhow::Result<()> {
        let mut measure = |floor: FloorKind| {
            let read = floor.measure(&self.file).with_context(|| floor.name())?;
            tcp.extend((floor == FloorKind::Tcp).then_some(read));
            anyhow::Ok(read)
        };
        let mut last: Option<(FloorKind, FloorRead)> = None;
        for measured in subjects {
            let floor = measured.subject.transport.floor();
            let before = match last {
                Some((kind, read)) if kind == floor => read,
                _ => measure(floor)?,
            };
            measured.reads.push(self.measure(measured)?);
            let after = measure(floor)?;
            measured.floor.push((before.mb_per_s + after.mb_per_s) / 2.0);
            last = Some((floor, after));
            if measured.verified.is_some() {
                let read = self.measure_verified(measured)?;
                measured.verified.get_or_insert_default().push(read);
                // The next subject's floor must be measured right before it.
                last = None;
            }
        }
        Ok(())
    }
}

impl Measured {
    fn all(&self, of: impl Fn(&SubjectRead) -> f64) -> Vec<f64> {
        self.reads.iter().map(of).collect()
    }

    /// The speed over that of its floor, round by round.
    fn ratio(&self) -> Row {
        let ratios: Vec<f64> =
            self.reads.iter().zip(&self.floor).map(|(read, floor)| read.mb_per_s / floor).collect();
        Row::of(self.subject.name(), self.subject.transport.units().0, &ratios)
    }

    fn cpu(&self) -> Row {
        Row::of(self.named("cpu_s_per_gb"), "s/GB", &self.all(SubjectRead::cpu_s_per_gb))
    }

    fn first_batch(&self) -> Row {
        Row::of(self.named("first_batch_ms"), "ms", &self.all(|read| read.first_batch_ms))
    }

    fn named(&self, what: &str) -> String {
        format!("{}.{what}", self.subject.name())
    }

    /// The speed over that of one rank, round by round.
    fn of_one_rank(&self, alone: &Self) -> Row {
        let pairs = self.reads.iter().zip(&alone.reads);
        let ratios: Vec<f64> = pairs.map(|(all, one)| all.mb_per_s / one.mb_per_s).collect();
        Row::of(self.named("of_one_rank"), "ratio", &ratios)
    }

    fn add_rows(&self, found: &mut Findings, subjects: &[Self]) {
        let row = |what, unit, of: fn(&SubjectRead) -> f64| Row::of(self.named(what), unit, &self.all(of));
        let floor = Row::of("", "", &self.floor).value;
        found.rows.extend([
            self.ratio(),
            row("mb_per_s", "MB/s", |read| read.mb_per_s).against(self.subject.transport.units().1, floor),
            row("rows_per_s", "rows/s", |read| read.rows_per_s),
            self.cpu(),
            row("node_cpu_s_per_gb", "s/GB", |read| read.node_cpu_s_per_gb),
            row("client_cpu_s_per_gb", "s/GB", |read| read.client_cpu_s_per_gb),
            self.first_batch(),
        ]);
        if let Some(alone) = self.alone(subjects) {
            found.rows.push(self.of_one_rank(alone));
        }
    }

    /// The same with one rank, if this one has several.
    fn alone<'a>(&self, subjects: &'a [Self]) -> Option<&'a Self> {
        let alone = subjects.iter().find(|other| other.subject == self.subject.alone())?;
        (alone.subject != self.subject).then_some(alone)
    }

    fn judge(&self, found: &mut Findings, subjects: &[Self], scale: f64) {
        let mut promises = Vec::new();
        if let Some(target) = self.subject.target() {
            promises.push((self.ratio(), target.ratio, true));
            promises.extend(target.cpu_s_per_gb.map(|most| (self.cpu(), most, false)));
            promises.extend(target.first_batch_ms.map(|most| (self.first_batch(), most, false)));
        }
        promises.extend(self.alone(subjects).map(|alone| (self.of_one_rank(alone), OF_ONE_RANK, true)));
        for (row, bound, at_least) in promises {
            let Row { name, value, unit, .. } = row;
            let side = if at_least { "least" } else { "most" };
            let text = format!("{name} = {value:.2} {unit}, at {side} {bound} wanted");
            match (scale < 1.0, at_least) {
                (true, _) => found.leave_out(text),
                (false, true) => found.check(value >= bound, text),
                (false, false) => found.check(value <= bound, text),
            }
        }
    }
}

fn add_floor(found: &mut Findings, floor: FloorKind, reads: &[FloorRead]) {
    let all = |of: fn(&FloorRead) -> f64| reads.iter().map(of).collect::<Vec<_>>();
    let name = floor.name();
    found.rows.push(Row::of(format!("{name}.mb_per_s"), "MB/s", &all(|read| read.mb_per_s)));
    found.rows.push(Row::of(format!("{name}.cpu_s_per_gb"), "s/GB", &all(|read| read.cpu_s_per_gb)));
}

/// The main figures, a line for each subject.
fn print_table(subjects: &[Measured]) {
    println!(
        "{:32}{:>8}{:>9}{:>10}{:>8}{:>8}{:>12}",
        "", "MB/s", "of floor", "k rows/s", "node", "client", "first batch"
    );
    for measured in subjects {
        let median = |of: fn(&SubjectRead) -> f64| Row::of("", "", &measured.all(of)).value;
        println!(
            "{:32}{:>8.0}{:>9.2}{:>10.1}{:>8.3}{:>8.3}{:>9.1} ms",
            measured.subject.name(),
            median(|read| read.mb_per_s),
            measured.ratio().value,
            median(|read| read.rows_per_s) / 1e3,
            median(|read| read.node_cpu_s_per_gb),
            median(|read| read.client_cpu_s_per_gb),
            median(|read| read.first_batch_ms),
        );
    }
    println!("{:59}(processor time: s/GB)", "");
}

/// The bytes that floors move.
fn write_file(path: &Path, scale: f64) -> anyhow::Result<()> {
    let (mut file, mut piece, mut dice) = (File::create(path)?, vec![0; PIECE], Rng::with_seed(4));
    dice.fill(&mut piece);
    let pieces = ((FILE / PIECE) as f64 * scale).ceil() as usize;
    Ok((0..pieces).try_for_each(|_| file.write_all(&piece))?)
}
