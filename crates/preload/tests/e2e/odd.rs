//! What programs do to their own process under `terrace run`, most of their memory being on the SSD: they close descriptors that they did not open, lower
//! limits, enter a sandbox, drop privileges, load libraries, die with a core, are looked into. It is right, or refused with the reason.

use crate::support::{
    Server, binary, command, compiled, copied, ended, free_port, group, judge, output, reported,
    value,
};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

const CAP_MIB: u64 = 32;

fn odd(dir: &std::path::Path, args: &[&str]) -> Command {
    let program = compiled(dir, "odd.c", &[]);
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
    command.arg(program).args(args);
    command
}

fn is_ok(args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let (well, said) = output(&mut odd(dir.path(), args));
    assert!(well && said.contains("OK\n"), "{args:?}: {said}");
    said
}

#[test]
fn e2e_descriptors_of_the_pool_are_not_the_programs_to_close() {
    is_ok(&["descriptors"]);
}

#[test]
fn e2e_as_many_children_as_are_let_in_have_their_memory() {
    is_ok(&["many"]);
}

#[test]
fn e2e_contents_of_streams_come_back() {
    is_ok(&["streams"]);
}

#[test]
fn e2e_a_shell_has_its_own_numbers_for_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "x=$(seq 1 300000); for n in 3 4 5 6 7 8 9; do eval \"exec $n>file$n\"; done; \
                  for n in 3 4 5 6 7 8 9; do eval \"echo mine >&$n\"; done; echo ${#x}";
    let mut command = command(CAP_MIB, &["--report", "none"], None);
    command.args(["bash", "-c", script]).current_dir(dir.path());
    let (well, said) = output(&mut command);
    assert!(well && said == "1988894\n", "{said}");
    for n in 3..=9 {
        let file = std::fs::read_to_string(dir.path().join(format!("file{n}")));
        assert_eq!(file.expect("a file"), "mine\n", "file {n}");
    }
}

#[test]
fn e2e_a_name_that_is_not_utf8_is_no_matter() {
    let dir = tempfile::tempdir().expect("a directory");
    let name = dir.path().join(OsStr::from_bytes(b"caf\xe9"));
    std::os::unix::fs::symlink("/usr/bin/python3", &name).expect("a link");
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
    command
        .arg(name)
        .args(["-c", "print(len(bytearray(60 << 20)))"]);
    let (well, said) = output(&mut command);
    assert!(well && said == "62914560\n", "{said}");
}

#[test]
fn e2e_a_signal_that_is_ignored_stays_so() {
    for pipe in [libc::SIG_IGN, libc::SIG_DFL] {
        let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
        command.args(["grep", "SigIgn", "/proc/self/status"]);
        // SAFETY: a system call, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::signal(libc::SIGPIPE, pipe) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        let (well, said) = output(&mut command);
        let ignored = said.split_whitespace().last().expect("a mask");
        let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
        let is_ignored = ignored >> (libc::SIGPIPE - 1) & 1 == 1;
        assert!(well && is_ignored == (pipe == libc::SIG_IGN), "{said}");
    }
}

#[test]
fn e2e_limits_that_fall() {
    let said = is_ok(&["limits"]);
    assert!(said.contains("RLIMIT_FSIZE) is refused"), "{said}");
    let addresses = "RLIMIT_AS or RLIMIT_DATA) is refused";
    assert_eq!(said.matches(addresses).count(), 3, "{said}");
}

#[test]
fn e2e_limits_that_are_inherited_and_too_low() {
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA] {
        let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
        let few = libc::rlimit {
            rlim_cur: 16 << 30,
            rlim_max: 16 << 30,
        };
        // SAFETY: a system call, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(resource, &few) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        let ended = ended(command.args(["echo", "it runs"]));
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
        let why = "a limit of 17179869184 bytes of addresses (ulimit -v or -d) leaves no room";
        assert!(said.contains(why) && ended.stdout.is_empty(), "{ended:?}");
    }
}

