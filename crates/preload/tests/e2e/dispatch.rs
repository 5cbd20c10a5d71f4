//! Both ways to take faults under `terrace run`: by threads of the runtime, and in the program's own, whose system calls are dispatched. What a program sees is the same.

use crate::support::{command, compiled, group, judge, output, reported};

const CAP_MIB: u64 = 32;

/// A program of `tests/c` says OK, with faults taken so.
fn is_ok(faults: &str, source: &str, flags: &[&str], args: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), source, flags);
    let group = group(CAP_MIB);
    let more = ["--ssd", "1G", "--faults", faults];
    let mut command = command(CAP_MIB, &more, group.as_ref());
    command.arg(program).args(args).current_dir(dir.path());
    let (well, said) = output(&mut command);
    assert!(well && said.contains("OK\n"), "{faults}: {said}");
    assert!(reported(&said, "pages_evicted") > 10_000, "{said}");
    judge(source, group.as_ref());
}

#[test]
fn e2e_signals_stacks_and_processes_while_calls_are_dispatched() {
    is_ok("dispatch", "dispatch.c", &[], &[]);
    is_ok("dispatch", "asked.c", &[], &[]);
    is_ok("dispatch", "unseen.c", &[], &[]);
}

#[test]
fn e2e_the_same_while_threads_take_faults() {
    is_ok("thread", "dispatch.c", &[], &[]);
    is_ok("thread", "asked.c", &[], &[]);
    is_ok("thread", "unseen.c", &[], &[]);
}

/// What `alike.c` looks at.
const ALIKE: [&str; 7] = [
    "threads",
    "options",
    "many",
    "messages",
    "positions",
    "started",
    "stacks",
];

#[test]
fn e2e_what_the_kernel_answers_is_alike_either_way() {
    is_ok("dispatch", "alike.c", &[], &ALIKE);
    is_ok("thread", "alike.c", &[], &ALIKE);
}

/// What `exact.c` looks at.
const EXACT: [&str; 10] = [
    "messages",
    "discards",
    "waits",
    "further",
    "stacks",
    "unlisted",
    "machines",
    "devices",
    "whole",
    "file-system",
];

#[test]
fn e2e_calls_take_no_more_and_no_less_than_the_kernel_does_either_way() {
    is_ok("dispatch", "exact.c", &[], &EXACT);
    is_ok("thread", "exact.c", &[], &EXACT);
}

/// The C library of this system may have none of these functions, so a library stands in for it.
#[test]
fn e2e_what_a_program_is_started_with_is_copied_whatever_function_starts_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = compiled(dir.path(), "spawns.c", &["-shared", "-fPIC", "-DLIBRARY"]);
    let library = library.to_str().expect("a name");
    is_ok(
        "dispatch",
        "spawns.c",
        &["-Wl,--no-as-needed", library],
        &[],
    );
}

/// What `in_place.c` says with these arguments, and how many pages left.
fn in_place(faults: &str, args: &[&str]) -> u64 {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "in_place.c", &[]);
    let group = group(CAP_MIB);
    let more = ["--ssd", "1G", "--faults", faults];
    let mut command = command(CAP_MIB, &more, group.as_ref());
    let (well, said) = output(command.arg(program).args(args));
    assert!(well && said.contains("OK\n"), "{faults} {args:?}: {said}");
    judge("in_place.c", group.as_ref());
    reported(&said, "pages_evicted")
}

#[test]
fn e2e_sockets_have_memory_where_it_lies_until_pages_leave() {
    assert_eq!(in_place("dispatch", &["rules", "in-place"]), 0);
    assert!(in_place("dispatch", &["rules", "copied"]) > 10_000);
    assert!(in_place("thread", &["rules", "copied"]) > 10_000);
    for _ in 0..3 {
        assert!(in_place("dispatch", &["leaves"]) > 10_000);
    }
}

