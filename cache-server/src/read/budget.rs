//! Room: a number of bytes that one purpose may use at once.
//!
//! Whoever is short of room waits in line; what was let go wakes the first for whom somebody waits, or else the first. So
//! does whoever leaves the line or is hurried in it. A request for more than there is at all is granted once nothing else is
//! held, so that nothing waits for ever.

use forebay_dataset::Urgency;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
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
    line: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    urgency: Urgency,
    grant: oneshot::Sender<Held>,
}

/// Whoever leaves the line may have stood before others who fit.
struct Leave<'a>(&'a Arc<Room>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.let_go(0);
    }
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

    /// Waits for room, a demand before all others. May be cancelled.
    pub async fn hold(self: &Arc<Self>, bytes: u64, urgency: &Urgency) -> Held {
        let granted = {
            let mut state = self.state();
            let is_first = match state.first() {
                None => true,
                Some(first) => urgency.is_demand() && !state.line[first].urgency.is_demand(),
            };
            if is_first && self.fits(&state, bytes) {
                state.used_bytes += bytes;
                return Held { room: self.clone(), bytes };
            }
            let (grant, granted) = oneshot::channel();
            state.line.push_back(Waiter { bytes, urgency: urgency.clone(), grant });
            granted
        };
        let _leave = Leave(self);
        // Dropped before the other: then it is known that nobody waits for it.
        let mut granted = granted;
        let got = tokio::select! {
            biased;
            got = &mut granted => got,
            () = urgency.raised(), if !urgency.is_demand() => {
                // It may be the first now, and fit where the one that was did not.
                self.let_go(0);
                granted.await
            }
        };
        match got {
            Ok(held) => held,
            // The line is never given up while somebody waits in it.
            Err(_) => self.hold_anyway(bytes),
        }
    }

    /// Room if there is some at once and nobody waits for it.
    pub fn try_hold(self: &Arc<Self>, bytes: u64) -> Option<Held> {
        let mut state = self.state();
        let free = state.first().is_none() && state.used_bytes.saturating_add(bytes) <= self.limit_bytes;
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
        self.state().first().is_some()
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
        while let Some(first) = state.first()
            && self.fits(&state, state.line[first].bytes)
        {
            let Some(Waiter { bytes, grant, .. }) = state.line.remove(first) else { break };
            state.used_bytes += bytes;
            if let Err(mut refused) = grant.send(Held { room: self.clone(), bytes }) {
                // It went away this very moment. Its bytes are given back here: dropping it would come back to this lock.
                refused.bytes = 0;
                state.used_bytes -= bytes;
                drop(state);
                drop(refused);
                state = self.state();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Who is next: urgency may have risen since it came. Whoever has given up leaves the line.
    fn first(&mut self) -> Option<usize> {
        self.line.retain(|waiter| !waiter.grant.is_closed());
        let demand = self.line.iter().position(|waiter| waiter.urgency.is_demand());
        demand.or_else(|| (!self.line.is_empty()).then_some(0))
    }
}

impl Held {
    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Holds so many bytes from now on, whatever it was. What is more counts whether there is room or not, as it is in use
    /// already; others then wait the longer.
    pub fn resize(&mut self, bytes: u64) {
        self.room.state().used_bytes += bytes.saturating_sub(self.bytes);
        let less = self.bytes.saturating_sub(bytes);
        self.bytes = bytes;
        self.room.let_go(less);
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
        let (room, demand) = (Room::new(10), Urgency::demand());
        let a = room.hold(6, &demand).await;
        let mut big = Box::pin(room.hold(8, &demand));
        let mut small = Box::pin(room.hold(1, &demand));
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
    async fn demand_goes_first_also_when_it_became_one_in_line() {
        let (room, demand) = (Room::new(10), Urgency::demand());
        let all = room.hold(10, &demand).await;
        let (early, late) = (Urgency::prefetch(), Urgency::prefetch());
        let mut first = Box::pin(room.hold(10, &early));
        let mut raised = Box::pin(room.hold(10, &late));
        let mut wanted = Box::pin(room.hold(10, &demand));
        for waiting in [&mut first, &mut raised, &mut wanted] {
            assert!(waiting.now_or_never().is_none());
        }
        late.raise();
        drop(all);
        assert!((&mut first).now_or_never().is_none() && (&mut wanted).now_or_never().is_none());
        drop(raised.await);
        assert!((&mut first).now_or_never().is_none());
        drop(wanted.await);
        first.await;
        // Free room is not kept from a demand by a larger prefetch that waits for more.
        let half = room.hold(5, &demand).await;
        let mut large = Box::pin(room.hold(10, &early));
        assert!((&mut large).now_or_never().is_none());
        drop(room.hold(5, &demand).await);
        drop(half);
        large.await;
    }

    #[tokio::test]
    async fn the_line_goes_on_when_its_first_changes() {
        let (room, demand) = (Room::new(10), Urgency::demand());
        let some = room.hold(6, &demand).await;
        let mut large = Box::pin(room.hold(8, &demand));
        let mut small = Box::pin(room.hold(4, &demand));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(large);
        let small = small.now_or_never().expect("nobody is before it any more");
        drop(small);
        let (early, late) = (Urgency::prefetch(), Urgency::prefetch());
        let mut large = Box::pin(room.hold(8, &early));
        let mut small = Box::pin(room.hold(4, &late));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        late.raise();
        let small = small.now_or_never().expect("it goes first");
        drop((some, small));
        drop(large.now_or_never().expect("all is free"));
        assert_eq!((room.used_bytes(), room.is_short()), (0, false));
    }

    #[tokio::test]
    async fn what_is_too_large_has_the_room_to_itself_and_who_leaves_takes_nothing() {
        let (room, demand) = (Room::new(10), Urgency::demand());
        let mut a = room.hold(3, &demand).await;
        let mut huge = Box::pin(room.hold(1000, &demand));
        let mut gone = Box::pin(room.hold(2, &demand));
        assert!((&mut huge).now_or_never().is_none() && (&mut gone).now_or_never().is_none());
        drop(gone);
        a.resize(1);
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
    async fn what_turns_out_larger_is_counted() {
        let (room, demand) = (Room::new(10), Urgency::demand());
        let mut a = room.hold(3, &demand).await;
        a.resize(12);
        assert_eq!(room.used_bytes(), 12);
        let mut waiting = Box::pin(room.hold(4, &demand));
        assert!(room.try_hold(1).is_none() && (&mut waiting).now_or_never().is_none());
        a.resize(6);
        let granted = waiting.await;
        assert_eq!((granted.bytes, room.used_bytes()), (4, 10));
        drop((a, granted));
        assert_eq!(room.used_bytes(), 0);
    }

    #[tokio::test]
    async fn those_who_give_up_leave_nothing_behind() {
        let (room, demand) = (Room::new(10), Urgency::demand());
        let all = room.hold(10, &demand).await;
        for _ in 0..100_000 {
            assert!(room.hold(10, &demand).now_or_never().is_none());
        }
        assert!(!room.is_short());
        let mut waiting = Box::pin(room.hold(4, &demand));
        assert!((&mut waiting).now_or_never().is_none());
        drop(all);
        assert_eq!(waiting.await.bytes, 4);
        assert!(room.try_hold(10).is_some());
    }
}
