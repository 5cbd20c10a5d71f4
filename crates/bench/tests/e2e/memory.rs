//! `bench memory` as a user starts it, scaled down: every part runs to its end, and its record has the figures that its bars are about.
//!
//! Short parts run in `make test`, all of them in `make soak`. Promises: nothing is judged by the figures of a scaled-down run. Never: needs root; without
//! it there is no cgroup and no swap, and the parts that need them are missing.

use crate::{check_bars, has_cgroups, record};

#[test]
fn e2e_bench_memory_short_parts() {
    // Arrays and pools that are loaded without faults, and what a fault costs.
    check_bars(&record("memory", "i"), 3);
    check_bars(&record("memory", "a"), 4);
    if !has_cgroups() {
        return;
    }
    // Bare faults, objects on pages, packed pages, each in a process and a cgroup of its own.
    check_bars(&record("memory", "floor-btree"), 4);
}

#[test]
#[ignore = "minutes; make soak"]
fn soak_e2e_bench_memory_all_parts() {
    if !has_cgroups() {
        return;
    }
    for (part, bars) in [
        ("b", 20),
        ("b256", 7),
        ("c", 8),
        ("e", 3),
        ("f", 8),
        ("floor", 6),
    ] {
        check_bars(&record("memory", part), bars);
    }
}
