//! Which connections a listener takes: a number in all, and a number from one address.
//!
//! Where there is no place, a connection that has not asked for anything yet gives way, the oldest first. So
//! those who open connections and say nothing keep nobody out.

use super::refusals::{Refusals, TurnedAway};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Leading bits of an IPv6 address that count: a network's users share the others as they like.
const IPV6_BITS: u32 = 64;

/// How many connections a listener has at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub all: usize,
    pub per_address: usize,
}

/// The connections of a listener. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Admission(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: ConnectionLimits,
    refusals: Arc<Refusals>,
    open: Mutex<OpenPlaces>,
}

#[derive(Debug, Default)]
struct OpenPlaces {
    next: u64,
    /// Those that are taken, by number, and for whom.
    taken: HashMap<u64, Option<IpAddr>>,
    by_address: HashMap<IpAddr, usize>,
    /// Those whose connection has asked for nothing yet, in the order in which they came.
    silent: BTreeMap<u64, CancellationToken>,
}

/// A connection's place, until dropped.
#[derive(Debug)]
pub struct Place {
    admission: Admission,
    number: u64,
    /// Where it comes from, as far as that counts.
    pub address: Option<IpAddr>,
    /// Called when the connection is to give way.
    pub evicted: CancellationToken,
}

impl Admission {
    /// None so far.
    pub fn new(limits: ConnectionLimits, refusals: Arc<Refusals>) -> Self {
        Self(Arc::new(Shared { limits, refusals, open: Mutex::default() }))
    }

    /// How many connections are open.
    pub fn count(&self) -> u64 {
        self.0.open.lock().taken.len() as u64
    }

    /// What was turned away, here and elsewhere.
    pub fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// A place for a connection from an address; `None` where there is none, which is counted. Over a Unix
    /// socket there are no addresses.
    pub fn admit(&self, address: Option<IpAddr>) -> Option<Place> {
        let (limits, address) = (self.0.limits, address.map(network));
        let mut open = self.0.open.lock();
        if let Some(at) = address
            && open.of(at) >= limits.per_address
        {
            self.make_room(&mut open, Some(at), TurnedAway::Address)?;
        }
        if open.taken.len() >= limits.all {
            self.make_room(&mut open, None, TurnedAway::Full)?;
        }
        let (number, evicted) = (open.next, CancellationToken::new());
        open.next += 1;
        open.taken.insert(number, address);
        open.silent.insert(number, evicted.clone());
        if let Some(at) = address {
            *open.by_address.entry(at).or_default() += 1;
        }
        Some(Place { admission: self.clone(), number, address, evicted })
    }

    /// Has a silent connection, of this address if one is given, give way to a new one; `None` if there is
    /// none.
    fn make_room(&self, open: &mut OpenPlaces, of: Option<IpAddr>, why: TurnedAway) -> Option<()> {
        let has_room = open.evict(of);
        self.0.refusals.count(if has_room { TurnedAway::Silent } else { why });
        has_room.then_some(())
    }
}

impl OpenPlaces {
    fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or_default()
    }

    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let mut oldest = self.silent.keys().copied();
        let number = match of {
            None => oldest.next(),
            of => oldest.find(|number| self.taken.get(number).copied() == Some(of)),
        };
        let Some(number) = number else { return false };
        if let Some(evicted) = self.silent.get(&number) {
            evicted.cancel();
        }
        self.leave(number);
        true
    }

    /// Frees a place, if it is taken still.
    fn leave(&mut self, number: u64) {
        self.silent.remove(&number);
        let Some(Some(address)) = self.taken.remove(&number) else { return };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl Place {
    /// The connection has asked for something: from now on it gives way to no other.
    pub fn has_asked(&self) {
        self.admission.0.open.lock().silent.remove(&self.number);
    }

    /// Counts why the connection ends.
    pub fn ends(&self, why: TurnedAway) {
        self.admission.refusals().count(why);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.0.open.lock().leave(self.number);
    }
}

/// What of an address counts.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() >> (128 - IPV6_BITS) << (128 - IPV6_BITS)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(all: usize, per_address: usize) -> Admission {
        Admission::new(ConnectionLimits { all, per_address }, Arc::default())
    }

    fn counts(admission: &Admission) -> Vec<u64> {
        admission.refusals().all().into_iter().map(|(_, count)| count).take(4).collect()
    }

    const A: [u8; 4] = [10, 0, 0, 1];

    #[test]
    fn one_address_does_not_take_all_places() {
        let admission = admission(4, 2);
        let at = |last: u8| admission.admit(Some([10, 0, 0, last].into())).inspect(Place::has_asked);
        let held: Vec<_> = [at(1), at(1), at(2)].into_iter().map(Option::unwrap).collect();
        assert!(at(1).is_none());
        let last = at(3).unwrap();
        assert!(at(4).is_none() && admission.admit(None).is_none(), "all are in use");
        drop(last);
        assert!(at(1).is_none() && at(4).is_some());
        drop(held);
        assert_eq!((counts(&admission), admission.count()), (vec![2, 2, 0, 0], 0));
        assert!(admission.0.open.lock().by_address.is_empty(), "nothing is kept of those who have gone");
    }

    #[test]
    fn silent_connections_give_way_the_oldest_first() {
        let admission = admission(4, 2);
        let (one, two) = (admission.admit(Some(A.into())).unwrap(), admission.admit(Some(A.into())).unwrap());
        one.has_asked();
        let other = admission.admit(Some([10, 0, 0, 2].into())).unwrap();
        let three = admission.admit(Some(A.into())).unwrap();
        assert!(two.evicted.is_cancelled() && !one.evicted.is_cancelled() && !other.evicted.is_cancelled());
        drop(two);
        assert_eq!(admission.count(), 3, "its place was free already");
        three.has_asked();
        assert!(admission.admit(Some(A.into())).is_none(), "the other address's gives no way to this one");
        let (four, five) = (admission.admit(None).unwrap(), admission.admit(None).unwrap());
        assert!(other.evicted.is_cancelled() && !four.evicted.is_cancelled());
        assert_eq!(counts(&admission), [0, 1, 0, 2]);
        drop((one, three, four, five, other));
        assert_eq!(admission.count(), 0);
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let network_of = |text: &str| network(text.parse().unwrap());
        assert_eq!(network_of("2001:db8:1:2:3::4"), network_of("2001:db8:1:2:ffff::"));
        assert_ne!(network_of("2001:db8:1:2::"), network_of("2001:db8:1:3::"));
        assert_eq!(network_of("::ffff:10.0.0.1"), IpAddr::from(A));
    }
}
