//! The C library: `terrace.h`, `libterrace.so` and `libterrace.a`.
//!
//! Here: how the memory of `terrace-vm` looks in C. Promises: what a program passes wrongly is refused with errno and a text; a panic
//! ends at the call; a pointer of the program's is read before and written after anything of ours is locked, since it may lie in
//! memory that faults. Never: follows a handle, or keeps a pointer of the program's.

mod array;
mod changing;
mod error;
mod forks;
mod handle;
mod malloc;
mod objects;
mod open;
mod ranges;
mod region;
mod state;
mod stats;
mod table;
