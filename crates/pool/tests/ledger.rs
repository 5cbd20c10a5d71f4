//! The ledger in one thread; `loom.rs` has it among several.

use terrace_pool::{Ledger, Part};

#[test]
fn nothing_is_granted_above_the_cap_or_the_share() {
    let ledger = Ledger::new(64 << 20);
    assert!(ledger.grant(8 << 20));
    assert!(!ledger.grant(1), "an eighth is the connections' share");
    ledger.ungrant(8 << 20);
    ledger.change(Part::Segments, 0, 60 << 20);
    ledger.change(Part::Index, 0, 3 << 20);
    assert!(ledger.grant(1 << 20));
    assert!(!ledger.grant(1), "the cap is the cap");
    let before = ledger.for_segments();
    assert!(before < 60 << 20, "segments give way to what is wanted");
}
