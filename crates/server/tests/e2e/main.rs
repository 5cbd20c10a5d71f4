//! The end-to-end tests of the server: the real binary on pools of its own, one module for each subject, in one process that runs them side by side.
//!
//! So directories, which are named after their test, have one name each in all modules, and whoever judges moments holds `support::alone`. Never:
//! sets what all of the process has, but for its limit of open files, which only rises.

mod cap;
mod check;
mod clients;
mod crash;
mod differential;
mod full;
mod memcached;
mod oracle;
mod peers;
mod process;
mod scan;
mod server;
mod service;
mod sight;
mod support;
mod tls;
