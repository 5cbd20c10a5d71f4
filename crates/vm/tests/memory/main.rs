//! Memory that faults, its stores and their policies, from outside: one module for each subject, in one process. Tests of what all of the process has (its handler of
//! SIGBUS, its map, its forks) are binaries of their own beside this one. At most 8 tests at a
//! time (`scripts/test.sh`): a process has 16 memories.

#[path = "../common/mod.rs"]
mod common;

mod ahead;
mod balance;
mod beside;
mod devices;
mod follow;
mod heap;
mod indices;
mod opp;
mod pages;
mod shadow;
mod store;
mod take_away;
mod write_back;
