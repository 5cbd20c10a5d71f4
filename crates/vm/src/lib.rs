//! Memory that is larger than DRAM: a program sees plain memory, behind it are the DRAM terrace and the SSD.
//!
//! Here: regions whose pages fault in and are evicted again; what their pages are made of is a [`Backing`].
//! Promises: DRAM for materialised pages is bounded; a page that cannot be read back kills only what touches it.
//! Never: a second cache, a second log or a second cleaner; those are the pool's.

mod ahead;
mod aside;
mod backing;
mod balance;
mod bell;
mod beside;
mod block;
mod bring;
mod calm;
mod capture;
mod error;
mod evict;
mod evictor;
mod extent;
#[cfg(test)]
mod failing;
mod fault;
pub mod floor;
mod follow;
mod forks;
mod ghost;
mod grace;
mod handler;
pub mod handles;
pub mod heap;
mod indices;
mod inside;
pub mod kept;
mod late;
mod lz4;
pub mod mapped;
pub mod measure;
mod memory;
pub mod opp;
mod page;
mod parts;
mod policy;
mod put_aside;
mod reaper;
mod region;
mod registry;
mod say;
mod scratch;
mod servant;
mod shares;
mod signal;
mod space;
mod stats;
pub mod store;
mod sync;
mod sys;
mod take_away;
mod together;
mod touch;
mod victims;
mod waited;
#[cfg(test)]
mod words;
mod write_back;

pub use backing::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, Put, StoreError};
pub use error::VmError;
pub use forks::watch_forks;
pub use inside::{Held, RAISED, deferred};
pub use memory::{ADDRESSES_ALIGN_BYTES, Memory, Options};
pub use parts::Way;
pub use policy::{HANDLERS_MAX, PAGES_MIN};
pub use region::{REGION_PAGES_MAX, Region};
pub use signal::take_sigbus;
pub use stats::Stats;
pub use sys::SystemError;
pub use sys::{exec_as_started, hold_device};
pub use terrace_media::descriptors;
