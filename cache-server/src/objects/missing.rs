//! Objects that are not there. What the object store said is believed for a second, so that who asks for
//! one again and again costs the store one request a second. One that has just come is seen after a second at
//! most.

use forebay_proto::Error;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer counts, from when it was asked for.
const AGE: Duration = Duration::from_secs(1);

/// Answers that are kept at most: some 10 MB, as a URI has 2 KiB at most.
const KEPT_MAX: usize = 4096;

/// How old the word may be that an object is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissingAge {
    /// The object store is asked.
    Now,
    /// It is asked once a second.
    Second,
}

/// The answers of the last second.
#[derive(Debug, Default)]
pub struct Missing(Mutex<MissingAnswers>);

#[derive(Debug, Default)]
struct MissingAnswers {
    errors: HashMap<Arc<str>, (Instant, Error)>,
    /// The oldest first; some may be gone.
    order: VecDeque<(Instant, Arc<str>)>,
}

impl Missing {
    /// What the object store said within the last second of an object that is not there.
    pub fn error(&self, uri: &str) -> Option<Error> {
        let kept = self.0.lock();
        let (asked, error) = kept.errors.get(uri)?;
        (asked.elapsed() < AGE).then(|| error.clone())
    }

    /// Keeps what was said to a question that was `asked` at a time. Of files nothing is kept: they cost
    /// nothing.
    pub fn keep(&self, uri: &str, asked: Instant, error: &Error) {
        if uri.starts_with("file:") {
            return;
        }
        let mut kept = self.0.lock();
        let uri: Arc<str> = uri.into();
        kept.order.push_back((asked, uri.clone()));
        kept.errors.insert(uri, (asked, error.clone()));
        let is_over = |kept: &MissingAnswers| {
            kept.order.len() > KEPT_MAX || kept.order.front().is_some_and(|(asked, _)| asked.elapsed() >= AGE)
        };
        while is_over(&kept)
            && let Some((asked, uri)) = kept.order.pop_front()
        {
            // It may have been asked for again since.
            if kept.errors.get(&uri).is_some_and(|(last, _)| *last == asked) {
                kept.errors.remove(&uri);
            }
        }
    }

    /// Forgets some.
    pub fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        self.0.lock().errors.retain(|uri, _| !is_gone(uri));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_a_second() {
        let (missing, now) = (Missing::default(), Instant::now());
        let old = now.checked_sub(AGE).unwrap();
        let error = |uri: &str| Error::not_found(format!("{uri}: no such object"));
        for (uri, asked) in [("s3://b/old", old), ("s3://b/new", now), ("file:///new", now)] {
            missing.keep(uri, asked, &error(uri));
        }
        assert!(missing.error("s3://b/old").is_none());
        assert!(missing.error("file:///new").is_none());
        assert_eq!(missing.error("s3://b/new").unwrap().message, error("s3://b/new").message);
        missing.forget(|uri| uri.ends_with("new"));
        assert!(missing.error("s3://b/new").is_none());
    }

    #[test]
    fn there_is_room_for_a_number_of_answers() {
        let missing = Missing::default();
        for n in 0..KEPT_MAX + 10 {
            missing.keep(&format!("s3://b/{n}"), Instant::now(), &Error::not_found("none"));
        }
        assert!(missing.0.lock().errors.len() <= KEPT_MAX);
        assert!(missing.error("s3://b/0").is_none());
    }
}
