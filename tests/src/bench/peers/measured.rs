//! A subject and its figures.

use super::consumer::{PeerEpoch, PeerEpochs};
use super::peer::Peer;
use super::resume::Resumes;
use super::stage::{PeerStage, in_a_line};
use crate::bench::warm::Shape;
use crate::harness::check::Findings;
use crate::harness::report::Row;

/// A subject with its measurements, one of each round.
pub struct MeasuredPeer {
    pub shape: Shape,
    pub peer: Peer,
    pub reads: Vec<PeerEpochs>,
    resumes: Resumes,
    /// Why there are none.
    pub reason: Option<String>,
}

impl MeasuredPeer {
    /// Not measured yet.
    pub fn new(shape: Shape, peer: Peer) -> Self {
        Self { shape, peer, reads: Vec::new(), resumes: Resumes::default(), reason: None }
    }

    /// Its name in the report.
    pub fn name(&self) -> String {
        format!("peers.{:?}.{}", self.shape, self.peer.name)
    }

    /// Measures it once. A peer that breaks off is left out from then on; our own reader may not break off.
    pub fn measure(&mut self, stage: &PeerStage, found: &mut Findings) -> anyhow::Result<()> {
        let read = match stage.measure(&self.peer, self.shape) {
            Err(error) if self.peer.is_ours() => return Err(error.context(self.name())),
            Err(error) => return self.leave_out(in_a_line(&error)),
            Ok(PeerEpochs { cannot: Some(reason), .. }) => return self.leave_out(reason),
            Ok(read) => read,
        };
        let expected = stage.content(&self.peer, self.shape)?;
        match read.epochs.iter().find(|epoch| epoch.content != expected) {
            None => self.reads.push(read),
            Some(wrong) => {
                let text = format!("{}: {expected:?} expected, {:?} read", self.name(), wrong.content);
                found.check(false, text.clone());
                return self.leave_out(text);
            }
        }
        match self.peer.is_resumed() {
            true => self.resumes.measure(stage, &self.peer, self.shape),
            false => Ok(()),
        }
    }

    fn leave_out(&mut self, reason: String) -> anyhow::Result<()> {
        println!("  {} is left out: {reason}", self.name());
        self.reads.clear();
        self.reason = Some(reason);
        Ok(())
    }

    /// Rows a second of the warm epochs, round by round.
    pub fn rows_per_s(&self) -> Vec<f64> {
        self.warm(|epochs, rows| rows / epochs.iter().map(|epoch| epoch.seconds).sum::<f64>())
    }

    /// Seconds of processor time for a million rows of the warm epochs, round by round.
    pub fn cpu_s_per_m_rows(&self) -> Vec<f64> {
        self.warm(|epochs, rows| 1e6 * epochs.iter().map(|epoch| epoch.cpu_s).sum::<f64>() / rows)
    }

    /// The longer one of the waits for the first batch of a warm epoch, round by round.
    fn first_batch_ms(&self) -> Vec<f64> {
        self.warm(|epochs, _| epochs.iter().map(|epoch| epoch.first_batch_ms).fold(0.0, f64::max))
    }

    /// The consumer's part of the time of the warm epochs, round by round.
    fn consumer_share(&self) -> Vec<f64> {
        self.warm(|epochs, _| {
            let sum = |of: fn(&PeerEpoch) -> f64| epochs.iter().map(of).sum::<f64>();
            sum(|epoch| epoch.consumer_s) / sum(|epoch| epoch.seconds)
        })
    }

    fn warm(&self, of: impl Fn(&[PeerEpoch], f64) -> f64) -> Vec<f64> {
        let warm = self.reads.iter().filter_map(|read| read.epochs.get(1..)).filter(|warm| !warm.is_empty());
        warm.map(|warm| of(warm, warm.iter().map(|epoch| epoch.content.rows as f64).sum())).collect()
    }

    fn first(&self, of: impl Fn(&PeerEpoch) -> f64) -> Vec<f64> {
        self.reads.iter().filter_map(|read| read.epochs.first()).map(of).collect()
    }

    /// Rows a second, processor time of a million rows, and the wait for the first batch, of epoch 1.
    fn epoch1(&self) -> [Vec<f64>; 3] {
        [
            self.first(|epoch| epoch.content.rows as f64 / epoch.seconds),
            self.first(|epoch| 1e6 * epoch.cpu_s / epoch.content.rows as f64),
            self.first(|epoch| epoch.first_batch_ms),
        ]
    }

    fn peak_mb(&self) -> Vec<f64> {
        self.reads.iter().map(|read| read.peak_mb).collect()
    }

    /// What it cannot do here and why, by the names in the report.
    pub fn reasons(&self) -> impl Iterator<Item = (String, String)> {
        let all = self.reason.clone().map(|reason| (self.name(), reason));
        let resume =
            self.resumes.reason().map(|reason| (format!("{}.resume_s", self.name()), reason.to_owned()));
        all.into_iter().chain(resume)
    }

    /// Its figures, or why there are none.
    pub fn add_rows(&self, found: &mut Findings) {
        if let Some(reason) = &self.reason {
            let row = Row::of(format!("{}.rows_per_s", self.name()), "", &[]);
            found.rows.push(Row { unit: format!("not measured: {reason}").into(), ..row });
            return found.leave_out(format!("{}: not measured: {reason}", self.name()));
        }
        let mut add = |what: &str, unit, values: &[f64]| {
            found.rows.push(Row::of(format!("{}.{what}", self.name()), unit, values));
        };
        if self.peer.epochs > 1 {
            add("rows_per_s", "rows/s", &self.rows_per_s());
            add("cpu_s_per_m_rows", "s/M rows", &self.cpu_s_per_m_rows());
            add("first_batch_ms", "ms", &self.first_batch_ms());
            add("consumer_share", "of the time", &self.consumer_share());
        }
        let [speed, cpu, first_batch] = self.epoch1();
        add("epoch1.rows_per_s", "rows/s", &speed);
        add("epoch1.cpu_s_per_m_rows", "s/M rows", &cpu);
        add("epoch1.first_batch_ms", "ms", &first_batch);
        add("peak_mb", "MB", &self.peak_mb());
        if self.peer.is_resumed() {
            self.resumes.add_row(&self.name(), found);
        }
    }
}

/// The main figures, a line for each subject, or why there are none.
pub fn print_table(subjects: &[MeasuredPeer]) {
    let heads = ["rows/s", "CPU s/M", "first ms", "consumer", "rows/s", "CPU s/M", "first ms", "peak MB"];
    println!("{:36}{:>44}{:>33}", "", "epochs 2 and 3", "epoch 1");
    println!("{:36}{}", "", heads.map(|head| format!("{head:>11}")).concat());
    for subject in subjects {
        if let Some(reason) = &subject.reason {
            println!("{:36}  not measured: {reason}", subject.name());
            continue;
        }
        let warm = [
            subject.rows_per_s(),
            subject.cpu_s_per_m_rows(),
            subject.first_batch_ms(),
            subject.consumer_share(),
        ];
        let columns = warm.into_iter().chain(subject.epoch1()).chain([subject.peak_mb()]);
        println!("{:36}{}", subject.name(), columns.map(|values| cell(&values)).collect::<String>());
    }
}

fn cell(values: &[f64]) -> String {
    match Row::of("", "", values).value {
        value if value.is_nan() => format!("{:>11}", "-"),
        value if value < 100.0 => format!("{value:>11.1}"),
        value => format!("{value:>11.0}"),
    }
}
