//! The settings of objects by prefix.

use crate::settings::{MetadataAge, ObjectSettings};
use forebay_dataset::source::{is_under, normalise};
use forebay_proto::{Error, Result};

/// What holds for which objects.
#[derive(Debug)]
pub struct Rules {
    default: Rule,
    /// The longest prefix first.
    prefixes: Vec<(String, Rule)>,
}

#[derive(Debug, Clone, Copy)]
struct Rule {
    block_bytes: u64,
    age: MetadataAge,
}

impl Rules {
    pub fn new(settings: &ObjectSettings) -> Result<Self> {
        let default = Rule { block_bytes: settings.block_bytes, age: settings.metadata_age };
        let prefix = |of: &crate::settings::PrefixSettings| {
            let block_bytes = of.block_bytes.unwrap_or(default.block_bytes);
            Ok::<_, Error>((
                normalise(&of.uri)?,
                Rule { block_bytes, age: of.metadata_age.unwrap_or(default.age) },
            ))
        };
        let mut prefixes = settings.prefix.iter().map(prefix).collect::<Result<Vec<_>>>()?;
        prefixes.sort_by_key(|(uri, _)| std::cmp::Reverse(uri.len()));
        Ok(Self { default, prefixes })
    }

    /// How old an object's metadata may be.
    pub fn age(&self, uri: &str) -> MetadataAge {
        self.of(uri).age
    }

    /// Bytes of an object's blocks.
    pub fn block_bytes(&self, uri: &str) -> u64 {
        self.of(uri).block_bytes
    }

    fn of(&self, uri: &str) -> Rule {
        let fits = self.prefixes.iter().find(|(prefix, _)| is_under(uri, prefix));
        fits.map_or(self.default, |(_, rule)| *rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::PrefixSettings;

    #[test]
    fn the_longest_prefix_counts() {
        let prefix = |uri: &str, block_bytes, metadata_age| PrefixSettings {
            uri: uri.into(),
            block_bytes,
            metadata_age,
        };
        let settings = ObjectSettings {
            prefix: vec![
                prefix("s3://b/a/", Some(1 << 20), None),
                prefix("s3://b/a/deep", None, Some(MetadataAge::Immutable)),
            ],
            ..Default::default()
        };
        let rules = Rules::new(&settings).unwrap();
        let of = |uri| (rules.block_bytes(uri), rules.age(uri));
        assert_eq!(of("s3://b/x"), (4 << 20, MetadataAge::Always));
        assert_eq!(of("s3://b/ab"), (4 << 20, MetadataAge::Always));
        assert_eq!(of("s3://b/a/x"), (1 << 20, MetadataAge::Always));
        assert_eq!(of("s3://b/a/deep/x"), (4 << 20, MetadataAge::Immutable));
    }
}
