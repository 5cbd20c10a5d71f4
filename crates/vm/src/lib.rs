//! Memory that is larger than DRAM: a program sees plain memory, behind it are the DRAM terrace and the SSD.
//!
//! Here: regions whose pages fault in and are evicted again; what their pages are made of is a [`Backing`].
//! Promises: DRAM for materialised pages is bounded; a page that cannot be read back kills only what touches it.
//! Never: a second cache, a second log or a second cleaner; those are the pool's.

mod backing;
pub mod store;

pub use backing::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, StoreError};
