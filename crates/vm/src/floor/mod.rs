//! The ways to take a fault, done plainly: yardsticks without directory, packing or cleaning, beside which what has all of these is measured.
//!
//! Promises: as many pages as asked for are there at most, and a batch for each thread. Never: used by the product.

mod handlers;
mod in_thread;
mod log;

pub use handlers::Floor;
pub use in_thread::{Bare, Sizes};
