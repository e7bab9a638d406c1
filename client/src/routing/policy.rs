//! What a worker does after a failure: a pure decision.

use forebay_proto::{Backoff, Error, Kind};
use std::time::Duration;
use tokio::time::Instant;

/// The bound of the first pause before a stream is opened again, and of the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long a worker keeps trying, and when it reads from the object store instead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    pub patience: Duration,
    /// How long no node may answer before the fallback is used: not the same in all readers of a cache that
    /// dies.
    pub fallback_after: Duration,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Open the stream again after a pause.
    Retry(Duration),
    /// Tell the node of the dataset, then open the stream again after a pause.
    Reopen(Duration),
    /// Go on at the nodes that can be asked now.
    Divide,
    /// Go on at the object store until a node answers.
    Fallback,
    GiveUp(Error),
}

/// Why an attempt ended.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: Error,
    pub kind: FailureKind,
    /// For how long nothing had come before it was one.
    pub silent: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The stream broke or brought damaged bytes, or the node is busy. The next attempt may succeed.
    Broken,
    /// The node was silent and did not answer a probe either.
    NodeDead,
    /// The node does not know the dataset: it was restarted, or told to forget it.
    UnknownDataset,
    /// No further attempt can succeed.
    Final,
}

/// Where the failed rows should have come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// The object store, without any cache.
    Direct,
    /// The node that the segments belong to.
    Owner,
    /// Another node, which brings only the segments that it holds.
    Hedge,
    /// The object store, while no node answers.
    Fallback,
}

/// The facts that the decision depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    pub source: SourceKind,
    /// The node was probed after the failure and serves.
    pub node_serves: bool,
    /// Some node of the cache can be asked.
    pub nodes_left: bool,
    pub has_fallback: bool,
}

impl Situation {
    /// After a failure that says nothing of nodes.
    pub fn of(source: SourceKind) -> Self {
        Self { source, node_serves: false, nodes_left: true, has_fallback: false }
    }
}

/// The failures since rows last moved.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub failing_since: Option<Instant>,
    /// The node was told of the dataset.
    pub reopened: bool,
    /// The node was asked whether it serves.
    pub probed: bool,
    pub backoff: Backoff,
}

impl Default for History {
    fn default() -> Self {
        let backoff = Backoff::new(PAUSES.0, PAUSES.1);
        Self { failing_since: None, reopened: false, probed: false, backoff }
    }
}

impl History {
    /// Another attempt has failed. Patience began when its silence did, if rows moved until then.
    pub fn add(&mut self, failure: &Failure) {
        let now = Instant::now();
        self.failing_since.get_or_insert_with(|| now.checked_sub(failure.silent).unwrap_or(now));
    }

    /// Does not count time in which nothing was owed. After a long one the node is asked again whether it
    /// serves.
    pub fn leave_out(&mut self, time: Duration) {
        if let Some(since) = &mut self.failing_since {
            *since += time;
            self.probed &= time < PAUSES.1;
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            Kind::Retry | Kind::Closed | Kind::Full => FailureKind::Broken,
            Kind::NotFound => FailureKind::UnknownDataset,
            _ => FailureKind::Final,
        };
        Self { error, kind, silent: Duration::ZERO }
    }
}

impl Failure {
    /// The bytes that came are not those that were sent: they may come whole the next time.
    pub fn damaged(error: Error) -> Self {
        Self { error, kind: FailureKind::Broken, silent: Duration::ZERO }
    }

    /// The same where the dataset is known, or there is none: an object is missing, which does not come by
    /// trying again.
    pub fn of_an_object(self) -> Self {
        match self.kind {
            FailureKind::UnknownDataset => Self { kind: FailureKind::Final, ..self },
            _ => self,
        }
    }
}

