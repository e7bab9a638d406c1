//! Joined reads: requests that wait for their turns and follow each other in an object become one.
//!
//! A store answers each request after a delay, however long it is. While as many wait as may be under way, a request whose
//! turn has come takes along those that lie right behind its own bytes: it reads on, and hands each of them its bytes as
//! they come. One that gets no more of them, as when the answer broke off, goes on by itself from where it is.

use crate::parquet::fetch::GAP_BYTES;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Bytes of a joined request at most: what comes last waits for all that is before it.
const JOINED_BYTES_MAX: u64 = 32 << 20;

/// Pieces between the one who reads them and the one who wants them.
const PIECES: usize = 16;

/// Whoever takes nothing for so long goes on by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// An object and its version.
pub(super) type Key = (String, String);

/// The requests of a process that wait for their turns.
#[derive(Debug, Default)]
pub(super) struct Joint(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By where they start.
    waiting: HashMap<Key, BTreeMap<u64, Waiting>>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    end: u64,
    pieces: Sender<Bytes>,
}

/// A request that waits for its turn, or to be taken along. It is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Stop<'a> {
    joint: &'a Joint,
    key: Key,
    start: u64,
    number: u64,
    pieces: Receiver<Bytes>,
    first: Bytes,
    /// Held by one that waits for what another waits for too, and is never taken along.
    alone: Option<Sender<Bytes>>,
}

/// Requests that were taken along, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Riders(VecDeque<Rider>);

#[derive(Debug)]
struct Rider {
    range: Range<u64>,
    pieces: Sender<Bytes>,
}

