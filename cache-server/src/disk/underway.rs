//! Disks that hang: what never comes back fails no call, so somebody has to look at the clock.
//!
//! Each directory knows which of its operations are under way. Where one has lasted for long, and none has
//! come back meanwhile, a thread of its own reads a block of the directory's pulse from the medium: only if
//! that does not come back either, the directory hangs. A busy disk is slow with everything, but answers.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long nothing comes back before the pulse is taken.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a pulse may take.
const PULSE: Duration = Duration::from_millis(400);

/// The operations under way in one directory, and its pulse.
#[derive(Debug, Default)]
pub struct DiskOperations {
    operations: Mutex<Operations>,
    /// When the look began that has not ended.
    looking: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Operations {
    begun: BTreeMap<u64, Instant>,
    next: u64,
    came_back: Option<Instant>,
}

/// One operation; it comes back when this is dropped.
#[derive(Debug)]
pub struct Operation(Arc<DiskOperations>, u64);

impl Drop for Operation {
    fn drop(&mut self) {
        let mut operations = self.0.operations.lock();
        operations.begun.remove(&self.1);
        operations.came_back = Some(Instant::now());
    }
}

impl DiskOperations {
    pub fn begin(self: &Arc<Self>) -> Operation {
        let mut operations = self.operations.lock();
        let number = operations.next;
        operations.next += 1;
        operations.begun.insert(number, Instant::now());
        Operation(self.clone(), number)
    }

    /// Whether nothing has come back for long though something is under way.
    fn is_late(&self, now: Instant) -> bool {
        let operations = self.operations.lock();
        let Some((_, oldest)) = operations.begun.first_key_value() else { return false };
        let since = operations.came_back.map_or(*oldest, |came_back| came_back.max(*oldest));
        now.saturating_duration_since(since) >= PATIENCE
    }

    /// Whether a look is under way: while one is, the directory is not tried.
    pub fn is_looking(&self) -> bool {
        self.looking.lock().is_some()
    }

    /// Whether the directory hangs; takes its pulse, which `look` waits for, if that may be. Does not wait.
    pub fn hangs(self: &Arc<Self>, look: impl FnOnce() + Send + 'static, now: Instant) -> bool {
        if !self.is_late(now) {
            return false;
        }
        let mut looking = self.looking.lock();
        if let Some(began) = *looking {
            return now.saturating_duration_since(began) >= PULSE;
        }
        *looking = Some(now);
        let underway = self.clone();
        let look = move || {
            look();
            underway.operations.lock().came_back = Some(Instant::now());
            *underway.looking.lock() = None;
        };
        if std::thread::Builder::new().name("forebay-pulse".to_owned()).spawn(look).is_err() {
            *looking = None;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
        let began = Instant::now();
        while !happens() {
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_directory_hangs_only_if_its_medium_does_not_answer() {
        // Each look waits until it is answered.
        let (asked, underway) = (Arc::new(Mutex::new(Vec::new())), Arc::<DiskOperations>::default());
        let hangs = |now| {
            let asked = asked.clone();
            let look = move || {
                let (answer, answered) = sync_channel::<()>(1);
                asked.lock().push(answer);
                answered.recv().ok();
            };
            underway.hangs(look, now)
        };
        let operation = underway.begin();
        let (now, late) = (Instant::now(), Instant::now() + PATIENCE + PULSE);
        assert!(!hangs(now), "it has just begun");
        // Slow, but it answers.
        assert!(!hangs(late));
        wait_until("the pulse is taken", || asked.lock().len() == 1);
        asked.lock().pop();
        wait_until("the look ends", || !underway.is_looking());
        assert!(!hangs(Instant::now()), "it has just come back");
        // It does not.
        let later = Instant::now() + 2 * PATIENCE;
        assert!(!hangs(later));
        wait_until("the pulse is taken", || asked.lock().len() == 1);
        assert!(!hangs(later + PULSE / 2));
        assert!(hangs(later + PULSE) && underway.is_looking());
        assert_eq!(asked.lock().len(), 1, "one look at once");
        drop(operation);
        asked.lock().clear();
        wait_until("the look ends", || !underway.is_looking());
        assert!(!hangs(later + 9 * PULSE), "nothing is under way");
    }
}
