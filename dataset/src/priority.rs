//! One semaphore for everything scarce: requests, decoders, bytes of memory.
//!
//! Permits have a weight. Demands are served before prefetches, and within each the waiters are served in the
//! order in which they came. Nobody overtakes the first waiter, so a heavy one is not starved by lighter
//! ones; one that is heavier than the whole limit is served once nothing else is held. Raising a waiter's
//! urgency, cancelling it, and releasing a permit each serve the next.

use crate::urgency::Urgency;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A semaphore with weights and two priorities.
#[derive(Debug)]
pub struct PrioritySemaphore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: u64,
    used: u64,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    weight: u64,
    urgency: Urgency,
    grant: oneshot::Sender<()>,
}

/// The right to use `weight`, until it is dropped.
#[derive(Debug)]
pub struct SemaphorePermit {
    semaphore: Arc<PrioritySemaphore>,
    weight: u64,
}

impl PrioritySemaphore {
    /// A semaphore whose permits together weigh at most `limit`.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { limit, used: 0, waiters: VecDeque::new() }) })
    }

    /// Waits for a permit. Cancelling the wait takes nothing.
    pub async fn acquire(self: &Arc<Self>, weight: u64, urgency: &Urgency) -> SemaphorePermit {
        let mut waiting = {
            let mut state = self.state.lock();
            let is_first = match state.first() {
                None => true,
                Some(first) => urgency.is_demand() && !state.waiters[first].urgency.is_demand(),
            };
            if is_first && state.fits(weight) {
                return self.grant(&mut state, weight);
            }
            let (grant, granted) = oneshot::channel();
            state.waiters.push_back(Waiter { weight, urgency: urgency.clone(), grant });
            Waiting { semaphore: self, granted, weight, is_served: false }
        };
        // The sender is dropped only with a permit granted, or together with this future.
        tokio::select! {
            biased;
            _ = &mut waiting.granted => {}
            () = urgency.raised() => {
                self.serve();
                (&mut waiting.granted).await.ok();
            }
        }
        waiting.is_served = true;
        SemaphorePermit { semaphore: self.clone(), weight }
    }

    /// A permit if one is free at once and nobody waits for it.
    pub fn try_acquire(self: &Arc<Self>, weight: u64) -> Option<SemaphorePermit> {
        let mut state = self.state.lock();
        let is_free = state.waiters.is_empty() && state.used.saturating_add(weight) <= state.limit;
        is_free.then(|| self.grant(&mut state, weight))
    }

    /// A permit at once, beyond the limit if need be; others then wait the longer.
    pub fn acquire_now(self: &Arc<Self>, weight: u64) -> SemaphorePermit {
        self.grant(&mut self.state.lock(), weight)
    }

    /// Changes the limit. Permits that are held stay.
    pub fn set_limit(&self, limit: u64) {
        self.state.lock().limit = limit;
        self.serve();
    }

    /// Whether somebody waits.
    pub fn is_short(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// The weight that a permit could have at once.
    pub fn free(&self) -> u64 {
        let state = self.state.lock();
        if state.waiters.is_empty() { state.limit.saturating_sub(state.used) } else { 0 }
    }

    /// Whether somebody waits, or all is used.
    pub fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.used >= state.limit || !state.waiters.is_empty()
    }

    /// The weight of all permits that are held.
    pub fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// What the permits may weigh together.
    pub fn limit(&self) -> u64 {
        self.state.lock().limit
    }

    fn grant(self: &Arc<Self>, state: &mut State, weight: u64) -> SemaphorePermit {
        state.used += weight;
        SemaphorePermit { semaphore: self.clone(), weight }
    }

    fn release(&self, weight: u64) {
        self.state.lock().used -= weight;
        self.serve();
    }

    /// Grants what can be granted.
    fn serve(&self) {
        let mut state = self.state.lock();
        while let Some(first) = state.first()
            && state.fits(state.waiters[first].weight)
        {
            let Some(waiter) = state.waiters.remove(first) else { break };
            // One that was just cancelled takes nothing.
            if waiter.grant.send(()).is_ok() {
                state.used += waiter.weight;
            }
        }
    }
}

impl State {
    /// The waiter to serve next: urgency may have risen since it came.
    fn first(&self) -> Option<usize> {
        let demand = self.waiters.iter().position(|waiter| waiter.urgency.is_demand());
        demand.or_else(|| (!self.waiters.is_empty()).then_some(0))
    }

    fn fits(&self, weight: u64) -> bool {
        self.used == 0 || self.used.saturating_add(weight) <= self.limit
    }
}

/// A waiter that may be cancelled: its place in the queue, or the permit just granted to it, goes to others.
struct Waiting<'a> {
    semaphore: &'a PrioritySemaphore,
    granted: oneshot::Receiver<()>,
    weight: u64,
    is_served: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_served {
            return;
        }
        self.granted.close();
        if self.granted.try_recv().is_ok() {
            return self.semaphore.release(self.weight);
        }
        self.semaphore.state.lock().waiters.retain(|waiter| !waiter.grant.is_closed());
        self.semaphore.serve();
    }
}

impl SemaphorePermit {
    /// How much of the semaphore's limit it takes.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Changes the weight of the permit. More is granted at once, beyond the limit if need be: it is in use
    /// already.
    pub fn resize(&mut self, weight: u64) {
        let more = weight.saturating_sub(self.weight);
        let less = self.weight.saturating_sub(weight);
        self.weight = weight;
        self.semaphore.state.lock().used += more;
        self.semaphore.release(less);
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        self.semaphore.release(self.weight);
    }
}

#[cfg(test)]
mod tests;
