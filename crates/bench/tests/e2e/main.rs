//! The benches as a user starts them, scaled down: that they run and what their records have. Never: judges a figure.

mod run;
mod serve;

use std::path::PathBuf;

/// The program. Without one the tests fail: one that quietly does nothing would count as passed.
fn terrace() -> PathBuf {
    let path = std::env::var_os("TERRACE_BIN").map(PathBuf::from);
    path.filter(|path| path.is_file())
        .expect("TERRACE_BIN names the program; `make test` builds it and sets that")
}
