//! Objects that are not there. What the object store said is believed for a second, so that who asks for
//! one again and again costs the object store one request a second. One that has just come is seen after a
//! second at most.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an answer counts, from when it was asked for.
const AGE: Duration = Duration::from_secs(1);

/// How old the word may be that an object is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissingAge {
    /// The object store is asked.
    Now,
    /// It is asked once a second.
    Second,
}

/// The answers of the last second, by the URIs of the objects that are not there.
#[derive(Debug)]
pub struct LastSecond<T> {
    kept: Mutex<RecentAnswers<T>>,
    /// How many are kept at most.
    most: usize,
}

#[derive(Debug)]
struct RecentAnswers<T> {
    answers: HashMap<Arc<str>, (Instant, T)>,
    /// The oldest first; some may be gone.
    order: VecDeque<(Instant, Arc<str>)>,
}

impl<T: Clone> LastSecond<T> {
    /// Room for `most` answers; none is known yet.
    pub fn new(most: usize) -> Self {
        Self { kept: Mutex::new(RecentAnswers { answers: HashMap::new(), order: VecDeque::new() }), most }
    }

    /// What the object store said within the last second of an object that is not there.
    pub fn get(&self, uri: &str) -> Option<T> {
        let kept = self.kept.lock();
        let (asked, answer) = kept.answers.get(uri)?;
        (asked.elapsed() < AGE).then(|| answer.clone())
    }

    /// Keeps what was said to a question that was `asked` at a time. Of files nothing is kept: they cost
    /// nothing.
    pub fn keep(&self, uri: &str, asked: Instant, answer: T) {
        if uri.starts_with("file:") {
            return;
        }
        let mut kept = self.kept.lock();
        let uri: Arc<str> = uri.into();
        kept.order.push_back((asked, uri.clone()));
        kept.answers.insert(uri, (asked, answer));
        let is_over = |kept: &RecentAnswers<T>| {
            kept.order.len() > self.most
                || kept.order.front().is_some_and(|(asked, _)| asked.elapsed() >= AGE)
        };
        while is_over(&kept)
            && let Some((asked, uri)) = kept.order.pop_front()
        {
            // It may have been asked for again since.
            if kept.answers.get(&uri).is_some_and(|(last, _)| *last == asked) {
                kept.answers.remove(&uri);
            }
        }
    }

    /// Forgets what was answered about the URIs of which `is_gone` holds.
    pub fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        self.kept.lock().answers.retain(|uri, _| !is_gone(uri));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Error;

    #[test]
    fn an_answer_counts_for_a_second() {
        let (missing, now) = (LastSecond::new(9), Instant::now());
        let old = now.checked_sub(AGE).unwrap();
        let error = |uri: &str| Error::not_found(format!("{uri}: no such object"));
        for (uri, asked) in [("s3://b/old", old), ("s3://b/new", now), ("file:///new", now)] {
            missing.keep(uri, asked, error(uri));
        }
        assert!(missing.get("s3://b/old").is_none());
        assert!(missing.get("file:///new").is_none());
        assert_eq!(missing.get("s3://b/new").unwrap().message, error("s3://b/new").message);
        missing.forget(|uri| uri.ends_with("new"));
        assert!(missing.get("s3://b/new").is_none());
    }

    #[test]
    fn there_is_room_for_a_number_of_answers() {
        let missing = LastSecond::new(100);
        for n in 0..110 {
            missing.keep(&format!("s3://b/{n}"), Instant::now(), n);
        }
        assert!(missing.kept.lock().answers.len() <= 100);
        assert!(missing.get("s3://b/0").is_none() && missing.get("s3://b/109") == Some(109));
    }
}
