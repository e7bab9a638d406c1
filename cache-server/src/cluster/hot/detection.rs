//! Which segments are hot, where their copies are, and which copies this node holds for others. No I/O.

use super::tuning::{
    COPIES_MAX, HEAT_MIN, HOTTEST_SHARE, NEVER_LISTED, PUBLISHED_BYTES_MAX, SEGMENTS_AT_ONCE, SEGMENTS_MAX,
    UNLISTED,
};
use crate::disk::policy::Role;
use forebay_proto::manifest::SegmentId;
use forebay_proto::v1;
use prost::Message as _;
use std::collections::HashMap;
use std::time::Instant;

/// Bytes of a field's key and length at most, where it is a segment or a URI.
const FIELD_BYTES: usize = 4;

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
    /// URI of its object.
    object: String,
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

    /// Readers are to use the `replicas` of a segment of an object, and its copy at a further node. False if
    /// that is not new, or too many segments are published.
    pub fn publish(&mut self, id: SegmentId, object: &str, replicas: usize, copy_at: Option<&str>) -> bool {
        let is_known = self.published.contains_key(&id);
        if !is_known && self.published.len() >= SEGMENTS_MAX {
            return false;
        }
        let first = || PublishedSegment { object: object.to_owned(), ..Default::default() };
        let hot = self.published.entry(id).or_insert_with(first);
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

    /// What others are told. URIs beyond what may be written are left out: of those segments only operators
    /// are told then.
    pub fn to_wire(&self) -> Vec<v1::HotSegment> {
        let mut segments: Vec<_> = self.published.iter().collect();
        segments.sort_unstable_by_key(|(id, _)| **id);
        let hot = |(id, hot): &(&SegmentId, &PublishedSegment)| v1::HotSegment {
            segment: id.0.to_bytes().to_vec().into(),
            nodes: hot.nodes.clone(),
            uri: String::new(),
        };
        let mut told: Vec<v1::HotSegment> = segments.iter().map(hot).collect();
        let mut bytes: usize = told.iter().map(|hot| hot.encoded_len() + FIELD_BYTES).sum();
        for (hot, (_, published)) in told.iter_mut().zip(segments) {
            bytes += published.object.len() + FIELD_BYTES;
            if bytes > PUBLISHED_BYTES_MAX {
                break;
            }
            hot.uri.clone_from(&published.object);
        }
        told
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
        let mut made = |at| d.publish(id(1), "s3://b/1", 1, at);
        assert!(made(None) && !made(None) && made(Some("b")) && !made(Some("b")));
        assert_eq!(d.hottest()[0].1, Some(vec!["b".to_owned()]));
        assert_eq!(d.share_alone(), 2.0, "half of all is read here, and as much at a replica and at b");
        d.fade();
        assert_eq!(d.heat[&id(1)], 2.5e6);
        assert!(d.withdraw_disowned([(id(1), Role::Replica)].into_iter()) && d.published().is_empty());
    }

    #[test]
    fn what_is_published_says_which_objects_as_far_as_it_may_be_written() {
        let mut d = Detection::default();
        d.publish(id(1), "s3://b/one", 0, Some("a"));
        let uris = |d: &Detection| d.to_wire().into_iter().map(|hot| hot.uri).collect::<Vec<_>>();
        assert_eq!(uris(&d), ["s3://b/one"]);
        let (long, copies) = ("u".repeat(2048), ["a", "b", "c"]);
        for n in 0..SEGMENTS_MAX as u128 {
            for node in copies {
                d.publish(id(n), &long, 1, Some(node));
            }
        }
        let (told, uris) = (v1::HotSegments { segments: d.to_wire() }, uris(&d));
        assert_eq!(uris.len(), SEGMENTS_MAX);
        assert!(uris.iter().filter(|uri| !uri.is_empty()).count() > 100);
        let bytes = told.encoded_len();
        assert!(bytes <= PUBLISHED_BYTES_MAX && bytes > PUBLISHED_BYTES_MAX - 4096, "{bytes} bytes");
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
