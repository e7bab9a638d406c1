//! Other policies on the same reads: least recently used, and the best possible one (Belady 1966, with the
//! choice not to keep the segment that was just read).

use std::collections::{BTreeSet, HashMap};

/// Hits of each epoch of `trace` in a cache of `capacity` segments that evicts the least recently used.
pub fn lru(trace: &[Vec<u32>], capacity: usize) -> Vec<u64> {
    let (mut used_at, mut by_time, mut now) = (HashMap::new(), BTreeSet::new(), 0u64);
    let mut read = |segment: u32| {
        now += 1;
        let before = used_at.insert(segment, now);
        if let Some(before) = before {
            by_time.remove(&(before, segment));
        }
        by_time.insert((now, segment));
        if by_time.len() > capacity
            && let Some((_, victim)) = by_time.pop_first()
        {
            used_at.remove(&victim);
        }
        before.is_some()
    };
    trace.iter().map(|epoch| epoch.iter().filter(|segment| read(**segment)).count() as u64).collect()
}

/// Hits of each epoch if the segment whose next read is furthest away always goes.
pub fn best(trace: &[Vec<u32>], capacity: usize) -> Vec<u64> {
    let reads: Vec<u32> = trace.iter().flatten().copied().collect();
    let mut next_read = vec![usize::MAX; reads.len()];
    let mut seen = HashMap::new();
    for (at, segment) in reads.iter().enumerate().rev() {
        next_read[at] = seen.insert(*segment, at).unwrap_or(usize::MAX);
    }
    let (mut held, mut at) = (BTreeSet::new(), 0);
    let mut read = |segment: u32| {
        let hit = held.remove(&(at, segment));
        held.insert((next_read[at], segment));
        if held.len() > capacity {
            held.pop_last();
        }
        at += 1;
        hit
    };
    trace.iter().map(|epoch| epoch.iter().filter(|segment| read(**segment)).count() as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_larger_than_the_cache_defeats_recency_but_not_foresight() {
        let trace = vec![vec![1, 2, 3, 4]; 4];
        assert_eq!(lru(&trace, 3), [0, 0, 0, 0]);
        assert_eq!(lru(&trace, 4), [0, 4, 4, 4]);
        assert_eq!(best(&trace, 4), [0, 4, 4, 4]);
        assert_eq!(best(&trace, 2).iter().sum::<u64>(), 6, "two of four in each round after the first");
        assert_eq!(best(&trace, 0), [0, 0, 0, 0]);
    }

    #[test]
    fn recency_holds_what_was_just_read() {
        assert_eq!(lru(&[vec![1, 2, 1, 3, 1, 2]], 2), [2]);
        assert_eq!(best(&[vec![1, 2, 1, 3, 1, 2]], 2), [3]);
    }
}
