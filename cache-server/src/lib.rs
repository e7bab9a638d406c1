//! The Forebay daemon: decoded segments on local disk, served as batch streams.
//!
//! A read goes `service` (edge) -> `answer` (walk of the plan, in forebay-segment) -> [`cache`] -> [`store`], and for a
//! miss [`flight`] -> source and decode (in forebay-segment) -> [`store`]. [`plans`] knows what will be read when: the store
//! evicts by it and [`prefetch`] follows it. ARCHITECTURE.md follows a read hop by hop.

pub mod cache;
pub mod datasets;
pub mod events;
pub mod flight;
pub mod gate;
pub mod heat;
pub mod membership;
pub mod memory;
pub mod peers;
pub mod plans;
pub mod prefetch;
pub mod replicate;
pub mod room;
pub mod server;
pub mod service;
pub mod settings;
pub mod store;
pub mod stream;
pub mod threads;
pub mod ticker;
pub mod upkeep;

pub use server::Server;
pub use settings::{Flags, Settings};
