//! What errors may say of the object stores that this process reads: where they are, and by which key.

use super::faults::Endpoint;
use parking_lot::Mutex;
use std::collections::BTreeSet;

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A bucket was opened: there are few object stores, however many buckets they have.
pub(super) fn note(endpoint: &Endpoint) {
    let host = endpoint.name.split_once("://").map(|(_, host)| host.trim_end_matches('/').to_owned());
    let all = [Some(endpoint.name.clone()), host, endpoint.key_id.clone()];
    NAMES.lock().extend(all.into_iter().flatten().filter(|name| !name.is_empty()));
}

/// Endpoints and ids of access keys that errors of this process may contain. A server whose callers are not
/// to know them looks for these.
pub fn store_names() -> Vec<String> {
    NAMES.lock().iter().cloned().collect()
}
