//! The stack of terraces of a lane: append, read, clean, bounds.
//!
//! One loop steps entries down: `flush` copies dirty entries to the SSD log,
//! `clean_memory` and `clean_ssd` empty segments of their terrace. `policy` is
//! pure functions. The lane is a state machine: it neither sleeps nor calls the
//! system, so that simulated crashes can be put between any two steps.

mod buffers;
mod bulk;
mod checkpoint;
mod clean_memory;
mod clean_ssd;
mod config;
mod fingerprints;
mod flush;
mod ghost;
mod image;
mod io;
mod jobs;
mod lane;
mod mem;
mod oldest;
mod orphans;
pub mod policy;
mod probe;
mod promote;
mod pump;
mod ranks;
mod rebuild;
mod recognise;
mod release;
mod room;
mod root;
mod scratch;
mod ssd;
mod stats;
mod survey;
mod units;
mod unverified;
mod verify;
mod walk;
mod warm;

pub use buffers::LANE_BUFFERS;
pub use config::{Config, Look, Phase, Refused, Rule};
pub use lane::Lane;
pub use mem::{Head, MemTerrace};
pub use root::Root;
pub use ssd::{ReadPlan, Segment, State};
pub use stats::LaneStats;
pub use survey::{BatchAt, Damage, Survey};
pub use unverified::Known;
pub use verify::Verified;
