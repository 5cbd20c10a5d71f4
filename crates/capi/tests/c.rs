//! Programs in C against the library, as users build them: the header in C and C++, what each call does, what each misuse ends in, and the
//! applications of `examples/` with their contents verified, one of them killed.
//!
//! Never skipped: without a C compiler it fails, and says what to install.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put libterrace.so and libterrace.a for this test.
fn libraries() -> PathBuf {
    let exe = std::env::current_exe().expect("this test's file");
    exe.parent().expect("its directory").to_path_buf()
}

fn run(command: &mut Command) -> Output {
    let ended = command.output();
    let ended = ended.unwrap_or_else(|e| {
        panic!("{command:?}: {e}; a C compiler comes with Debian's build-essential")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        ended.status.success(),
        "{command:?}: {}\n{}{}",
        ended.status,
        text(&ended.stdout),
        text(&ended.stderr)
    );
    ended
}

/// How a program is linked.
#[derive(Clone, Copy)]
enum Link {
    Shared,
    Static,
    Not,
}

fn compile(sources: &[PathBuf], out: &Path, flags: &[&str], link: Link) {
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D_GNU_SOURCE",
    ])
    .args(flags)
    .arg("-I")
    .arg(here().join("include"))
    .args(sources)
    .arg("-o")
    .arg(out);
    match link {
        Link::Shared => {
            cc.arg(libraries().join("libterrace.so"));
        }
        Link::Static => {
            cc.arg(libraries().join("libterrace.a"));
            cc.args(["-lgcc_s", "-lutil", "-lrt", "-ldl"]);
        }
        Link::Not => {}
    }
    run(cc.args(["-lpthread", "-lm"]));
}

/// Runs a program that was linked with the shared library. The library's soname is another name than its file's here.
fn start(program: &Path, dir: &Path) -> Command {
    let soname = dir.join("libterrace.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink(libraries().join("libterrace.so"), &soname).expect("a link");
    }
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", dir);
    command
}

fn c(name: &str) -> Vec<PathBuf> {
    vec![here().join("tests/c").join(name)]
}

#[test]
fn the_header_compiles_in_c_and_cpp() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("header.c");
    std::fs::write(&source, "#include \"terrace.h\"\n").expect("written");
    let include = here().join("include");
    for (compiler, language, standard) in [("cc", "c", "-std=c99"), ("c++", "c++", "-std=c++11")] {
        let mut command = Command::new(compiler);
        command.args([
            "-x",
            language,
            standard,
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ]);
        run(command.arg(&include).arg(&source));
    }
}

#[test]
fn every_call_does_what_the_header_says() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, link) in [("shared", Link::Shared), ("static", Link::Static)] {
        let program = dir.path().join(name);
        compile(&c("calls.c"), &program, &[], link);
        run(start(&program, dir.path()).arg(dir.path().join(format!("{name}-pool"))));
    }
}

#[test]
fn a_named_region_is_as_at_its_last_sync() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("regions");
    compile(&c("regions.c"), &program, &[], Link::Shared);
    let ended = run(start(&program, dir.path()).arg(dir.path().join("pool")));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("each left a completed sync"));
}

#[test]
fn closing_ends_after_the_calls_of_other_threads() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("closing");
    compile(&c("closing.c"), &program, &[], Link::Shared);
    let ended = run(start(&program, dir.path()).arg(dir.path()));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("nothing outlived its pool"));
}

#[test]
fn every_misuse_is_an_error_or_a_clear_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("misuse");
    compile(&c("misuse.c"), &program, &[], Link::Shared);
    let ended = run(start(&program, dir.path()).arg(dir.path()));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    println!("{said}");
    assert!(said.contains("all as they should be"));
}

/// Cases that run in a process each, and end in a line that says so.
fn every_case_of(name: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join(name);
    compile(&c(&format!("{name}.c")), &program, &[], Link::Shared);
    let ended = run(start(&program, dir.path()).arg(dir.path()));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("all as they should be"));
}

#[test]
fn signals_are_the_programs() {
    every_case_of("signals");
}

#[test]
fn what_devices_read_into_memory_is_there() {
    every_case_of("devices");
}

#[test]
fn what_is_refused_at_opening_says_why_and_leaves_the_pool_as_it_was() {
    every_case_of("opening");
}

#[test]
fn calls_at_the_end_of_a_thread_are_refused_or_work() {
    every_case_of("ends");
}

#[test]
fn forks_find_no_lock_that_nobody_lets_go_of() {
    every_case_of("forks");
}

