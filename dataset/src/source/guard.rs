//! What stands before objects that others may have named.

use forebay_proto::Result;
use std::sync::Arc;

/// Whether an object outside of its dataset, as the log of a table may name it or a link lead to it, may be
/// read: `Denied` if not. Called on threads that may block.
pub type ObjectGuard = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;
