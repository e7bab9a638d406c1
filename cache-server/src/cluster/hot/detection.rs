//! Which segments are hot, where their copies are, and which copies this node holds for others. No I/O.

use super::tuning::{
    COPIES_MAX, HEAT_MIN, HOTTEST_SHARE, NEVER_LISTED, SEGMENTS_AT_ONCE, SEGMENTS_MAX, UNLISTED,
};
use crate::disk::policy::Role;
use forebay_proto::manifest::SegmentId;
use forebay_proto::v1;
use std::collections::HashMap;
use std::time::Instant;

/// Heat, the segments published for it, and the copies taken for others' readers.
#[derive(Debug, Default)]
pub struct Detection {
    /// Bytes served of each segment, each second worth half of the one after it.
    heat: HashMap<SegmentId, f64>,
    published: HashMap<SegmentId, PublishedSegment>,
    /// Copies that this node holds for the readers of others' hot segments.
    /// Each until then, unless the topology lists it again.
    copies: HashMap<SegmentId, Instant>,
}

#[derive(Debug, Default)]
struct PublishedSegment {
    /// Names of the nodes that hold further copies.
    nodes: Vec<String>,
    /// Nodes besides this one that hold it for good.
    replicas: usize,
}

impl Detection {
    /// Bytes were served of some segments.
    pub fn note(&mut self, served: impl IntoIterator<Item = (SegmentId, f64)>) {
        served.into_iter().for_each(|(id, bytes)| *self.heat.entry(id).or_default() += bytes);
    }

    /// A second has passed: heat is worth half.
    pub fn fade(&mut self) {
        self.heat.values_mut().for_each(|heat| *heat /= 2.0);
        self.heat.retain(|_, heat| *heat >= HEAT_MIN);
    }

    /// The bytes that this node would serve without the copies, as a multiple of those that it serves.
    pub fn share_alone(&self) -> f64 {
        let all: f64 = self.heat.values().sum();
        let heat = |id| self.heat.get(id).copied().unwrap_or_default();
        let away = |(id, hot): (_, &PublishedSegment)| heat(id) * (hot.nodes.len() + hot.replicas) as f64;
        let away: f64 = self.published.iter().map(away).sum();
        if all > 0.0 { (all + away) / all } else { 0.0 }
    }

    /// The hottest segments; with each, where its further copies are if it is published.
    pub fn hottest(&self) -> Vec<(SegmentId, Option<Vec<String>>)> {
        let mut all: Vec<_> = self.heat.iter().map(|(id, heat)| (*heat, *id)).collect();
        all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let enough = HOTTEST_SHARE * all.iter().map(|(heat, _)| heat).sum::<f64>();
        let mut sum = 0.0;
        let hottest = all.into_iter().take(SEGMENTS_AT_ONCE).take_while(|(heat, _)| {
            let wanted = sum < enough;
            sum += heat;
            wanted
        });
        hottest.map(|(_, id)| (id, self.published.get(&id).map(|hot| hot.nodes.clone()))).collect()
    }

    /// Readers are to use the `replicas` of a segment, and its copy at a further node. False if that is not
    /// new, or too many segments are published.
    pub fn publish(&mut self, id: SegmentId, replicas: usize, copy_at: Option<&str>) -> bool {
        let is_known = self.published.contains_key(&id);
        if !is_known && self.published.len() >= SEGMENTS_MAX {
            return false;
        }
        let hot = self.published.entry(id).or_default();
        hot.replicas = replicas;
        let new = copy_at.filter(|name| !hot.nodes.iter().any(|node| node == name));
        hot.nodes.extend(new.filter(|_| hot.nodes.len() < COPIES_MAX).map(str::to_owned));
        new.is_some() || !is_known
    }

    /// The published segments.
    pub fn published(&self) -> Vec<SegmentId> {
        self.published.keys().copied().collect()
    }

    /// From now on no segment is hot.
    pub fn withdraw(&mut self) {
        self.published.clear();
    }

    /// Withdraws the segments that this node does not own; true if there were any.
    pub fn withdraw_disowned(&mut self, roles: impl Iterator<Item = (SegmentId, Role)>) -> bool {
        let before = self.published.len();
        for (id, _) in roles.filter(|(_, role)| *role != Role::Primary) {
            self.published.remove(&id);
        }
        self.published.len() < before
    }

    pub fn to_wire(&self) -> Vec<v1::HotSegment> {
        let mut segments: Vec<_> = self.published.iter().collect();
        segments.sort_unstable_by_key(|(id, _)| **id);
        let hot = |(id, hot): (&SegmentId, &PublishedSegment)| v1::HotSegment {
            segment: id.0.to_bytes().to_vec().into(),
            nodes: hot.nodes.clone(),
        };
        segments.into_iter().map(hot).collect()
    }

    pub fn took_copy(&mut self, id: SegmentId) {
        self.copies.entry(id).or_insert(Instant::now() + NEVER_LISTED);
    }

    /// Takes out the copies for others' readers that have not been listed for a while.
    pub fn take_stale(&mut self, is_listed: impl Fn(SegmentId) -> bool) -> Vec<SegmentId> {
        let now = Instant::now();
        let stale = self.copies.extract_if(|id, until| {
            if is_listed(*id) {
                *until = now + UNLISTED;
            }
            *until < now
        });
        stale.map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::Digest;

    fn id(n: u128) -> SegmentId {
        SegmentId(Digest(n))
    }

    #[test]
    fn the_hottest_make_up_the_share() {
        let mut d = Detection::default();
        d.note([(id(1), 5e6), (id(2), 3e6), (id(3), 2e6)]);
        let ids: Vec<_> = d.hottest().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, [id(1), id(2)]);
        assert_eq!(d.hottest()[0].1, None);
        let mut made = |at| d.publish(id(1), 1, at);
        assert!(made(None) && !made(None) && made(Some("b")) && !made(Some("b")));
        assert_eq!(d.hottest()[0].1, Some(vec!["b".to_owned()]));
        assert_eq!(d.share_alone(), 2.0, "half of all is read here, and as much at a replica and at b");
        d.fade();
        assert_eq!(d.heat[&id(1)], 2.5e6);
        assert!(d.withdraw_disowned([(id(1), Role::Replica)].into_iter()) && d.published().is_empty());
    }

    #[test]
    fn extra_copies_go_when_they_are_not_listed_any_more() {
        let mut d = Detection::default();
        d.took_copy(id(1));
        d.took_copy(id(2));
        assert_eq!(d.take_stale(|listed| listed == id(1)), [], "one is listed, the other may be soon");
        assert_eq!(d.take_stale(|_| false), [], "it may be listed again at once");
        for (ago, gone) in [(2 * UNLISTED, id(1)), (2 * NEVER_LISTED, id(2))] {
            d.copies.values_mut().for_each(|until| *until = until.checked_sub(ago).unwrap());
            assert_eq!(d.take_stale(|_| false), [gone]);
        }
    }
}