#[test]
fn e2e_a_sandbox_of_the_thread_holds_and_one_of_all_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "odd.c", &[]);
    let run = |faults: &str, what: &str| {
        let more = ["--ssd", "1G", "--report", "none", "--faults", faults];
        output(command(CAP_MIB, &more, None).args([program.as_os_str(), what.as_ref()]))
    };
    let (well, said) = run("thread", "sandbox");
    assert!(well && said.contains("OK\n"), "{said}");
    let refused = [
        (
            "thread",
            "sandbox-of-all",
            "SECCOMP_FILTER_FLAG_TSYNC) is refused",
        ),
        // A fault in the thread needs what a filter forbids.
        ("auto", "sandbox", "--faults thread has it"),
        ("auto", "sandbox-of-all", "--faults thread has it"),
    ];
    for (faults, what, reason) in refused {
        let (well, said) = run(faults, what);
        assert!(
            !well && said.contains(reason) && said.contains("errno 1"),
            "{faults} {what}: {said}"
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn e2e_code_that_is_made_as_it_goes() {
    is_ok(&["code"]);
}

#[test]
fn e2e_pages_are_closed_while_others_touch_them_and_they_leave() {
    is_ok(&["closing"]);
}

#[test]
fn e2e_handlers_of_its_own_get_what_is_theirs() {
    is_ok(&["handlers"]);
}

#[test]
fn e2e_vectors_of_direct_files_in_served_memory() {
    is_ok(&["direct"]);
}

/// A program of `rings.c`.
fn rings(what: &str) -> String {
    rings_with(what, &[])
}

/// The same, compiled with more flags.
fn rings_with(what: &str, flags: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "rings.c", flags);
    let more = ["--ssd", "1G", "--report", "none", "--faults", "thread"];
    let mut command = command(CAP_MIB, &more, None);
    let (well, said) = output(command.arg(program).arg(what));
    assert!(well && said.contains("OK\n"), "{what}: {said}");
    said
}

#[test]
fn e2e_io_uring_with_memory_that_is_not_in_dram() {
    rings("uring");
}

fn loses_nothing(said: &str) {
    let judged = !said.starts_with("not judged") && !said.contains("this kernel cannot tell");
    assert!(!judged || said.contains("lost 0 of "), "{said}");
}

/// Before, 143 to 648 of 61,440 pages were lost, in each of three tries.
#[test]
fn e2e_direct_reads_through_io_uring() {
    loses_nothing(&rings("lost"));
}

/// By a function of liburing's, as a library.
#[cfg(target_arch = "x86_64")]
#[test]
fn e2e_direct_reads_through_liburing() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = compiled(dir.path(), "liburing.c", &["-shared", "-fPIC"]);
    let library = library.to_str().expect("a name");
    loses_nothing(&rings_with(
        "lost-by-library",
        &["-Wl,--no-as-needed", library],
    ));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn e2e_direct_reads_of_the_older_asynchronous_kind() {
    rings("aio");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn e2e_buffers_that_io_uring_would_keep_are_refused() {
    let said = rings("registered");
    let refused = "served memory are refused with ENOMEM";
    let judged = !said.starts_with("not judged");
    assert_eq!(said.matches(refused).count(), usize::from(judged), "{said}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn e2e_calls_by_their_numbers() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "odd.c", &[]);
    let mut command = command(CAP_MIB, &["--ssd", "1G"], None);
    let ended = ended(command.arg(program).arg("numbers"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(9), "{ended:?}");
    // What it did not give back is served.
    assert_eq!(reported(&said, "served_mmap_bytes"), 64 << 20, "{said}");
}

#[test]
fn e2e_a_library_that_comes_late() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = compiled(dir.path(), "late.c", &["-shared", "-fPIC"]);
    is_ok(&["library", library.to_str().expect("a name")]);
    is_ok(&["opens", library.to_str().expect("a name")]);
}

/// A child that is another program has the library in front of its functions, too, and none of its memory is served: what those need is looked up before it begins.
#[test]
fn e2e_a_child_opens_a_library_that_waits_for_a_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let other = tempfile::tempdir().expect("a directory");
    let library = compiled(dir.path(), "plugin.c", &["-shared", "-fPIC"]);
    let program = compiled(other.path(), "plugin.c", &["-DPROGRAM"]);
    let mut command = command(CAP_MIB, &["--ssd", "1G"], None);
    command.args(["/bin/sh", "-c", "\"$0\" \"$1\" && \"$0\" \"$1\""]);
    let (well, said) = output(command.arg(&program).arg(&library));
    assert!(well && said.matches("OK\n").count() == 2, "{said}");
}

/// What a program reserves and uses a part of is served, whatever it reserves; of more than there are addresses for that is said.
#[test]
fn e2e_reservations_are_served_up_to_a_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "reserves.c", &[]);
    let reserved = |gib: &str| {
        let group = group(CAP_MIB);
        let mut command = command(CAP_MIB, &["--ssd", "1G"], group.as_ref());
        let (well, said) = output(command.arg(&program).arg(gib));
        assert!(well && said.contains("OK\n"), "{gib} GiB: {said}");
        judge("reserves.c", group.as_ref());
        said
    };
    for gib in ["2", "40"] {
        let said = reserved(gib);
        assert!(reported(&said, "pages_evicted") > 30_000, "{said}");
        // What is still closed around them keeps no page from coming ahead.
        assert!(reported(&said, "pages_ahead") > 30_000, "{said}");
        assert!(!said.contains("more than the 48 GiB"), "{said}");
    }
    let plain = || command(CAP_MIB, &["--ssd", "1G"], None);
    let (well, said) = output(plain().arg(&program).args(["3", "refused"]));
    assert!(well && said.contains("OK\n"), "{said}");
    let (well, said) = output(plain().arg(&program).arg("1024"));
    assert!(well && said.contains("more than the 48 GiB"), "{said}");
}

