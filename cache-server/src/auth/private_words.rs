//! Errors that name the node's object store: where it is, by which key it is asked. Callers are told that
//! the object store is at fault, the node's log has the rest.

use forebay_dataset::source::{NO_CREDENTIALS, store_names};

/// Whether a text is about the node's way to its object store.
pub fn is_private(text: &str) -> bool {
    text.contains(NO_CREDENTIALS) || store_names().iter().any(|name| text.contains(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_node_has_no_credentials_is_private() {
        assert!(is_private(&format!("s3://b/k: {NO_CREDENTIALS}: no such profile")));
        assert!(is_private("s3://b/k: no credentials (tried for 1.0 s): expired"));
        assert!(!is_private("s3://b/k: no such object"));
    }
}
