//! `bench run` as a user starts it, scaled down: every row runs to its end, and its record has the figures that its bars are about.
//!
//! A short row runs in `make test`, all of them in `make soak`. Promises: nothing is judged by the figures of a scaled-down run. Never: needs root; without
//! it there is no cgroup and no swap, and the rows that need them are missing.

use crate::{check_bars, has_cgroups, record};

#[test]
fn e2e_bench_run_short_row() {
    if !has_cgroups() {
        return;
    }
    // Two loads, numpy, and the cgroups of both.
    check_bars(&record("run", "e"), 2 + 2 + 1 + 2);
}

#[test]
#[ignore = "minutes; make soak"]
fn soak_e2e_bench_run_all_rows() {
    if !has_cgroups() {
        return;
    }
    for (row, bars) in [("a", 4 + 2), ("b", 2 + 2), ("c", 2 + 2), ("dump", 1 + 2)] {
        check_bars(&record("run", row), bars);
    }
    // Steps and all together of sqlite3 and numpy, sort alone.
    check_bars(&record("run", "d"), 7 + 2 + 7 + 2 + 1 + 2);
}
