//! The stack of terraces of a lane: append, read, clean, bounds.
//!
//! One loop steps entries down: `flush` copies dirty entries to the SSD log,
//! `clean_memory` and `clean_ssd` empty segments of their terrace. `policy` is
//! pure functions. The lane is a state machine: it neither sleeps nor calls the
//! system, so that simulated crashes can be put between any two steps.

mod checkpoint;
mod clean_memory;
mod clean_ssd;
mod flush;
mod image;
mod io;
mod lane;
mod mem;
pub mod policy;
mod pump;
pub mod recover;
mod ssd;
mod stats;
mod verify;
mod warm;

pub use checkpoint::Root;
pub use lane::{Config, Known, Lane, Look, Phase, Refused, Rule};
pub use mem::{Head, MemTerrace};
pub use ssd::{ReadPlan, Segment, State};
pub use stats::LaneStats;
pub use verify::Verified;
