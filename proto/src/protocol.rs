//! Which versions of the protocol a node and a client speak. Each says so when a dataset is opened, and
//! refuses the other if they have none in common. Who says nothing is from before there were any: version 0.
//!
//! A change that the other side need not know of (a new field, a new call) keeps the version. One after which
//! they would misunderstand each other is a new version, and moves the oldest that is still spoken.

use crate::error::{Error, Result};
use crate::v1::Protocol;

/// The newest version, spoken here.
const VERSION: u32 = 1;

/// The oldest one that is still spoken here.
const OLDEST: u32 = 0;

/// What this side says of itself.
pub fn ours() -> Protocol {
    Protocol { version: VERSION, oldest: OLDEST, release: env!("CARGO_PKG_VERSION").into() }
}

/// At a client, what the node at `url` says of itself.
pub fn check_node(url: &str, node: Option<&Protocol>) -> Result<()> {
    common(&ours(), node, &format!("the node at {url}"), "this client")
}

/// At a node, what a client says of itself.
pub fn check_client(client: Option<&Protocol>) -> Result<()> {
    common(&ours(), client, "this client", "the node")
}

/// `Invalid` if two sides have no version in common.
fn common(ours: &Protocol, theirs: Option<&Protocol>, they: &str, we: &str) -> Result<()> {
    let before = Protocol::default();
    let theirs = theirs.unwrap_or(&before);
    let older = match (theirs.version < ours.oldest, ours.version < theirs.oldest) {
        (false, false) => return Ok(()),
        (true, _) => they,
        (false, true) => we,
    };
    Err(Error::invalid(format!(
        "{they} speaks {}, {we} {}: upgrade {older} to a release that both know",
        told(theirs),
        told(ours)
    )))
}

fn told(side: &Protocol) -> String {
    let release = if side.release.is_empty() { "of before" } else { &side.release };
    match side.oldest == side.version {
        true => format!("version {} of the protocol (Forebay {release})", side.version),
        false => format!("versions {} to {} of the protocol (Forebay {release})", side.oldest, side.version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn side(oldest: u32, version: u32, release: &str) -> Protocol {
        Protocol { version, oldest, release: release.into() }
    }

    #[test]
    fn sides_with_a_version_in_common_go_together() {
        for theirs in [None, Some(side(0, 0, "")), Some(ours()), Some(side(1, 7, "9.0.0"))] {
            assert!(check_node("http://a:1", theirs.as_ref()).is_ok(), "{theirs:?}");
            assert!(check_client(theirs.as_ref()).is_ok(), "{theirs:?}");
        }
    }

    #[test]
    fn the_older_side_is_to_be_upgraded() {
        let e = check_node("http://a:1", Some(&side(2, 3, "9.0.0"))).unwrap_err();
        let ours = format!("versions 0 to 1 of the protocol (Forebay {})", env!("CARGO_PKG_VERSION"));
        let theirs = "versions 2 to 3 of the protocol (Forebay 9.0.0)";
        let told = format!(
            "the node at http://a:1 speaks {theirs}, this client {ours}: upgrade this client to a release that both know"
        );
        assert_eq!((e.kind, e.message), (Kind::Invalid, told));
        let e = check_client(Some(&side(2, 3, "9.0.0"))).unwrap_err();
        assert!(e.message.ends_with(": upgrade the node to a release that both know"), "{e}");

        let later = side(2, 3, "9.0.0");
        let e = common(&later, None, "the node at unix:/s", "this client").unwrap_err();
        let told = format!(
            "the node at unix:/s speaks version 0 of the protocol (Forebay of before), this client {theirs}: \
             upgrade the node at unix:/s to a release that both know"
        );
        assert_eq!(e.message, told);
        assert!(common(&later, Some(&side(0, 1, "0.1.0")), "this client", "the node").is_err());
        assert!(common(&later, Some(&side(0, 2, "8.0.0")), "this client", "the node").is_ok());
    }
}
