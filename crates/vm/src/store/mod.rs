//! Objects and pages by number, in the lanes of a pool: what lies under faults, and a face without faults (*handles*).
//!
//! An object is an entry of the log like a key's value, with its number as the key; the [`Tables`](tables::Tables) are the
//! directory. So caching, write-back, compaction and garbage collection are the pool's, and there is none here.
//! Any number of threads use a [`Store`] at once: each works for itself, with a lane locked for the moment of a look-up or an append.
//! Promises: no lock is held while the device is waited for; a miss is one read of the right length in the calling thread; every wait
//! is bounded and ends in an error that says what is full. Never: hands a request to another thread.

mod ahead;
mod buffers;
mod cap;
mod check;
mod chunks;
#[cfg(test)]
mod crash;
mod driver;
mod error;
mod gather;
mod hands;
mod here;
mod many;
mod named;
mod objects;
mod open;
mod pack;
mod pages;
mod read;
mod room;
mod same;
mod table;
mod tables;
#[cfg(test)]
pub(crate) mod tests;
mod under_way;
mod versions;
mod write;

pub(crate) use buffers::Counted;
pub use check::{check, info};
pub(crate) use chunks::Chunks;
#[cfg(test)]
pub(crate) use driver::Work;
pub use error::ObjectError;
pub use named::{NAMED_MAX, NAMED_PAGES_MAX, Named, SYNC_OUTSIDE_PAGES_MAX};
pub use objects::Objects;
pub(crate) use objects::Sizes;
pub use open::{Store, StoreOptions};
pub use pages::Pages;
pub use read::Value;
pub(crate) use table::PAGE_SLOT_BYTES;
pub use table::Shape;
pub use tables::{OBJECTS_MAX, TABLES_MAX};
pub use versions::{VIEWS_MAX, Versions, View};
