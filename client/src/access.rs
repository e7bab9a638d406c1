//! Where data comes from: a cache, or the object store without one.

use crate::direct::{self, Direct};
use crate::endpoints::Endpoints;
use crate::local_node::LocalNode;
use forebay_dataset::SourceSettings;
use forebay_proto::Result;

/// The variable that names the cache where no setting does.
pub const ENDPOINT_VARIABLE: &str = "FOREBAY_ENDPOINT";

/// The variable that names the reader's zone where no setting does.
pub const ZONE_VARIABLE: &str = "FOREBAY_ZONE";

/// Where data comes from. Cheap to clone.
///
/// ```
/// use forebay_client::{Access, Kind, SourceSettings};
///
/// let direct = Access::direct(SourceSettings::default())?;
/// assert!(matches!(direct, Access::Direct(_)));
/// // Nothing is connected yet, so no cache need be there.
/// let Access::Endpoint(nodes) = Access::endpoint("cache-a:7070,cache-b:7070")? else { unreachable!() };
/// assert_eq!(nodes.nodes()[1].url(), "http://cache-b:7070");
/// assert_eq!(Access::endpoint("no address").unwrap_err().kind, Kind::Invalid);
/// # Ok::<(), forebay_client::Error>(())
/// ```
#[derive(Debug, Clone)]
pub enum Access {
    /// From the nodes of a cache: those that were named, and those that they tell of.
    Endpoint(Endpoints),
    /// From the object store, decoded in this process with the cache's own code.
    Direct(Direct),
}

impl Access {
    /// The cache with a node at `http://host:port` or plainly `host:port`, or at any of several separated by
    /// commas; `Invalid` if that is not an address.
    pub fn endpoint(urls: &str) -> Result<Self> {
        Ok(Access::Endpoint(Endpoints::parse(urls)?.spread()))
    }

    /// A cache node of this machine, started when it is first asked.
    pub fn local(node: LocalNode) -> Self {
        Access::Endpoint(Endpoints::local(node))
    }

    /// The object store: instead of a cache, or as its fallback.
    pub(crate) fn direct_source(&self) -> Option<&Direct> {
        match self {
            Access::Endpoint(endpoints) => endpoints.fallback.as_ref(),
            Access::Direct(direct) => Some(direct),
        }
    }

    /// The object store without a cache; `Invalid` if the settings contradict each other.
    pub fn direct(settings: SourceSettings) -> Result<Self> {
        Direct::new(settings, direct::MEMORY_BYTES).map(Access::Direct)
    }
}