fn rings(faults: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "asked.c", &[]);
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--faults", faults], None);
    let (well, said) = output(command.arg(program).arg("rings"));
    assert!(well && said.contains("OK\n"), "{faults}: {said}");
    said
}

/// A ring of the kernel's needs threads: they are taken while that can still be chosen, and else it is refused with the reason.
#[test]
fn e2e_a_ring_is_there_before_memory_or_not_at_all() {
    let both = rings("thread");
    if !both.contains("memory 1, after it 1") {
        println!("not judged: this kernel makes no io_uring: {both}");
        return;
    }
    assert!(rings("auto").contains("memory 1, after it 1"));
    let said = rings("dispatch");
    assert!(said.contains("memory 0, after it 0"), "{said}");
    assert!(said.contains("--faults thread has them"), "{said}");
}

/// What a guest has is met by the kernel alone, as a ring's buffers are.
#[test]
fn e2e_a_guest_that_is_made_before_memory_has_threads() {
    let said = |faults: &str, when: &str| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = compiled(dir.path(), "asked.c", &[]);
        let mut command = command(CAP_MIB, &["--ssd", "1G", "--faults", faults], None);
        let (well, said) = output(command.arg(program).arg(when));
        assert!(well && said.contains("OK\n"), "{faults}: {said}");
        said
    };
    assert!(said("auto", "early").contains("threads 1\n"));
    for (faults, when) in [("auto", "late"), ("dispatch", "early")] {
        let said = said(faults, when);
        assert!(said.contains("threads 0\n"), "{said}");
        assert!(said.contains("KVM and vhost"), "{said}");
    }
}

#[test]
fn e2e_system_calls_meet_absent_pages_either_way() {
    is_ok("thread", "calls.c", &[], &["."]);
}

fn storage(faults: &str, args: &[&str]) -> (bool, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "storage.c", &[]);
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--faults", faults], None);
    output(command.arg(program).args(args))
}

/// Its calls are not dispatched, and nothing of ours can run in it: a page that is not there is EFAULT for the kernel, and the end for itself, with the reason.
#[test]
fn e2e_a_thread_with_storage_of_its_own_making() {
    let (well, said) = storage("dispatch", &[]);
    assert!(well && said.contains("refused\nOK\n"), "{said}");
    let (well, said) = storage("thread", &["touch"]);
    assert!(well && said.contains("served\nOK\n"), "{said}");
    let (well, said) = storage("dispatch", &["touch"]);
    assert!(!well && said.contains("`--faults thread` serves"), "{said}");
}

#[test]
fn e2e_signals_while_it_faults_either_way() {
    let flags = ["-std=c++17", "-Wno-alloc-size-larger-than"];
    is_ok("thread", "throws.cpp", &flags, &[]);
    is_ok("dispatch", "throws.cpp", &flags, &[]);
}

#[test]
fn e2e_signals_while_it_is_in_malloc_and_mmap_either_way() {
    is_ok("dispatch", "interrupts.c", &[], &["quick"]);
    is_ok("thread", "interrupts.c", &[], &[]);
}

/// Where a filter refuses to hand a signal to the kernel once more, the kernel holds signals back.
#[test]
fn e2e_signals_while_it_is_in_malloc_under_a_filter_of_calls() {
    let dir = tempfile::tempdir().expect("a directory");
    let filter = compiled(dir.path(), "filter.c", &[]);
    let program = compiled(dir.path(), "interrupts.c", &[]);
    let more = ["--ssd", "1G", "--faults", "dispatch"];
    let run = command(CAP_MIB, &more, None);
    let mut filtered = std::process::Command::new(filter);
    filtered.arg("signals").arg(run.get_program());
    filtered.args(run.get_args()).arg(program).arg("refused");
    let (well, said) = output(filtered.current_dir(dir.path()));
    assert!(well && said.contains("OK\n"), "{said}");
}

#[test]
fn e2e_forks_either_way() {
    is_ok("thread", "fork.c", &[], &[]);
    is_ok("dispatch", "fork.c", &[], &[]);
}
