//! Reading training data through Forebay: one rank's batches of a dataset, from a cache or from the object
//! store itself.
//!
//! [`Access`] says where data comes from, [`Dataset`] is a dataset opened there, [`Loader`] hands out its
//! batches; [`LocalNode`] is a cache that is started on this machine; [`rows`] are read outside of any plan.
//! [`objects`] reads any object byte for byte.
//! [`fill`] and [`fan_out`] have all nodes of a cache hold a dataset or drop it. [`survey`] asks all nodes of
//! a cache what they hold; [`counters`] says what a stretch of reading cost; [`routing::route`] chooses the
//! node for each segment; [`snapshot`] keeps versions of datasets under names.
//!
//! ```
//! use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings, SourceSettings};
//!
//! # #[tokio::main]
//! # async fn main() -> forebay_client::Result<()> {
//! // `Access::endpoint("http://cache-node:7070")` reads through a cache instead.
//! let access = Access::direct(SourceSettings::default())?;
//! let folder = std::fs::canonicalize("../tests/data/mnist/test").expect("the test data");
//! let dataset = Dataset::open(&access, &DatasetSpec::new(format!("file://{}", folder.display()))).await?;
//! let settings = LoaderSettings { global_batch: 500, epochs: Some(1), ..Default::default() };
//! let mut loader = Loader::start(&dataset, settings)?;
//! while let Some(event) = loader.next().await? {
//!     match event {
//!         Event::Batch(batch) => assert_eq!(batch.column("label")?.len(), 500),
//!         Event::EpochEnd(epoch) => println!("{} samples, order digest {}", epoch.samples, epoch.digest),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod access;
#[cfg(feature = "cli")]
pub mod args;
mod cause;
mod certificates;
mod content;
pub mod counters;
mod credentials;
mod dataset;
pub mod delay;
mod direct;
mod endpoints;
mod environment;
pub mod fan_out;
pub mod fill;
mod idle_slot;
mod list;
pub mod loader;
mod local_node;
mod node;
pub mod objects;
pub mod routing;
pub mod rows;
mod same_host;
pub mod snapshot;
pub mod stream;
pub mod survey;

pub use access::{Access, ENDPOINT_VARIABLE, ZONE_VARIABLE};
pub use certificates::{CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, use_certificates};
pub use credentials::{Credentials, NodeChannel, TOKEN_FILE_VARIABLE, use_no_token, use_token_file};
pub use dataset::{Dataset, DatasetSpec};
pub use direct::Direct;
pub use direct::MEMORY_BYTES as DIRECT_MEMORY_BYTES;
pub use endpoints::Endpoints;
pub use environment::variable;
pub use loader::{Batch, EpochSummary, Event, Loader, LoaderSettings};
pub use local_node::{LOCAL, LocalNode, LocalNodeSettings, LocalNodeStatus};
pub use node::Node;

pub use forebay_dataset::SourceSettings;
pub use forebay_proto::{Error, Kind, Result};
pub use forebay_tls::TlsFiles;
