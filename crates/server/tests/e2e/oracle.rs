//! The oracle of the crash tests itself: a test that cannot fail would prove nothing.

use std::time::{Duration, Instant};

use crate::support::oracle::{Oracle, State};
use crate::support::value_of;

#[test]
fn e2e_the_oracle_sees_losses_and_torn_msets() {
    let mut oracle = Oracle::new(2);
    let value = |id| State::Value {
        id,
        len: 20,
        expires: false,
    };
    let start = Instant::now();
    oracle.sent(0, 1, value(1));
    oracle.acked(0, 1, start);
    oracle.msets.insert(2, vec![0, 1]);
    oracle.sent(0, 2, value(2));
    oracle.sent(1, 2, value(3));
    let later = start + Duration::from_secs(1);
    assert!(oracle.look(0, later, None, -2).is_err(), "a loss");
    assert!(
        oracle.look(0, start, None, -2).is_ok(),
        "allowed before the promise"
    );
    assert!(
        oracle.look(0, later, Some(&value_of(9, 20)), -1).is_err(),
        "never written"
    );
    assert!(
        oracle.look(0, later, Some(&value_of(2, 20)), 5).is_err(),
        "no such expiry"
    );
    let new = oracle.look(0, later, Some(&value_of(2, 20)), -1).unwrap();
    let old = oracle.look(1, later, None, -2).unwrap();
    assert!(oracle.whole_msets(&[new, old]).is_err());
    let both = oracle.look(1, later, Some(&value_of(3, 20)), -1).unwrap();
    assert!(oracle.whole_msets(&[new, both]).is_ok());
}