#[test]
fn e2e_a_core_is_written_and_the_end_is_abort() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = odd(dir.path(), &["abort"]);
    command.current_dir(dir.path());
    let all = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a system call, which is allowed between fork and exec; where it is refused no core is written.
    unsafe {
        command.pre_exec(move || {
            libc::setrlimit(libc::RLIMIT_CORE, &all);
            Ok(())
        })
    };
    let ended = ended(&mut command);
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
}

/// Eight bytes of another process.
fn peek(pid: u32, at: u64) -> u64 {
    let mut word = 0u64;
    let part = |base: *mut libc::c_void| libc::iovec {
        iov_base: base,
        iov_len: 8,
    };
    let (here, there) = (part((&raw mut word).cast()), part(at as *mut libc::c_void));
    // SAFETY: room for eight bytes here; the kernel checks what is there.
    let got = unsafe { libc::process_vm_readv(pid as i32, &here, 1, &there, 1, 0) };
    assert_eq!(got, 8, "{}", std::io::Error::last_os_error());
    word
}

/// Another process reads its memory, as a debugger does: what is not in DRAM comes, or is refused.
#[test]
fn e2e_another_process_reads_what_is_on_the_ssd() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "odd.c", &[]);
    // In a thread of the program nobody takes a fault of another process.
    let more = ["--ssd", "1G", "--report", "none", "--faults", "thread"];
    let mut command = command(CAP_MIB, &more, None);
    command.arg(program).arg("wait");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("an address");
    let start = u64::from_str_radix(line.trim().trim_start_matches("0x"), 16);
    let start = start.expect("an address");
    let mixed = |n: u64| {
        let n = (n ^ (n >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        n ^ (n >> 29)
    };
    let file = std::fs::File::open(format!("/proc/{}/mem", child.id()));
    let file = file.expect("one's own child may be looked into");
    let mut refused = 0;
    for page in (0..16_384u64).step_by(37) {
        let mut word = [0; 8];
        let at = page * 4096;
        // The kernel does not wait for a page here: what is not in DRAM cannot be read, which is not the same as read wrongly.
        match file.read_exact_at(&mut word, start + at) {
            Ok(()) => assert_eq!(u64::from_ne_bytes(word), mixed(at / 8), "page {page}"),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EIO));
                refused += 1;
            }
        }
        assert_eq!(peek(child.id(), start + at), mixed(at / 8), "page {page}");
    }
    assert!(refused > 0);
    writeln!(child.stdin.take().expect("a pipe"), "go").expect("it reads");
    let mut said = String::new();
    out.read_to_string(&mut said).expect("its end");
    assert!(
        child.wait().expect("its status").success() && said == "OK\n",
        "{said}"
    );
}

