//! Names of snapshots: versions of datasets that are kept under a name.

use crate::error::{Error, Result};

/// What the URI of a snapshot begins with.
pub const SCHEME: &str = "snapshot:";

/// Characters that a name may have.
const NAME_MAX: usize = 100;

/// `Invalid` unless it can be a snapshot's name: letters, digits, `.`, `_` and `-`, the first of them a
/// letter or digit.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_good = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain);
    match is_good && name.len() <= NAME_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "`{name}` cannot be a snapshot's name: use 1 to {NAME_MAX} letters, digits, `.`, `_` and `-`, as in \
             train-2026.07"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "train-2026.07", "A_1", "7"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "-x", "a b", "a/b", "é", &"a".repeat(101)] {
            let e = check_name(bad).unwrap_err();
            assert!(e.message.contains(bad) && e.message.contains("letters"), "{e}");
        }
    }
}