impl RetryPolicy {
    /// The next step after `failure`.
    pub(crate) fn on(
        &self,
        failure: &Failure,
        history: &mut History,
        situation: Situation,
        now: Instant,
    ) -> Next {
        let Situation { source, node_serves, nodes_left, has_fallback } = situation;
        let error = failure.error.clone();
        if failure.kind == FailureKind::Final {
            return Next::GiveUp(error);
        }
        // Whatever happens to a hedge, the segments' own nodes are asked again.
        if source == SourceKind::Hedge {
            return Next::Divide;
        }
        let failing_for = now.saturating_duration_since(*history.failing_since.get_or_insert(now));
        if failure.kind == FailureKind::UnknownDataset {
            if source != SourceKind::Owner {
                return Next::GiveUp(error);
            }
            if !std::mem::replace(&mut history.reopened, true) {
                return Next::Reopen(Duration::ZERO);
            }
        }
        if failing_for >= self.patience {
            let patience = self.patience.as_secs_f32();
            return Next::GiveUp(error.context(format!("gave up after {patience} s")));
        }
        let falls_back = !nodes_left && has_fallback && failing_for >= self.fallback_after;
        match (failure.kind, source) {
            (FailureKind::UnknownDataset, _) => Next::Reopen(history.backoff.next()),
            (_, SourceKind::Direct) => Next::Retry(history.backoff.next()),
            // A stream may break without the node's doing: it is asked again before others are burdened.
            (FailureKind::Broken, SourceKind::Owner) if node_serves => Next::Retry(history.backoff.next()),
            (_, SourceKind::Fallback) if falls_back => Next::Retry(history.backoff.next()),
            _ if falls_back => Next::Fallback,
            _ => Next::Divide,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureKind::{Broken, Final, NodeDead, UnknownDataset};
    use SourceKind::{Direct, Fallback, Hedge, Owner};

    const POLICY: RetryPolicy =
        RetryPolicy { patience: Duration::from_secs(60), fallback_after: Duration::from_secs(5) };

    /// The decision in a word, after failures for `seconds`; `facts` are node_serves, nodes_left,
    /// has_fallback.
    fn decide(
        kind: FailureKind,
        source: SourceKind,
        seconds: u64,
        reopened: bool,
        facts: [bool; 3],
    ) -> &'static str {
        let since = Instant::now();
        let mut history = History { failing_since: Some(since), reopened, ..History::default() };
        let [node_serves, nodes_left, has_fallback] = facts;
        let situation = Situation { source, node_serves, nodes_left, has_fallback };
        let failure = Failure { kind, ..Error::retry("as a test").into() };
        match POLICY.on(&failure, &mut history, situation, since + Duration::from_secs(seconds)) {
            Next::Retry(after) => {
                assert!(!after.is_zero() && after <= PAUSES.0);
                "retry"
            }
            Next::Reopen(after) if after.is_zero() => "reopen at once",
            Next::Reopen(_) => "reopen",
            Next::Divide => "divide",
            Next::Fallback => "fallback",
            Next::GiveUp(e) if e.message.starts_with("gave up after 60 s: ") => "out of patience",
            Next::GiveUp(_) => "give up",
        }
    }

    #[test]
    fn every_failure_has_its_answer() {
        let (none, serves, left, falls) =
            ([false; 3], [true, true, false], [false, true, true], [false, false, true]);
        for (kind, source, seconds, reopened, facts, want) in [
            (Final, Owner, 0, false, serves, "give up"),
            (Final, Hedge, 0, false, serves, "give up"),
            // A hedge ends in favour of the segments' own nodes, however long it took.
            (Broken, Hedge, 99, false, none, "divide"),
            (UnknownDataset, Hedge, 0, false, none, "divide"),
            // A node that forgot the dataset is told: the first time at once, then after pauses.
            (UnknownDataset, Owner, 0, false, none, "reopen at once"),
            (UnknownDataset, Owner, 99, false, none, "reopen at once"),
            (UnknownDataset, Owner, 1, true, none, "reopen"),
            (UnknownDataset, Owner, 60, true, none, "out of patience"),
            (UnknownDataset, Direct, 0, false, none, "give up"),
            (UnknownDataset, Fallback, 0, false, none, "give up"),
            // A node that lives is asked again, others take over from one that does not.
            (Broken, Owner, 1, false, serves, "retry"),
            (Broken, Owner, 1, false, left, "divide"),
            (NodeDead, Owner, 1, false, serves, "divide"),
            (NodeDead, Owner, 60, false, left, "out of patience"),
            // Without any node the object store serves, but not at once.
            (NodeDead, Owner, 4, false, falls, "divide"),
            (NodeDead, Owner, 5, false, falls, "fallback"),
            (NodeDead, Owner, 5, false, left, "divide"),
            (NodeDead, Owner, 5, false, none, "divide"),
            (Broken, Fallback, 5, false, falls, "retry"),
            (Broken, Fallback, 0, false, left, "divide"),
            (Broken, Direct, 1, false, none, "retry"),
            (Broken, Direct, 60, false, none, "out of patience"),
        ] {
            let got = decide(kind, source, seconds, reopened, facts);
            assert_eq!(got, want, "{kind:?} {source:?} {seconds} s, reopened: {reopened}, {facts:?}");
        }
    }

    /// A reader that validates for minutes has a stream that broke meanwhile, and again: patience is for
    /// nodes.
    #[test]
    fn time_in_which_nothing_was_owed_counts_for_nothing() {
        let since = Instant::now();
        let mut history = History { failing_since: Some(since), probed: true, ..History::default() };
        history.leave_out(Duration::from_millis(10));
        assert!(history.probed);
        history.leave_out(Duration::from_secs(180));
        assert!(!history.probed);
        let failure = Failure::from(Error::retry("as a test"));
        let mut on = |seconds: u64| {
            let now = since + Duration::from_secs(seconds);
            POLICY.on(&failure, &mut history, Situation::of(Owner), now)
        };
        assert!(matches!(on(239), Next::Divide));
        assert!(matches!(on(241), Next::GiveUp(_)));
        let mut fresh = History::default();
        fresh.leave_out(Duration::from_secs(180));
        assert!(fresh.failing_since.is_none());
    }

    #[test]
    fn patience_begins_with_the_silence() {
        let mut history = History::default();
        let silent = POLICY.patience;
        let failure = Failure { silent, ..Error::retry("no data for 60 s").into() };
        history.add(&failure);
        let next = POLICY.on(&failure, &mut history, Situation::of(Direct), Instant::now());
        assert!(matches!(next, Next::GiveUp(_)), "{next:?}");
    }

    /// When a node restarts, the workers of all ranks lose it in the same instant.
    #[test]
    fn workers_that_fail_together_come_back_apart() {
        let failure = Failure::from(Error::retry("the node restarts"));
        let situation = Situation { source: Owner, node_serves: true, nodes_left: true, has_fallback: false };
        let wait = || match POLICY.on(&failure, &mut History::default(), situation, Instant::now()) {
            Next::Retry(wait) => wait,
            other => panic!("{other:?}"),
        };
        let waits: std::collections::BTreeSet<Duration> = (0..100).map(|_| wait()).collect();
        assert!(waits.len() > 50, "{waits:?}");
    }

    #[test]
    fn errors_are_classed_by_what_helps() {
        for (error, want) in [
            (Error::retry(""), Broken),
            (Error::closed(""), Broken),
            (Error::full(""), Broken),
            (Error::not_found(""), UnknownDataset),
            (Error::corrupt(""), Final),
            (Error::changed(""), Final),
        ] {
            assert_eq!(Failure::from(error).kind, want);
        }
        assert_eq!(Failure::damaged(Error::corrupt("")).kind, Broken);
        assert_eq!(Failure::from(Error::not_found("")).of_an_object().kind, Final);
        assert_eq!(Failure::from(Error::retry("")).of_an_object().kind, Broken);
    }
}
