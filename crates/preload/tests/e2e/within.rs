//! What the C library does within one of its functions, where nothing of it is seen from in front: daemon, forkpty and quick_exit fork or end as fork and _exit do, forks do not wait for streams
//! for ever, what is in streams at an end is in their files, and a thread that is cancelled leaves nothing of the runtime's half done.

use crate::support::{command, compiled, ended_within};
use std::process::Output;
use std::time::Duration;

const CAP_MIB: u64 = 32;
const LONGEST: Duration = Duration::from_secs(90);

/// Runs a part of `within.c` with faults taken in each of the two ways; `judge` has how it ended, what it printed, and what is in the file that it was given.
fn each_way(what: &str, ssd: &str, judge: impl Fn(&Output, &str, &str)) {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let program = compiled(dir.path(), "within.c", &[]);
    for faults in ["auto", "thread"] {
        let file = dir.path().join(faults);
        let flags = ["--ssd", ssd, "--report", "none", "--faults", faults];
        let mut command = command(CAP_MIB, &flags, None);
        command.env("TMPDIR", dir.path());
        let ended = ended_within(command.arg(&program).arg(what).arg(&file), LONGEST);
        let said = String::from_utf8_lossy(&ended.stdout);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        println!("{faults}: {ended:?}");
        judge(&ended, &said, &text);
    }
}

fn goes_well(what: &str, ssd: &str) {
    each_way(what, ssd, |ended, said, _| {
        assert!(ended.status.success() && said == "OK\n", "{ended:?}");
    });
}

#[test]
fn e2e_a_daemon_of_the_c_librarys_has_its_memory() {
    each_way("daemon", "1G", |ended, said, text| {
        assert!(ended.status.success() && said.is_empty(), "{ended:?}");
        assert_eq!(text, "OK\n", "{ended:?}");
    });
}

#[test]
fn e2e_a_daemon_or_a_terminals_process_without_room_is_refused() {
    // Room for one version, and not for two.
    goes_well("room", "170M");
}

#[test]
fn e2e_a_process_with_a_terminal_of_its_own_has_its_memory() {
    goes_well("terminal", "1G");
}

#[test]
fn e2e_a_quick_exit_leaves_children_their_memory() {
    each_way("quick", "1G", |ended, said, text| {
        assert_eq!(ended.status.code(), Some(7), "{ended:?}");
        assert_eq!((said, text), ("", "ends\nOK\n"), "{ended:?}");
    });
}

#[test]
fn e2e_what_was_buffered_is_in_its_file_while_a_parent_stays() {
    each_way("buffered", "1G", |ended, said, text| {
        assert_eq!(ended.status.code(), Some(7), "{ended:?}");
        assert_eq!((said, text), ("OK\n", "buffered\n9"), "{ended:?}");
    });
}

#[test]
fn e2e_a_thread_that_is_cancelled_opens_the_pool_and_forks_first() {
    goes_well("cancelled", "1G");
    goes_well("cancelled-fork", "1G");
}

/// glibc's bug 19431: a fork waited for the list of streams, who had that for a stream, and who had that for memory that the fork held.
#[test]
fn e2e_forks_do_not_wait_for_streams_whose_threads_wait_for_memory() {
    goes_well("locks", "1G");
}