#[test]
fn e2e_memcached_that_drops_its_privileges() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return println!("not judged: only root has privileges to drop");
    }
    let port = free_port();
    let mut command = command(CAP_MIB, &["--ssd", "1G", "--report", "none"], None);
    command.args(["memcached", "-m", "512", "-U", "0", "-u", "nobody"]);
    command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
    let server = Server::start(&mut command, port);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id()));
    let status = status.expect("it runs");
    let user = status.lines().find(|line| line.starts_with("Uid:"));
    assert!(user.is_some_and(|line| !line.contains("\t0\t")), "{status}");
    let stream = server.connect();
    let (mut ask, mut reply) = (stream.try_clone().expect("a copy"), BufReader::new(stream));
    let mut line = String::new();
    for n in 0..160 {
        let bytes = value(n, 500_000);
        write!(ask, "set k{n} 0 0 {}\r\n", bytes.len()).expect("sent");
        ask.write_all(&bytes).expect("sent");
        ask.write_all(b"\r\n").expect("sent");
        line.clear();
        reply.read_line(&mut line).expect("a reply");
        assert_eq!(line, "STORED\r\n");
    }
    for n in 0..160 {
        write!(ask, "get k{n}\r\n").expect("sent");
        line.clear();
        reply.read_line(&mut line).expect("a reply");
        assert_eq!(line, format!("VALUE k{n} 0 500000\r\n"));
        let mut got = vec![0; 500_007];
        reply.read_exact(&mut got).expect("a value");
        assert!(got.starts_with(&value(n, 500_000)), "value {n}");
    }
    assert!(server.stop().success());
}

/// A device of faults that one group may open, before the one that is there, in a view of files of its own; then a user of that group without any rights, under what a
/// container's profile of system calls refuses.
const WITHOUT_ROOT: &str = "set -e; cd \"$0\"; group=$1; shift; mknod node c 10 257; chgrp 12345 node; chmod 660 node; \
    mount --bind node /dev/userfaultfd; mkdir -m 700 pool; chown 65534:65534 pool; echo prepared; \
    exec setpriv --reuid=65534 --regid=65534 \"$group\" --inh-caps=-all --bounding-set=-all --no-new-privs \
    ./filter_c ./terrace run --dram 32M --ssd 1G --report none --pool pool -- ./odd_c closing";

#[test]
fn e2e_without_root_and_under_a_containers_filter() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    for source in ["filter.c", "odd.c"] {
        compiled(dir.path(), source, &[]);
    }
    // The user may not go where the build is.
    for name in ["terrace", "libterrace_preload.so"] {
        copied(&binary().with_file_name(name), dir.path());
    }
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), all).expect("ours");
    let run = |group: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", WITHOUT_ROOT]);
        let _ = std::fs::remove_dir(dir.path().join("pool"));
        let _ = std::fs::remove_file(dir.path().join("node"));
        output(command.arg(dir.path()).arg(group))
    };
    let (well, said) = run("--clear-groups");
    if !said.contains("prepared\n") {
        return println!("not judged: {said}");
    }
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if allowed.is_ok_and(|allowed| allowed.trim() == "0") {
        let why = "set the sysctl vm.unprivileged_userfaultfd=1";
        assert!(!well && said.contains(why), "{said}");
    }
    let _ = std::fs::remove_dir_all(dir.path().join("pool"));
    let (well, said) = run("--groups=12345");
    assert!(well && said.ends_with("OK\n"), "{said}");
}
