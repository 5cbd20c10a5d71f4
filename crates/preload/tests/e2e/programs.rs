//! Unmodified programs under `terrace run` with more memory than the cap: what they print is right, and the cgroup of the cap and 32 MiB is enough.

use crate::support::{self, command, compiled, group, judge, output, reported};

const CAP_MIB: u64 = 32;

/// A program of `tests/c` says OK.
fn is_ok(source: &str, flags: &[&str], args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), source, flags);
    let group = group(CAP_MIB);
    let mut command = command(CAP_MIB, &["--ssd", "1G"], group.as_ref());
    command.arg(program).args(args).current_dir(dir.path());
    let (well, said) = output(&mut command);
    assert!(well && said.contains("OK\n"), "{said}");
    assert!(reported(&said, "pages_evicted") > 10_000, "{said}");
    judge(source, group.as_ref());
    said
}

#[test]
fn e2e_mmap_and_malloc_keep_what_they_promise() {
    let said = is_ok("maps.c", &["-Wno-alloc-size-larger-than"], &[]);
    let why = "4096 bytes at a multiple of 2147483648: served memory has no such place free";
    assert!(said.contains(why), "{said}");
}

/// The same as without Terrace, but where the SSD has no room.
#[test]
fn e2e_mmap_does_at_its_edges_what_linux_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "edges.c", &[]);
    for part in [
        "protects",
        "fixed",
        "noreplace",
        "shrinks",
        "lengths",
        "holes",
        "moves",
        "refused",
    ] {
        if part != "refused" {
            let (well, said) = output(std::process::Command::new(&program).arg(part));
            assert!(well && said == "OK\n", "{part}, without Terrace: {said}");
        }
        let more = ["--ssd", "1G", "--report", "none"];
        let mut command = command(CAP_MIB, &more, None);
        let (well, said) = output(command.arg(&program).arg(part));
        assert!(well && said == "OK\n", "{part}: {said}");
    }
}

#[test]
fn e2e_system_calls_meet_absent_pages() {
    is_ok("calls.c", &[], &[".", "in-thread"]);
}

#[test]
fn e2e_exceptions_signals_and_locks_on_cold_pages() {
    is_ok(
        "throws.cpp",
        &["-std=c++17", "-Wno-alloc-size-larger-than"],
        &[],
    );
}

/// Runs a script of a language on three times the cap: what was said.
fn script(program: &str, args: &[&str], expected: &str) -> String {
    let group = group(CAP_MIB);
    let mut command = command(CAP_MIB, &["--ssd", "1G"], group.as_ref());
    let (well, said) = output(command.arg(program).args(args));
    assert!(well && said.contains(expected), "{program}: {said}");
    judge(program, group.as_ref());
    said
}

/// A program whose allocations are all small: of these, too, no more is outside of the cap than a cgroup 32 MiB above it has room for.
#[test]
fn e2e_small_allocations_beyond_a_bound_are_served_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "nodes.c", &[]);
    for (args, left) in [(&[][..], 8..=17 << 20), (&["frees"], 0..=128 << 10)] {
        let group = group(CAP_MIB);
        let mut command = command(CAP_MIB, &["--ssd", "1G"], group.as_ref());
        let (well, said) = output(command.arg(&program).args(args));
        assert!(well && said.contains("OK\n"), "{said}");
        assert!(
            reported(&said, "process_dram_peak_bytes") < (CAP_MIB + 32) << 20,
            "{said}"
        );
        assert!(
            left.contains(&reported(&said, "unserved_malloc_bytes")),
            "{said}"
        );
        let served = reported(&said, "served_malloc_bytes");
        assert_eq!(served > 60 << 20, args.is_empty(), "{said}");
        judge("small allocations", group.as_ref());
    }
    let mut kept = command(256, &["--ssd", "1G", "--unserved", "200M"], None);
    let (well, said) = output(kept.arg(&program));
    assert!(
        well && reported(&said, "unserved_malloc_bytes") > 64 << 20,
        "{said}"
    );
}

