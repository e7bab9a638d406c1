//! Which of a segment's copies a reader asks for.
//!
//! Readers of a segment that is much read ("hot") spread over all its copies: by the segment's number and the
//! reader's own offset, so that the segments of one reader spread evenly, and so do many readers of one
//! segment. For any other segment the copy in the reader's own zone is read, else the owner's. Nodes that are
//! out are passed over. If no copy can be read, the next node in rank is asked, and fetches the segment
//! itself.

use forebay_proto::manifest::{Manifest, SegmentId};
use forebay_proto::object::ObjectVersion;
use forebay_proto::ring::{Balance, Copies, Placement, Ring};
use forebay_proto::{Result, v1};

/// What a reader's choice depends on besides the topology.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReadPolicy {
    /// The zone whose copies are preferred.
    pub zone: Option<String>,
    /// Sets one reader apart from others where they are to spread.
    pub offset: u64,
}

/// Chooses nodes by one topology.
pub(crate) struct Router<'a> {
    topology: &'a v1::Topology,
    placement: Placement<'a>,
    out: Vec<bool>,
    policy: &'a ReadPolicy,
    heirs: Option<Heirs<'a>>,
}

/// The nodes that are not out, and who of them owns what once the others are gone.
struct Heirs<'a> {
    ring: Ring<'a>,
    balance: &'a Balance,
    /// Their places in the topology.
    at: Vec<usize>,
}

impl<'a> Router<'a> {
    /// `is_out` says of an address whether its node is out.
    pub fn new(
        topology: &'a v1::Topology,
        balance: &'a Balance,
        is_out: impl Fn(&str) -> bool,
        policy: &'a ReadPolicy,
    ) -> Self {
        let out = topology.nodes.iter().map(|n| is_out(&n.address)).collect();
        Self { topology, placement: Placement::new(topology, balance), out, policy, heirs: None }
    }

    /// With the balance of `nodes`: those of the topology that are not out, in its order.
    pub fn with_heirs(mut self, nodes: &'a [v1::Node], balance: &'a Balance) -> Self {
        let at = (0..self.out.len()).filter(|&n| !self.out[n]).collect();
        self.heirs = Some(Heirs { ring: Ring::new(nodes), balance, at });
        self
    }

    /// The node to ask for each of `segments`, by its index; `None` where no node takes segments.
    pub fn nodes(&self, manifest: &Manifest, segments: &[u32]) -> Result<Vec<Option<usize>>> {
        let mut last = None;
        let choose = |&number: &u32| {
            let object = manifest.segment(number)?.object;
            // Segments of an object follow each other.
            let replicas = match last {
                Some((of, replicas)) if of == object => replicas,
                _ => self.placement.replicas(&manifest.object_uri(&manifest.objects()[object as usize])),
            };
            last = Some((object, replicas));
            Ok(self.node(manifest.segment_id(number)?, number, replicas))
        };
        segments.iter().map(choose).collect()
    }

    /// The node to ask for each of some blocks of an object.
    pub fn object_nodes(&self, object: &ObjectVersion, blocks: &[u64]) -> Vec<Option<usize>> {
        let replicas = self.placement.replicas(&object.uri);
        blocks.iter().map(|&block| self.node(object.block_id(block), block as u32, replicas)).collect()
    }

    fn node(&self, id: SegmentId, number: u32, replicas: usize) -> Option<usize> {
        // Where the owner has the only copy, the other nodes need no ranking.
        if replicas == 1
            && !self.placement.is_hot(id)
            && let Some(owner) = self.placement.owner(id)
            && !self.out[owner]
        {
            return Some(owner);
        }
        let Copies { order, count, hot } = self.placement.copies(id, replicas);
        let (held, others) = order.split_at(count);
        let copies = || held.iter().chain(&hot).copied().filter(|&n| !self.out[n]);
        let chosen = match copies().count() as u64 {
            n @ 2.. if self.placement.is_hot(id) => {
                let turn = u64::from(number).wrapping_add(self.policy.offset) % n;
                copies().nth(turn as usize)
            }
            _ => copies().find(|&n| self.is_near(n)).or_else(|| copies().next()),
        };
        let heir = || self.heirs.as_ref().and_then(|heirs| heirs.owner(id));
        let next = || others.iter().copied().find(|&n| !self.out[n]);
        chosen.or_else(heir).or_else(next).or(order.first().copied())
    }