impl Joint {
    /// From now on a request for these bytes may be taken along.
    pub fn wait(&self, key: Key, range: Range<u64>) -> Stop<'_> {
        let (sender, pieces) = mpsc::channel(PIECES);
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let waiting = state.waiting.entry(key.clone()).or_default();
        let alone = match waiting.contains_key(&range.start) {
            true => Some(sender),
            false => {
                waiting.insert(range.start, Waiting { number, end: range.end, pieces: sender });
                None
            }
        };
        drop(state);
        Stop { joint: self, key, start: range.start, number, pieces, first: Bytes::new(), alone }
    }

    /// Takes along what waits right behind `read`, so many requests at most.
    pub fn take_along(&self, key: &Key, read: Range<u64>, most: usize) -> Riders {
        let mut riders = VecDeque::new();
        let mut state = self.lock();
        let Some(waiting) = state.waiting.get_mut(key) else { return Riders(riders) };
        let mut end = read.end;
        while riders.len() < most
            && let Some(entry) = waiting.range(end..=end.saturating_add(GAP_BYTES)).next()
        {
            let (start, far) = (*entry.0, entry.1.end);
            if far.saturating_sub(read.start) > JOINED_BYTES_MAX {
                break;
            }
            let Some(Waiting { pieces, .. }) = waiting.remove(&start) else { break };
            // Tells it that it need not wait for a turn. There is room: nothing was sent yet.
            if pieces.try_send(Bytes::new()).is_ok() {
                riders.push_back(Rider { range: start..far, pieces });
                end = far;
            }
        }
        if waiting.is_empty() {
            state.waiting.remove(key);
        }
        Riders(riders)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Stop<'_> {
    /// Waits until it is taken along. May be cancelled.
    pub async fn taken(&mut self) {
        // None: and was left behind at once.
        self.first = self.pieces.recv().await.unwrap_or_default();
    }

    /// Waits no longer; false if it was taken along already.
    pub fn leave(&self) -> bool {
        let mut state = self.joint.lock();
        let Some(waiting) = state.waiting.get_mut(&self.key) else { return self.alone.is_some() };
        let is_own = waiting.get(&self.start).is_some_and(|w| w.number == self.number);
        if is_own {
            waiting.remove(&self.start);
        }
        if waiting.is_empty() {
            state.waiting.remove(&self.key);
        }
        is_own || self.alone.is_some()
    }

    /// Taken along: the bytes as they come, as far as they come. Answers with how many of `bytes` are filled.
    pub async fn ride(mut self, bytes: &mut [u8]) -> usize {
        let (mut filled, mut piece) = (0, std::mem::take(&mut self.first));
        loop {
            let rest = &mut bytes[filled..];
            let fits = piece.len().min(rest.len());
            rest[..fits].copy_from_slice(&piece[..fits]);
            filled += fits;
            if filled == bytes.len() {
                return filled;
            }
            match self.pieces.recv().await {
                Some(next) => piece = next,
                None => return filled,
            }
        }
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Riders {
    /// Whether there is none, or none any more.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where the last one's bytes end.
    pub fn end(&self) -> Option<u64> {
        self.0.back().map(|rider| rider.range.end)
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|rider| rider.range.end - rider.range.start).sum()
    }

    /// Hands over the bytes of the object from `at` on. Whoever has gone, or takes none, is left behind.
    pub async fn hand(&mut self, at: u64, piece: &Bytes) {
        let end = at + piece.len() as u64;
        while let Some(rider) = self.0.front_mut() {
            let part = rider.range.start.max(at)..rider.range.end.min(end);
            if part.start < part.end {
                let part = piece.slice((part.start - at) as usize..(part.end - at) as usize);
                let sent = rider.pieces.send_timeout(part, PATIENCE).await;
                if sent.is_err() {
                    self.0.pop_front();
                    continue;
                }
            }
            if rider.range.end > end {
                return;
            }
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        ("s3://b/o".into(), "v".into())
    }

    fn object(range: Range<u64>) -> Bytes {
        range.map(|i| i as u8).collect()
    }

    /// Reads on for the riders, in pieces of seven bytes.
    async fn carry(mut riders: Riders, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let end = (at + 7).min(to);
            riders.hand(at, &object(at..end)).await;
            at = end;
        }
    }

    #[tokio::test]
    async fn what_lies_behind_rides_along_in_order_and_gets_its_bytes() {
        let joint = Joint::default();
        let mut a = joint.wait(key(), 100..150);
        let mut b = joint.wait(key(), 152..300);
        let far = joint.wait(key(), 300 + GAP_BYTES + 1..GAP_BYTES + 400);
        let other = joint.wait(("s3://b/o".into(), "w".into()), 100..150);
        let riders = joint.take_along(&key(), 50..100, 9);
        assert_eq!((riders.end(), riders.bytes()), (Some(300), 198));
        assert!(far.leave() && other.leave(), "nobody took these");
        assert!(!a.leave() && !b.leave());
        a.taken().await;
        b.taken().await;
        let (mut of_a, mut of_b) = (vec![0; 50], vec![0; 148]);
        let (filled_a, filled_b, ()) =
            tokio::join!(a.ride(&mut of_a), b.ride(&mut of_b), carry(riders, 100, 300));
        assert_eq!((filled_a, filled_b), (50, 148));
        assert_eq!((of_a, of_b), (object(100..150).to_vec(), object(152..300).to_vec()));
        assert!(joint.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn whoever_is_left_behind_knows_how_far_it_came() {
        let joint = Joint::default();
        let stop = joint.wait(key(), 10..40);
        let riders = joint.take_along(&key(), 0..10, 9);
        let mut bytes = vec![0; 30];
        let (filled, ()) = tokio::join!(stop.ride(&mut bytes), carry(riders, 10, 24));
        assert_eq!((filled, &bytes[..filled]), (14, &object(10..24)[..]));
    }

    #[tokio::test]
    async fn whoever_has_gone_or_stands_still_holds_up_nobody() {
        let joint = Joint::default();
        let gone = joint.wait(key(), 10..500);
        let still = joint.wait(key(), 500..1000);
        let last = joint.wait(key(), 1000..1100);
        let riders = joint.take_along(&key(), 0..10, 9);
        assert_eq!(riders.end(), Some(1100));
        drop(gone);
        let mut bytes = vec![0; 100];
        let (filled, ()) = tokio::join!(last.ride(&mut bytes), carry(riders, 10, 1100));
        assert_eq!((filled, bytes), (100, object(1000..1100).to_vec()));
        drop(still);
    }

    #[tokio::test]
    async fn the_same_bytes_wanted_twice_and_too_many_of_them_wait_for_their_own_turns() {
        let joint = Joint::default();
        let first = joint.wait(key(), 10..20);
        let second = joint.wait(key(), 10..20);
        let large = joint.wait(key(), 20..JOINED_BYTES_MAX + 1);
        assert_eq!(joint.take_along(&key(), 0..10, 9).end(), Some(20));
        assert!(!first.leave() && second.leave() && large.leave());
        assert!(joint.take_along(&key(), 0..10, 9).is_empty());
    }
}
