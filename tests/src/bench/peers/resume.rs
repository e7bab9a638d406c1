//! Going on in the middle of an epoch: one process reads half of it and leaves its state, others begin with
//! that state, and say how long they waited for their first batch. Both halves together must be the epoch.

use super::consumer::{Content, Half, HalfRead};
use super::peer::Peer;
use super::stage::{PeerStage, in_a_line};
use crate::bench::warm::Shape;
use crate::harness::check::Findings;
use crate::harness::report::Row;

/// A subject's resumes, one of each round.
#[derive(Default)]
pub struct Resumes {
    first: Option<Content>,
    seconds: Vec<f64>,
    reason: Option<String>,
}

impl Resumes {
    /// Measures one. A peer that cannot, or breaks off, is left out from then on; ours may not break off.
    pub fn measure(&mut self, stage: &PeerStage, peer: &Peer, shape: Shape) -> anyhow::Result<()> {
        if self.reason.is_some() {
            return Ok(());
        }
        match self.read(stage, peer, shape) {
            Ok(Ok(seconds)) => self.seconds.push(seconds),
            Ok(Err(reason)) => self.leave_out(reason),
            Err(error) if peer.is_ours() => return Err(error),
            Err(error) => self.leave_out(in_a_line(&error)),
        }
        Ok(())
    }

    /// The seconds, or why there are none.
    fn read(&mut self, stage: &PeerStage, peer: &Peer, shape: Shape) -> anyhow::Result<Result<f64, String>> {
        let first = match self.first {
            Some(first) => first,
            None => match stage.resume(peer, shape, Half::First)? {
                HalfRead { content: Some(content), .. } => *self.first.insert(content),
                HalfRead { cannot, .. } => {
                    return Ok(Err(cannot.unwrap_or_else(|| "it says nothing".into())));
                }
            },
        };
        let HalfRead { content, cannot, seconds } = stage.resume(peer, shape, Half::Second)?;
        let Some(second) = content else {
            return Ok(Err(cannot.unwrap_or_else(|| "it says nothing".into())));
        };
        let whole = stage.content(peer, shape)?;
        if first.and(second) == whole {
            return Ok(Ok(seconds));
        }
        let (came, all) = (first.rows + second.rows, whole.rows);
        let told = format!("both parts of the epoch have {came} rows of {all}, or other ones");
        anyhow::ensure!(!peer.is_ours(), "{}: {told}", peer.name);
        Ok(Err(told))
    }

    fn leave_out(&mut self, reason: String) {
        self.seconds.clear();
        self.reason = Some(reason);
    }

    /// Why there are none.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// The figure of the subject of this name, or why there is none.
    pub fn add_row(&self, name: &str, found: &mut Findings) {
        let row = Row::of(format!("{name}.resume_s"), "s", &self.seconds);
        found.rows.push(match &self.reason {
            Some(reason) => Row { unit: format!("not measured: {reason}").into(), ..row },
            None => row,
        });
    }
}
