//! The Forebay daemon: decoded segments on local disk, served as batch streams.
//!
//! A read goes `service` (edge) -> `answer` (walk of the plan, in forebay-segment) -> [`cache`] -> [`store`], and for a
//! miss [`flight`] -> source and decode (in forebay-segment) -> [`store`]. ARCHITECTURE.md follows one hop by hop.

pub mod cache;
pub mod datasets;
pub mod events;
pub mod flight;
pub mod gate;
pub mod membership;
pub mod server;
pub mod service;
pub mod settings;
pub mod store;
pub mod upkeep;

pub use server::Server;
pub use settings::{Flags, Settings};