/// What a program has beside its served memory may be more than fits beside the cap: pages give way for it, and what the C library keeps of freed blocks counts, too.
#[cfg(target_arch = "x86_64")]
#[test]
fn e2e_pages_give_way_for_memory_of_the_programs_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "own.c", &["-pthread"]);
    for (work, cap_mib, unserved, given) in [
        ("nodes", 128, 28..=34, 10..=30),
        ("arenas", 32, 0..=17, 0..=16),
        ("trimmed", 32, 0..=17, 0..=16),
    ] {
        let group = group(cap_mib);
        let mut command = command(cap_mib, &["--ssd", "1G"], group.as_ref());
        let (well, said) = output(command.arg(&program).arg(work));
        assert!(well && said.contains("OK\n"), "{work}: {said}");
        let mib = |name: &str| reported(&said, name) >> 20;
        assert!(
            unserved.contains(&mib("unserved_malloc_bytes")),
            "{work}: {said}"
        );
        assert!(
            given.contains(&mib("given_by_pages_bytes")),
            "{work}: {said}"
        );
        judge(work, group.as_ref());
    }
}

/// Before, a child that the C library's handlers of fork do not see, or that has no memory, made its parent's pages give way, and damaged them.
#[test]
fn e2e_children_make_no_pages_of_others_give_way() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "own.c", &[]);
    for how in ["fork", "_Fork", "full"] {
        let mut command = command(128, &["--ssd", "1G"], None);
        let (well, said) = output(command.arg(&program).arg(how));
        assert!(well && said.contains("OK\n"), "{how}: {said}");
    }
}

/// The same of a program with a malloc of its own, whose blocks have nothing in front of them that says how long they are: only its forks' children looked there.
#[test]
fn e2e_children_of_a_program_with_a_malloc_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = compiled(
        dir.path(),
        "guarded.c",
        &["-shared", "-fPIC", "-fno-builtin"],
    );
    let library = library.to_str().expect("a name");
    let program = compiled(dir.path(), "shown.c", &["-Wl,--no-as-needed", library]);
    let mut command = command(CAP_MIB, &["--ssd", "1G"], None);
    let (well, said) = output(command.arg(program));
    assert!(well && said.contains("OK\n"), "{said}");
    assert_eq!(reported(&said, "unserved_malloc_bytes"), 0, "{said}");
}

#[test]
fn e2e_a_program_with_a_malloc_in_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(
        dir.path(),
        "behind.c",
        &["-fno-builtin", "-Wno-alloc-size-larger-than"],
    );
    let (well, said) = output(command(CAP_MIB, &[], None).arg(program));
    assert!(well && said.contains("OK\n"), "{said}");
}

#[test]
fn e2e_sqlite_in_memory() {
    let sql = "PRAGMA page_size=4096; CREATE TABLE t(n INTEGER PRIMARY KEY, text TEXT); \
        WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 90000) \
        INSERT INTO t SELECT n, printf('%01000d', n) FROM c; CREATE INDEX i ON t(substr(text, 990)); \
        UPDATE t SET text = text || 'x' WHERE n % 7 = 0; \
        SELECT count(*), sum(length(text)), sum(CAST(substr(text, 1, 1000) AS INTEGER)) FROM t; PRAGMA integrity_check;";
    let said = script(
        "sqlite3",
        &[":memory:", sql],
        "90000|90012857|4050045000\nok",
    );
    // It goes along its memory: thirteen pages ahead for each that it waits for, as seen; once it was one for three, and took three times as long (docs/adr/0042).
    let (ahead, faults) = (reported(&said, "pages_ahead"), reported(&said, "faults"));
    assert!(ahead > 4 * faults, "{ahead} ahead of {faults}: {said}");
}