    /// All other nodes that can be asked for a segment, those with copies first.
    pub fn others(&self, manifest: &Manifest, number: u32, but: &str) -> Result<Vec<usize>> {
        let object = &manifest.objects()[manifest.segment(number)?.object as usize];
        let replicas = self.placement.replicas(&manifest.object_uri(object));
        let Copies { order, count, hot } = self.placement.copies(manifest.segment_id(number)?, replicas);
        let (held, others) = order.split_at(count);
        let rest = others.iter().filter(|n| !hot.contains(n));
        let usable = |&n: &usize| !self.out[n] && self.topology.nodes[n].address != but;
        Ok(held.iter().chain(&hot).chain(rest).copied().filter(usable).collect())
    }

    fn is_near(&self, node: usize) -> bool {
        self.policy.zone.as_ref().is_some_and(|zone| *zone == self.topology.nodes[node].zone)
    }
}

impl Heirs<'_> {
    fn owner(&self, id: SegmentId) -> Option<usize> {
        self.balance.owner(&self.ring, id).and_then(|n| self.at.get(n).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::{Object, SegmentSize};

    fn topology(zones: &[&str], replicas: u32) -> v1::Topology {
        let node = |(i, zone): (usize, &&str)| v1::Node {
            name: format!("n{i}"),
            address: format!("http://n{i}:1"),
            weight: 1.0,
            zone: (*zone).into(),
        };
        v1::Topology { nodes: zones.iter().enumerate().map(node).collect(), replicas, ..Default::default() }
    }

    fn manifest() -> Manifest {
        let object = |key: &str| Object { key: key.into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = |object| SegmentSize { object, row_groups: 1, rows: 10, decoded_bytes: 1 };
        let sizes: Vec<_> = (0..120).map(|i| size(i / 60)).collect();
        Manifest::new("s3://b/d", 1, vec![], vec![object("x/1"), object("y/1")], &sizes).unwrap()
    }

    fn balance(t: &v1::Topology) -> Balance {
        Balance::of(&t.nodes, [&manifest()])
    }

    fn all() -> Vec<u32> {
        (0..120).collect()
    }

    fn chosen(t: &v1::Topology, out: &[&str], policy: &ReadPolicy) -> Vec<usize> {
        let even = balance(t);
        let router = Router::new(t, &even, |url| out.contains(&url), policy);
        router.nodes(&manifest(), &all()).unwrap().into_iter().map(Option::unwrap).collect()
    }

    fn order(t: &v1::Topology, segment: u32) -> Vec<usize> {
        let replicas =
            if segment < 60 { t.replicas } else { t.datasets.first().map_or(t.replicas, |d| d.replicas) };
        Placement::new(t, &balance(t))
            .copies(manifest().segment_id(segment).unwrap(), replicas as usize)
            .order
    }

    fn heat(t: &mut v1::Topology, segments: impl Iterator<Item = u32>, nodes: &[&str]) {
        let nodes: Vec<String> = nodes.iter().map(|n| (*n).into()).collect();
        t.hot = segments
            .map(|s| v1::HotSegment {
                segment: manifest().segment_id(s).unwrap().0.to_bytes().to_vec().into(),
                nodes: nodes.clone(),
                ..Default::default()
            })
            .collect();
    }

    #[test]
    fn the_owner_then_the_next_in_order() {
        let t = topology(&["", "", ""], 2);
        let (first, none) = (chosen(&t, &[], &ReadPolicy::default()), &ReadPolicy::default());
        for s in all() {
            let order = order(&t, s);
            assert_eq!(first[s as usize], order[0]);
            let url = |n: usize| t.nodes[n].address.as_str();
            assert_eq!(chosen(&t, &[url(order[0])], none)[s as usize], order[1]);
            assert_eq!(chosen(&t, &[url(order[0]), url(order[1])], none)[s as usize], order[2]);
            let every: Vec<_> = order.iter().map(|&n| url(n)).collect();
            assert_eq!(
                chosen(&t, &every, none)[s as usize],
                order[0],
                "when all are out the owner is as good as any"
            );
        }
        let empty = Router::new(&v1::Topology::default(), &Balance::default(), |_| false, none)
            .nodes(&manifest(), &[1])
            .unwrap();
        assert_eq!(empty, [None]);
    }

    #[test]
    fn without_a_copy_it_is_the_owner_among_the_others() {
        let t = topology(&["", "", "", ""], 1);
        let (even, policy) = (balance(&t), ReadPolicy::default());
        let mut not_next = 0;
        for gone in 0..4 {
            let mut later = t.clone();
            later.nodes.remove(gone);
            let after = balance(&later);
            let router = Router::new(&t, &even, |url| url == t.nodes[gone].address, &policy)
                .with_heirs(&later.nodes, &after);
            let now = router.nodes(&manifest(), &all()).unwrap();
            let later = Router::new(&later, &after, |_| false, &policy).nodes(&manifest(), &all()).unwrap();
            for s in all() {
                let order = order(&t, s);
                let name = |n: usize| n + usize::from(n >= gone);
                let want = if order[0] == gone { later[s as usize].map(name) } else { Some(order[0]) };
                assert_eq!(now[s as usize], want, "segment {s} without node {gone}");
                not_next += usize::from(order[0] == gone && want != Some(order[1]));
            }
        }
        assert!(not_next > 0, "the balance moves some");
    }

    #[test]
    fn a_copy_in_the_own_zone_if_there_is_one() {
        let mut t = topology(&["a", "b", "c"], 1);
        t.datasets = vec![v1::Replicas { uri: "s3://b/d/y".into(), replicas: 2 }];
        let policy = ReadPolicy { zone: Some("b".into()), offset: 0 };
        let with = chosen(&t, &[], &policy);
        let mut near = 0;
        for s in all() {
            let order = order(&t, s);
            let copies = if s < 60 { 1 } else { 2 };
            let want = if order[..copies].contains(&1) { 1 } else { order[0] };
            assert_eq!(with[s as usize], want, "segment {s}");
            near += usize::from(s >= 60 && want == 1 && order[0] != 1);
        }
        assert!(near > 5, "{near}");
        let out = chosen(&t, &["http://n1:1"], &policy);
        assert!(out.iter().all(|&n| n != 1));
    }

    #[test]
    fn what_is_hot_is_spread_evenly_and_by_reader() {
        let mut t = topology(&["a", "a", "b", "b"], 1);
        heat(&mut t, 0..90, &["n0", "n1", "n2", "n3"]);
        let count = |chosen: &[usize]| {
            let mut count = [0; 4];
            chosen[..90].iter().for_each(|&n| count[n] += 1);
            count
        };
        let zoned = |offset| ReadPolicy { zone: Some("b".into()), offset };
        let first = chosen(&t, &[], &zoned(0));
        assert!(count(&first).iter().all(|c| (14..32).contains(c)), "{:?}", count(&first));
        for (s, &chosen) in first.iter().enumerate().skip(90) {
            assert_eq!(chosen, order(&t, s as u32)[0], "not hot");
        }
        // Readers of one segment spread over all nodes.
        let mut at: Vec<_> = (0..4).map(|offset| chosen(&t, &[], &zoned(offset))[7]).collect();
        at.sort_unstable();
        assert_eq!(at, [0, 1, 2, 3]);
        let without = chosen(&t, &["http://n2:1"], &zoned(0));
        assert!(count(&without)[2] == 0 && count(&without)[3] > 14);
    }

    #[test]
    fn others_are_copies_first() {
        let mut t = topology(&["", "", "", ""], 2);
        let first = order(&t, 5);
        heat(&mut t, 5..6, &[&format!("n{}", first[3])]);
        let (policy, even) = (ReadPolicy::default(), balance(&t));
        let router = Router::new(&t, &even, |_| false, &policy);
        let asked = format!("http://n{}:1", first[0]);
        assert_eq!(router.others(&manifest(), 5, &asked).unwrap(), [first[1], first[3], first[2]]);
        let gone = format!("http://n{}:1", first[1]);
        let router = Router::new(&t, &even, |url| url == gone, &policy);
        assert_eq!(router.others(&manifest(), 5, &asked).unwrap(), [first[3], first[2]]);
    }
}
