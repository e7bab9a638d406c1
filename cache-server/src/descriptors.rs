//! The limit of open files: raised as far as the system allows, and divided.

use crate::service::admission::ConnectionLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The part of the open files that the connections of one listener may be: the rest is for segment files that
/// are being read, the object store, other nodes.
const PART: u64 = 4;

/// The part of them that may be segment files kept open, and how many of these are of use: small ranges at
/// random go to as many blocks.
const KEPT_PART: u64 = 16;
const KEPT_MAX: u64 = 1024;

/// Connections that a listener has however few files may be open.
const CONNECTIONS_MIN: usize = 8;

/// Raises the limit of open files as far as this process may. Returns it.
pub fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if current >= maximum || setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_err()
    {
        return current;
    }
    maximum
}

/// The limits that a listener really has where this number of files may be open. One address never has
/// more than half of all.
pub fn limits(files: u64, wanted: ConnectionLimits) -> ConnectionLimits {
    let most = usize::try_from(files / PART).unwrap_or(usize::MAX).max(CONNECTIONS_MIN);
    let all = wanted.all.min(most);
    ConnectionLimits { all, per_address: wanted.per_address.min((all / 2).max(1)) }
}

/// Segment files that are kept open where this number of files may be.
pub fn kept_files(files: u64) -> usize {
    (files / KEPT_PART).min(KEPT_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_a_quarter_of_the_files_at_most() {
        let wanted = ConnectionLimits { all: 4096, per_address: 512 };
        let of = |files, all, per_address| {
            let limits = limits(files, ConnectionLimits { all, per_address });
            (limits.all, limits.per_address)
        };
        assert_eq!(limits(1 << 20, wanted), wanted);
        assert_eq!(of(1024, 4096, 512), (256, 128));
        assert_eq!(of(16, 4096, 512), (8, 4));
        assert_eq!(of(u64::MAX, 1, 512), (1, 1));
        assert_eq!((kept_files(1024), kept_files(u64::MAX)), (64, 1024));
    }

    #[test]
    fn the_limit_is_raised_to_the_highest() {
        let files = raise();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), files);
        assert_eq!(raise(), files);
    }
}