#[test]
fn e2e_python_with_numpy() {
    let text = "import numpy as np\n\
        a = np.arange(5_000_000, dtype=np.int64)[::-1].copy()\n\
        print(int(a.sum()), end=' ')\n\
        a.sort()\n\
        i = np.random.default_rng(1).integers(0, a.size, 200_000)\n\
        print(bool((a[i] == i).all()), int(a[-1]))\n";
    script(
        "/usr/bin/python3",
        &["-c", text],
        "12499997500000 True 4999999",
    );
}

/// What an array of indices names comes ahead of faults, read and written (docs/adr/0057): of 60,000 accesses to 96 MiB in no order two thirds are absent.
#[test]
fn e2e_gathers_go_along_their_indices() {
    let text = "import numpy as np\n\
        a = np.arange(12_000_000, dtype=np.int64)\n\
        chance = np.random.default_rng(1)\n\
        ok = True\n\
        for _ in range(20):\n    \
            i = chance.integers(0, a.size, 2000)\n    \
            ok &= bool((a[i] == i).all())\n\
        for _ in range(10):\n    \
            i = chance.integers(0, a.size, 2000)\n    \
            a[i] = i\n\
        print(ok, int(a.sum()))\n";
    let sum = 12_000_000u64 * 11_999_999 / 2;
    let said = script("/usr/bin/python3", &["-c", text], &format!("True {sum}"));
    let (ahead, faults) = (reported(&said, "pages_ahead"), reported(&said, "faults"));
    // As seen: 24,000 and 104,000; without, 77,000 and 53,000.
    assert!(faults < 45_000 && ahead > 80_000, "{said}");
}

#[test]
fn e2e_temporaries_are_not_touched_first_each_time() {
    let text = "import numpy as np\n\
        a = np.ones(1_000_000)\n\
        print(sum(int(a[i:i + 1000].sum() + (a[:40_000] > a[40_000:80_000]).sum()) for i in range(2000)))\n";
    let said = script("/usr/bin/python3", &["-c", text], "2000000");
    // 8 MB are 2,000 pages, and each of the 2,000 temporaries has ten.
    let first = reported(&said, "faults_first_touch");
    assert!(first < 8_000, "{said}");
}

#[test]
fn e2e_python_with_processes() {
    let text = "import multiprocessing as m\n\
        data = [bytes([n % 251]) * 50_000 for n in range(1500)]\n\
        def look(part):\n    \
            return sum(d[0] for d in data[part::4]), all(d == bytes([d[0]]) * 50_000 for d in data[part::4])\n\
        with m.get_context('fork').Pool(4) as pool:\n    \
            seen = pool.map_async(look, range(4)).get(timeout=120)\n\
        print(sum(s for s, _ in seen), all(well for _, well in seen))\n";
    let expected = (0..1500u64).map(|n| n % 251).sum::<u64>();
    script(
        "/usr/bin/python3",
        &["-c", text],
        &format!("{expected} True"),
    );
}

#[test]
fn e2e_sort_of_more_than_the_cap() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("lines");
    let mut text = String::new();
    for n in 0..500_000u64 {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        text.push_str(&format!("{mixed:016x} and some more of the line\n"));
    }
    std::fs::write(&path, &text).expect("a file");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let sorted = dir.path().join("sorted");
    let group = group(CAP_MIB);
    let mut command = command(CAP_MIB, &["--ssd", "1G"], group.as_ref());
    command
        .env("LC_ALL", "C")
        .args(["sort", "-S", "100M", "-o"]);
    let (well, said) = output(command.arg(&sorted).arg(&path));
    assert!(well, "{said}");
    let got = std::fs::read_to_string(&sorted).expect("what it wrote");
    assert!(got.lines().eq(lines.into_iter()), "not sorted");
    judge("sort", group.as_ref());
}

