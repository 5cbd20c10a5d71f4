//! The atomics that threads meet at under a model checker, in one place: `tests/e2e/waiting.rs` includes `dispatch/waited.rs` beside another `sync`, with loom's. Never: anything but names.

#[cfg(target_arch = "x86_64")]
pub(crate) use std::sync::atomic;
