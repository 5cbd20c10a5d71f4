//! Real clients against the real binary: redis-py, a program in C over hiredis, redis-benchmark's tests of strings, and YCSB over
//! memcached's protocol. (redis-cli is in process.rs, memcached's clients in memcached.rs, TLS in tls.rs.)

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::python::{python, run_python};
use crate::support::{Server, TempDir, busy, free_addr, said};

const SMALL: &[&str] = &["--dram", "64M", "--ssd", "512M", "--threads", "2"];

/// Where tests keep what they fetched or compiled: beside their binaries.
fn build_dir(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    test.ancestors()
        .nth(3)
        .expect("a build directory")
        .join(name)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/e2e")
        .join(name)
}

/// Runs a program that must end well.
fn run(program: &str, hint: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e} ({hint})"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        said(&output)
    );
    output
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const REDIS_PY: &str = include_str!("clients/redis_py.py");

#[test]
fn e2e_redis_py_finds_what_it_stored() {
    let dir = TempDir::new("redis-py");
    let server = Server::start(&dir.pool(), &[SMALL, &["--durability", "async"]].concat());
    let args = [server.addr.ip().to_string(), server.addr.port().to_string()];
    run_python(&python(&["redis"]), REDIS_PY, &args);
    server.shutdown();
}

#[test]
fn e2e_a_program_in_c_over_hiredis_finds_what_it_stored() {
    let dir = TempDir::new("hiredis");
    let program = dir.path().join("hiredis");
    let hint = "apt-get install build-essential libhiredis-dev";
    let source = source("clients/hiredis.c");
    let args = [
        "-O1",
        "-Wall",
        "-Werror",
        text(&source),
        "-o",
        text(&program),
        "-lhiredis",
    ];
    run("cc", hint, &args);
    for durability in ["async", "sync"] {
        let more = ["--durability", durability];
        let pool = dir.path().join(durability);
        let server = Server::start(&pool, &[SMALL, &more].concat());
        let (host, port) = (server.addr.ip().to_string(), server.addr.port().to_string());
        run(text(&program), hint, &[&host, &port]);
        server.shutdown();
    }
}

#[test]
fn e2e_redis_benchmark_tests_strings_without_an_error() {
    let _busy = busy();
    let dir = TempDir::new("redis-benchmark");
    let server = Server::start(&dir.pool(), &[SMALL, &["--durability", "async"]].concat());
    let port = server.addr.port().to_string();
    let tests = "ping_inline,ping_mbulk,set,get,incr,mset";
    for more in [
        &["-n", "20000", "-c", "50", "-r", "10000"][..],
        &[
            "-n",
            "50000",
            "-c",
            "20",
            "-P",
            "32",
            "-r",
            "10000",
            "-d",
            "300",
            "--threads",
            "2",
        ],
        &["-n", "600", "-c", "10", "-d", "70000", "-r", "100"],
        &["-n", "20000", "-c", "10", "-3"],
    ] {
        // A value of MSET must fit into one entry.
        let tests = match more.contains(&"70000") {
            true => "set,get",
            false => tests,
        };
        let args = [&["-p", &port, "-t", tests, "--csv"], more].concat();
        let said = said(&run(
            "redis-benchmark",
            "apt-get install redis-tools",
            &args,
        ));
        let rows = said.lines().filter(|l| l.starts_with('"')).count();
        assert!(rows > tests.split(',').count(), "{said}");
        assert!(!said.contains("rror"), "{said}");
    }
    server.shutdown();
}

/// YCSB and what it needs, fetched once, and its way to memcached, compiled anew when it changed.
fn ycsb() -> String {
    let home = build_dir("ycsb");
    let (jars, classes) = (home.join("jars"), home.join("classes"));
    let pom = source("ycsb/pom.xml");
    let wanted = std::fs::read(&pom).expect("the list of what is needed");
    let done = home.join("fetched");
    if std::fs::read(&done).ok() != Some(wanted.clone()) {
        let _ = std::fs::remove_dir_all(&jars);
        let to = format!("-DoutputDirectory={}", jars.display());
        let goal = [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            &to,
        ];
        let args = [&["-q", "-B", "-f", text(&pom)], &goal[..]].concat();
        run("mvn", "apt-get install maven", &args);
        std::fs::write(&done, wanted).expect("a mark");
    }
    let path = format!("{}/*", jars.display());
    let binding = source("ycsb/MemcachedStore.java");
    let args = [
        "-nowarn",
        "-cp",
        &path,
        "-d",
        text(&classes),
        text(&binding),
    ];
    run("javac", "apt-get install default-jdk-headless", &args);
    format!("{path}:{}", classes.display())
}

/// How many operations of each kind ended how: (kind, return code, number).
fn returns(said: &str) -> Vec<(String, String, u64)> {
    let line = |line: &str| {
        let (kind, rest) = line.strip_prefix('[')?.split_once("], Return=")?;
        let (code, number) = rest.split_once(", ")?;
        Some((
            kind.to_string(),
            code.to_string(),
            number.trim().parse().ok()?,
        ))
    };
    said.lines().filter_map(line).collect()
}

#[test]
fn e2e_ycsb_reads_what_it_wrote() {
    let _busy = busy();
    let dir = TempDir::new("ycsb");
    let class_path = ycsb();
    let addr = free_addr().to_string();
    let more = ["--durability", "async", "--memcached", &addr];
    let server = Server::start(&dir.pool(), &[SMALL, &more].concat());
    let hosts = format!("memcached.hosts={addr}");
    let phase = |what: &str, name: &str| {
        let file = source(&format!("ycsb/workloads/{name}"));
        let args = [
            "-Xmx256m",
            "-cp",
            &class_path,
            "site.ycsb.Client",
            what,
            "-db",
            "MemcachedStore",
        ];
        let args = [
            &args[..],
            &["-P", text(&file), "-p", &hosts, "-threads", "8"],
        ]
        .concat();
        let said = said(&run("java", "apt-get install default-jdk-headless", &args));
        let all = returns(&said);
        let bad: Vec<_> = all.iter().filter(|(_, code, _)| code != "OK").collect();
        assert!(bad.is_empty(), "{name}: {bad:?}\n{said}");
        let sum = |kind: &str| all.iter().filter(|r| r.0 == kind).map(|r| r.2).sum::<u64>();
        let done = ["READ", "UPDATE", "INSERT"].map(sum);
        println!(
            "{name} {what}: {done:?} read, updated, inserted; {} verified",
            sum("VERIFY")
        );
        assert_eq!(
            sum("VERIFY"),
            done[0],
            "{name}: every read is compared\n{said}"
        );
        done
    };
    assert_eq!(phase("-load", "a"), [0, 0, 20_000]);
    for name in ["a", "b", "c", "f"] {
        let [reads, updates, _] = phase("-t", name);
        let expected = match name {
            // A modification reads first.
            "f" => reads == 20_000 && (8_000..12_000).contains(&updates),
            "c" => reads == 20_000 && updates == 0,
            _ => reads + updates == 20_000 && updates > 500,
        };
        assert!(expected, "{name}: {reads} reads, {updates} updates");
    }
    let [reads, _, inserts] = phase("-t", "d");
    assert!(
        reads + inserts == 20_000 && inserts > 500,
        "{reads}, {inserts}"
    );
    server.shutdown();
}
