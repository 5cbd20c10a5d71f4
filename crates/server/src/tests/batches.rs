//! Commands that are served together: what a connection waited for before must not keep it out.

use super::double::Settings;
use super::{Running, encode, plain};

/// Every command of what lies there is prepared once; one that is prepared again was parsed again, too.
#[test]
fn a_connection_that_waited_once_is_served_in_batches_again() {
    const COMMANDS: u64 = 100;
    let server = Running::start(
        Settings {
            wait_per_mille: 1000,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    assert_eq!(c.ask(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(c.ask(&["GET", "k"]), "$1\r\nv\r\n");
    server.factory.calm();
    let before = server.factory.prefetched();
    let get = encode(&[b"GET", b"k"]);
    c.send(get.repeat(COMMANDS as usize));
    for _ in 0..COMMANDS {
        assert_eq!(c.reply(), b"$1\r\nv\r\n");
    }
    let prefetched = server.factory.prefetched() - before;
    // Less where a piece that came alone was one command; never none.
    assert!(
        (1..=COMMANDS).contains(&prefetched),
        "{prefetched} keys prepared for {COMMANDS} commands"
    );
    drop(c);
    server.stop();
}
