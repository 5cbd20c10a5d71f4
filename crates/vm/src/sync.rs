//! The atomics that threads meet at, in one place, so that the model checker of
//! `tests/loom` can put its own in theirs: it includes `page.rs` and `block.rs`
//! beside another `sync`. Never: anything but names.

pub(crate) use std::sync::atomic;
