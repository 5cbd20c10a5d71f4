//! The end-to-end tests of `terrace run`, one module for each subject, in one process that runs them side by side; and what a model checker makes of two
//! pieces of the library, which are no end-to-end tests and in the same binary so that there is one to build.
//!
//! Never: sets what all of the process has (signals, limits, its directory): that is for the programs under test, between fork and exec.

mod cluster;
mod dispatch;
mod fails;
mod forks;
mod odd;
mod programs;
mod sections;
mod servers;
mod several;
mod support;
/// What `sections` and `waiting` include finds loom's atomics here, in the place of std's.
mod sync {
    pub(crate) use loom::sync::atomic;
}
mod top;
mod waiting;
mod within;
