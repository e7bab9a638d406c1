//! The keys of snapshots in etcd.

use crate::settings::ClusterSettings;

/// The keys of a snapshot.
pub(super) struct Keys {
    pub head: String,
    pub objects: String,
}

impl Keys {
    /// Of a name; of none: what those of all begin with.
    pub fn new(settings: &ClusterSettings, name: &str) -> Self {
        let of = |kind| format!("{}-snapshots/{kind}/{name}", settings.etcd_prefix);
        Self { head: of("heads"), objects: of("objects") }
    }

    /// What the parts of an id begin with.
    pub fn parts(&self, id: i64) -> String {
        format!("{}/{}/", self.objects, Self::id(id))
    }

    /// One of them.
    pub fn part(&self, id: i64, number: u32) -> String {
        format!("{}{number:05}", self.parts(id))
    }

    /// The name and the id of a part, by its key below that of all objects.
    pub fn of_part(key: &str) -> Option<(String, i64)> {
        let mut words = key.split('/');
        let (name, id) = (words.next()?, words.next()?);
        Some((name.to_owned(), u64::from_str_radix(id, 16).ok()? as i64))
    }

    /// Says that the saver of an id lives.
    pub fn mark(settings: &ClusterSettings, id: i64) -> String {
        format!("{}{}", Self::marks(settings), Self::id(id))
    }

    /// What all marks begin with.
    pub fn marks(settings: &ClusterSettings) -> String {
        format!("{}-snapshots/saving/", settings.etcd_prefix)
    }

    /// As keys have it.
    pub fn id(id: i64) -> String {
        format!("{id:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_parts_say_whose_they_are() {
        let keys = Keys::new(&ClusterSettings { etcd_prefix: "/x".into(), ..Default::default() }, "july");
        for id in [1, i64::MAX, -5] {
            let part = keys.part(id, 7);
            assert!(part.starts_with(&keys.parts(id)) && part.ends_with("/00007"), "{part}");
            let below = part.strip_prefix("/x-snapshots/objects/").unwrap();
            assert_eq!(Keys::of_part(below), Some(("july".into(), id)));
        }
        assert_eq!(Keys::of_part("july"), None, "the objects of a small one");
    }
}