#[test]
fn the_examples_hold_what_was_put_into_them() {
    let examples = here().join("../../examples");
    let common = examples.join("common");
    let include = format!("-I{}", common.display());
    let dir = tempfile::tempdir().expect("a directory");
    for (name, keys) in [
        ("btree", "30K"),
        ("packetcache", "28K"),
        ("hashcache", "50K"),
    ] {
        let sources = [
            examples.join(name).join(format!("{name}.c")),
            common.join("bench.c"),
        ];
        for (kind, link) in [
            ("malloc", Link::Not),
            ("MP", Link::Shared),
            ("OPP", Link::Shared),
        ] {
            let program = dir.path().join(format!("{name}-{kind}"));
            let define = format!("-DTERRACE_{kind}");
            compile(&sources, &program, &[&include, &define], link);
            let pool = dir.path().join("pool");
            // Up to 28 MB of objects; few of their pages are there at a time.
            let mut command = start(&program, dir.path());
            command.args([
                "--check",
                "--threads",
                "2",
                "--cap",
                "24M",
                "--ssd",
                "128M",
                "--keys",
                keys,
            ]);
            let ended = run(command.arg("--pool").arg(&pool));
            assert!(String::from_utf8_lossy(&ended.stdout).contains("\"check\": true"));
            let _ = std::fs::remove_dir_all(&pool);
        }
    }
    // The workload's numbers are what they say, or refused.
    for wrong in [
        ["--cap", "-1"],
        ["--cap", "17179869184G"],
        ["--reads", "x"],
        ["--reads", "101"],
        ["--seconds", "x"],
        ["--seconds", "nan"],
        ["--ops", "3"],
    ] {
        let mut command = start(&dir.path().join("btree-malloc"), dir.path());
        command.args(["--keys", "100", "--seconds", "0.1"]);
        let ended = command.args(wrong).output().expect("it starts");
        assert_eq!(ended.status.code(), Some(1), "{wrong:?}: {ended:?}");
    }
}

/// Lines for the dictionary of `examples/`, the same for the same seed: keys come back with other values, and go.
fn lines(seed: u64, from: u64) -> impl Iterator<Item = String> {
    (from..).map(move |n| {
        let at = (n ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        match at % 5 {
            0 => format!("-key{}", at / 5 % 4000),
            _ => format!(
                "+key{} {}",
                at / 5 % 4000,
                n.to_string().repeat(1 + (at % 400) as usize)
            ),
        }
    })
}

/// What a dictionary has after the first `count` lines.
fn after(seed: u64, count: u64) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for line in lines(seed, 0).take(count as usize) {
        match line[1..].split_once(' ') {
            Some((key, value)) => map.insert(key.to_owned(), value.to_owned()),
            None => map.remove(&line[1..]),
        };
    }
    map
}

#[test]
fn a_dictionary_that_is_killed_has_whole_batches() {
    const KILLS: u64 = 6;
    const SEED: u64 = 1;
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("dictionary");
    let source = here().join("../../examples/dictionary/dictionary.c");
    compile(&[source], &program, &[], Link::Shared);
    let pool = dir.path().join("pool");
    let with = |words: &[&str]| {
        let mut command = start(&program, dir.path());
        command.arg(&pool).args(words);
        command
    };
    let said = |words: &[&str]| {
        let ended = run(&mut with(words));
        String::from_utf8(ended.stdout).expect("text")
    };
    let lines_kept = || -> u64 {
        let said = said(&["count"]);
        let mut words = said.split_whitespace();
        words.nth(3).and_then(|n| n.parse().ok()).expect("a number")
    };
    for wrong in [&["frobnicate"][..], &["put", "key"], &["count", "more"]] {
        let ended = with(wrong).output().expect("it starts");
        assert_eq!(ended.status.code(), Some(2), "{wrong:?}: {ended:?}");
        assert!(!pool.exists(), "{wrong:?} made a pool");
    }
    for kill in 0..KILLS {
        let before = lines_kept();
        let mut child = with(&["load"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the dictionary");
        let mut input = child.stdin.take().expect("its input");
        // Ends when its reader is gone.
        let writer = std::thread::spawn(move || {
            for line in lines(SEED, before) {
                if writeln!(input, "{line}").is_err() {
                    break;
                }
            }
        });
        let mut output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut acknowledged = before;
        for _ in 0..3 + kill * 7 {
            let line = output.next().expect("a line").expect("text");
            let kept = line.strip_prefix("kept ").expect("what was kept");
            acknowledged = kept.parse().expect("a number");
        }
        std::thread::sleep(Duration::from_micros(kill * 700));
        child.kill().expect("killed");
        child.wait().expect("gone");
        writer.join().expect("no panic");
        let kept = lines_kept();
        assert!(
            kept >= acknowledged && kept % 100 == 0,
            "{kept} lines are kept, {acknowledged} were acknowledged"
        );
        let dumped = said(&["dump"]);
        let dumped: BTreeMap<String, String> = dumped
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        assert!(
            dumped == after(SEED, kept),
            "other entries than after {kept} lines"
        );
    }
    run(&mut with(&["put", "word", "what it means"]));
    assert_eq!(said(&["get", "word"]), "what it means\n");
    run(&mut with(&["delete", "word"]));
    assert_eq!(
        with(&["get", "word"]).output().expect("ran").status.code(),
        Some(1)
    );
}
