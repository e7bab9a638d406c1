//! Room: a number of bytes that one purpose may use at once.
//!
//! Whoever is short of room waits in line; what was let go wakes the first. A request for more than there is at all is
//! granted once nothing else is held, so that nothing waits for ever.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// So many bytes and no more.
#[derive(Debug)]
pub struct Room {
    limit_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used_bytes: u64,
    line: VecDeque<(u64, oneshot::Sender<Held>)>,
}

/// Bytes in use. Dropping it lets them go.
#[derive(Debug)]
pub struct Held {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    /// Room for `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, state: Mutex::default() })
    }

    /// Waits for room. May be cancelled.
    pub async fn hold(self: &Arc<Self>, bytes: u64) -> Held {
        let granted = {
            let mut state = self.state();
            state.line.retain(|(_, sender)| !sender.is_closed());
            if state.line.is_empty() && self.fits(&state, bytes) {
                state.used_bytes += bytes;
                return Held { room: self.clone(), bytes };
            }
            let (sender, granted) = oneshot::channel();
            state.line.push_back((bytes, sender));
            granted
        };
        match granted.await {
            Ok(held) => held,
            // The line is never given up while somebody waits in it.
            Err(_) => self.hold_anyway(bytes),
        }
    }

    /// Room if there is some at once and nobody waits for it.
    pub fn try_hold(self: &Arc<Self>, bytes: u64) -> Option<Held> {
        let mut state = self.state();
        let free = Self::first_in_line(&mut state).is_none()
            && state.used_bytes.saturating_add(bytes) <= self.limit_bytes;
        free.then(|| {
            state.used_bytes += bytes;
            Held { room: self.clone(), bytes }
        })
    }

    /// Counts bytes as held whether there is room or not; others then wait the longer.
    pub fn hold_anyway(self: &Arc<Self>, bytes: u64) -> Held {
        self.state().used_bytes += bytes;
        Held { room: self.clone(), bytes }
    }

    /// Whether somebody waits.
    pub fn is_short(&self) -> bool {
        Self::first_in_line(&mut self.state()).is_some()
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes
    }

    /// Bytes that may be used.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.used_bytes == 0 || state.used_bytes.saturating_add(bytes) <= self.limit_bytes
    }

    fn let_go(self: &Arc<Self>, bytes: u64) {
        let mut state = self.state();
        state.used_bytes = state.used_bytes.saturating_sub(bytes);
        while let Some(bytes) = Self::first_in_line(&mut state)
            && self.fits(&state, bytes)
        {
            let Some((bytes, sender)) = state.line.pop_front() else { break };
            state.used_bytes += bytes;
            if let Err(mut refused) = sender.send(Held { room: self.clone(), bytes }) {
                // It went away this very moment. Its bytes are given back here: dropping it would come back to this lock.
                refused.bytes = 0;
                state.used_bytes -= bytes;
                drop(state);
                drop(refused);
                state = self.state();
            }
        }
    }

    /// What the first who still waits wants. Whoever has given up leaves the line.
    fn first_in_line(state: &mut State) -> Option<u64> {
        while state.line.front().is_some_and(|(_, sender)| sender.is_closed()) {
            state.line.pop_front();
        }
        state.line.front().map(|(bytes, _)| *bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Lets go of what is beyond `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let more = self.bytes.saturating_sub(bytes);
        self.bytes -= more;
        self.room.let_go(more);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.let_go(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn those_who_wait_are_served_in_order() {
        let room = Room::new(10);
        let a = room.hold(6).await;
        let mut big = Box::pin(room.hold(8));
        let mut small = Box::pin(room.hold(1));
        assert!((&mut big).now_or_never().is_none() && room.is_short());
        assert!((&mut small).now_or_never().is_none(), "nobody overtakes");
        assert!(room.try_hold(1).is_none());
        drop(a);
        let b = big.await;
        let c = small.await;
        assert_eq!(room.used_bytes(), 9);
        drop((b, c));
        assert_eq!((room.used_bytes(), room.is_short()), (0, false));
    }

    #[tokio::test]
    async fn what_is_too_large_has_the_room_to_itself_and_who_leaves_takes_nothing() {
        let room = Room::new(10);
        let mut a = room.hold(3).await;
        let mut huge = Box::pin(room.hold(1000));
        let mut gone = Box::pin(room.hold(2));
        assert!((&mut huge).now_or_never().is_none() && (&mut gone).now_or_never().is_none());
        drop(gone);
        a.shrink(1);
        assert!((&mut huge).now_or_never().is_none());
        drop(a);
        let held = huge.await;
        assert_eq!(room.used_bytes(), 1000);
        let more = room.hold_anyway(5);
        drop(held);
        assert_eq!(room.used_bytes(), 5);
        drop(more);
        assert_eq!((room.used_bytes(), room.is_short()), (0, false));
    }

    #[tokio::test]
    async fn those_who_give_up_leave_nothing_behind() {
        let room = Room::new(10);
        let all = room.hold(10).await;
        for _ in 0..100_000 {
            assert!(room.hold(10).now_or_never().is_none());
        }
        assert!(!room.is_short());
        let mut waiting = Box::pin(room.hold(4));
        assert!((&mut waiting).now_or_never().is_none());
        drop(all);
        assert_eq!(waiting.await.bytes, 4);
        assert!(room.try_hold(10).is_some());
    }
}
