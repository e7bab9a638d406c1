//! The files that were read last, as far as they fit: one file has the deletion vectors of many objects.
//!
//! Exactly those, which `quick_cache` does not promise: it turns a file away that is larger than all may be
//! together, and it may drop the one that was read last for others that were read before.

use bytes::Bytes;
use std::collections::VecDeque;

/// Bytes of all of them but the last.
pub(super) const RECENT_BYTES: u64 = 64 << 20;

/// Whole files by their URIs, the one that was asked for last at the end.
#[derive(Debug, Default)]
pub(super) struct RecentFiles {
    files: VecDeque<(String, Bytes)>,
    bytes: u64,
}

impl RecentFiles {
    /// A file, if it is still there.
    pub fn get(&mut self, uri: &str) -> Option<Bytes> {
        let place = self.files.iter().position(|(other, _)| other == uri)?;
        let file = self.files.remove(place)?;
        let content = file.1.clone();
        self.files.push_back(file);
        Some(content)
    }

    /// Keeps a file, and drops those that were asked for longest ago. The file itself stays, whatever its
    /// size.
    pub fn put(&mut self, uri: String, content: Bytes) {
        if self.get(&uri).is_some() {
            return;
        }
        self.bytes += content.len() as u64;
        self.files.push_back((uri, content));
        while self.bytes > RECENT_BYTES && self.files.len() > 1 {
            let dropped = self.files.pop_front().map_or(0, |(_, content)| content.len() as u64);
            self.bytes -= dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_until_others_need_their_room() {
        let file = |mib: usize| Bytes::from(vec![0; mib << 20]);
        let mut recent = RecentFiles::default();
        recent.put("a".into(), file(30));
        recent.put("a".into(), file(30));
        recent.put("b".into(), file(30));
        assert_eq!(recent.bytes, 60 << 20);
        assert_eq!(recent.get("a").map(|content| content.len()), Some(30 << 20));
        recent.put("c".into(), file(20));
        assert!(recent.get("b").is_none() && recent.get("a").is_some() && recent.get("c").is_some());
        recent.put("large".into(), file(65));
        assert!(recent.get("a").is_none() && recent.get("large").is_some());
        assert_eq!((recent.files.len(), recent.bytes), (1, 65 << 20));
    }
}
