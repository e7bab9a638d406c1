//! The live line on stderr: epoch, step, loss, speed, and how much of the time goes into waiting for data.
//!
//! On a terminal it is overwritten in place; elsewhere, as in a log, a line comes every few seconds.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::report::epoch_stats::Tally;

const EVERY_ON_TERMINAL: Duration = Duration::from_millis(100);
const EVERY_IN_LOG: Duration = Duration::from_secs(5);

/// What the line says about the whole run.
#[derive(Debug)]
pub struct Progress {
    epochs: u64,
    steps: u64,
    global_batch: u64,
    terminal: bool,
    last: Instant,
    shown: bool,
}

impl Progress {
    /// For rank 0, which shows the line; `steps` is per epoch.
    pub fn new(epochs: u64, steps: u64, global_batch: u64) -> Self {
        let terminal = stderr().is_terminal();
        Self { epochs, steps, global_batch, terminal, last: Instant::now(), shown: false }
    }

    /// Shows where the epoch stands, if it is time to. `loss` is the last step's, per sample.
    pub fn step(&mut self, epoch: u64, tally: &Tally, loss: Option<f64>) {
        let every = if self.terminal { EVERY_ON_TERMINAL } else { EVERY_IN_LOG };
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        let line = self.line(epoch, tally, loss, tally.elapsed());
        // A closed stderr is no reason to stop training.
        let _ = match self.terminal {
            true => write!(stderr(), "\r{line}\x1b[K"),
            false => writeln!(stderr(), "{line}"),
        };
        self.shown = true;
    }

    /// Takes the line off a terminal.
    pub fn clear(&mut self) {
        if self.terminal && std::mem::take(&mut self.shown) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    fn line(&self, epoch: u64, tally: &Tally, loss: Option<f64>, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let loss = loss.map(|loss| format!("loss {loss:.4}  ")).unwrap_or_default();
        let rows = if tally.sequences.is_some() { "sequences" } else { "samples" };
        format!(
            "epoch {}/{}  step {}/{}  {loss}{:.0} {rows}/s  data wait {:.1} %",
            epoch + 1,
            self.epochs,
            tally.steps,
            self.steps,
            (tally.steps * self.global_batch) as f64 / seconds,
            100.0 * tally.waited.as_secs_f64() / seconds
        )
    }
}

/// Says on standard error that no data has come for so long, and why.
pub fn tell_of_waiting(waited: Duration, why: Option<&str>) {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let clear = if stderr().is_terminal() { "\r\x1b[K" } else { "" };
    // A closed stderr is no reason to stop training.
    let _ = writeln!(stderr(), "{clear}forebay-train: no data for {} s{why}", waited.as_secs());
}

/// Prints a line on stdout; a reader who has seen enough and closed the pipe is no reason to stop training.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_where_the_epoch_stands() {
        let progress = Progress::new(3, 469, 128);
        let tally = Tally { steps: 100, waited: Duration::from_millis(125), ..Default::default() };
        let line = progress.line(0, &tally, Some(0.25), Duration::from_secs(2));
        assert_eq!(line, "epoch 1/3  step 100/469  loss 0.2500  6400 samples/s  data wait 6.2 %");
        let line = progress.line(2, &tally, None, Duration::from_secs(2));
        assert_eq!(line, "epoch 3/3  step 100/469  6400 samples/s  data wait 6.2 %");
        let packed = Tally { sequences: Some(12_800), ..tally };
        let line = progress.line(2, &packed, None, Duration::from_secs(2));
        assert!(line.contains("  6400 sequences/s  "), "{line}");
    }
}
