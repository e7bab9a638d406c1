//! Errors that name the node's object store: where it is, by which key it is asked. Callers are told that
//! the store is at fault, the node's log has the rest.

use forebay_dataset::source::store_names;

/// Whether a text is about the node's way to its object store.
pub fn is_private(text: &str) -> bool {
    text.contains("no credentials") || store_names().iter().any(|name| text.contains(name.as_str()))
}