#[test]
fn e2e_a_signal_asks_for_the_report_and_nothing_is_left_behind() {
    let dir = tempfile::Builder::new()
        .tempdir_in("/var/tmp")
        .expect("a directory");
    let report = dir.path().join("report");
    let name = report.to_str().expect("a name");
    let mut command = command(32, &["--report", name], None);
    command.env("TMPDIR", dir.path());
    let text = "import os, signal, time; x = bytearray(20_000_000); os.kill(os.getpid(), signal.SIGUSR2)\n\
        n = 0\n\
        while n < 6000 and not os.path.exists(os.environ['TERRACE_RUN_REPORT']): n += 1; time.sleep(0.01)\n\
        time.sleep(0.2); print(open(os.environ['TERRACE_RUN_REPORT']).read())";
    let (well, said) = output(command.args(["/usr/bin/python3", "-c", text]));
    assert!(well && said.contains(" now\n"), "{said}");
    assert!(
        reported(&said, "served_mmap_bytes") + reported(&said, "served_malloc_bytes") >= 20_000_000
    );
    let at_end = std::fs::read_to_string(&report).expect("a report");
    assert!(at_end.contains(" at its end\n"), "{at_end}");
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .expect("it is there")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn e2e_who_becomes_a_program_that_is_not_served_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |script: &str| {
        let mut command = command(32, &["--ssd", "1G", "--report", "none"], None);
        let (well, said) = output(command.args(["sh", "-c", script]).current_dir(dir.path()));
        assert!(well, "{script}: {said}");
        said
    };
    let alone = "runs without Terrace: ";
    compiled(dir.path(), "here.c", &["-static"]);
    let said = run("exec ./here_c");
    let why = format!("./here_c takes this program's place and {alone}it is statically linked");
    assert!(said.contains(&why) && said.contains("here\n"), "{said}");
    // By a name in PATH, and by way of another program, which is served.
    let said = run("PATH=$PWD:$PATH; exec env nice here_c");
    assert_eq!(said.matches(alone).count(), 1, "{said}");
    let said = run("exec env -i /bin/true");
    assert!(said.contains(&format!("{alone}its environment")), "{said}");
    // A child never is served, nor is that said; what cannot be run takes nobody's place.
    for script in [
        "./here_c; true",
        "exec /bin/true",
        "(exec ./here_c); exec true",
        "exec bash -c 'shopt -s execfail; exec ./nothing; true'",
    ] {
        let said = run(script);
        assert!(!said.contains(alone), "{script}: {said}");
    }
    compiled(dir.path(), "here.c", &[]);
    assert_eq!(run("exec ./here_c"), "here\n");
}

#[test]
fn e2e_what_cannot_be_served_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "fork.c", &["-static"]);
    let refused = |args: &[&str], why: &str| {
        let mut command = std::process::Command::new(support::binary());
        let (well, said) = output(command.arg("run").args(args));
        assert!(!well && said.contains(why), "{args:?}: {said}");
    };
    let name = program.to_str().expect("a name");
    refused(&["--dram", "32M", "--", name], "statically linked");
    let program = compiled(dir.path(), "fork.c", &["-static-pie"]);
    let name = program.to_str().expect("a name");
    refused(&["--dram", "32M", "--", name], "statically linked");
    refused(
        &["--dram", "32M", "--", "no-such-program"],
        "not found in PATH",
    );
    let dram = "--dram is 1048576 bytes: a pool needs at least 16 MiB";
    refused(&["--dram", "1M", "--", "true"], dram);
    for sizes in [["1M", "1G"], ["32M", "1K"], ["32M", "0"]] {
        let [dram, ssd] = sizes;
        let misuse = std::process::Command::new(support::binary())
            .args(["run", "--dram", dram, "--ssd", ssd, "--", "true"])
            .output()
            .expect("it starts");
        assert_eq!(misuse.status.code(), Some(2), "{sizes:?}: wrong usage");
    }
    refused(
        &["--dram", "32M", "--pool", "/dev/shm/x", "--", "true"],
        "tmpfs",
    );
    let _ = std::fs::remove_dir("/dev/shm/x");
    let mut command = command(32, &["--report", "none"], None);
    let ended = command
        .args(["sh", "-c", "exit 41"])
        .status()
        .expect("it starts");
    assert_eq!(ended.code(), Some(41));
}
