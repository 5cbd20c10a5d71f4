//! The process and its surroundings: one process a pool, file modes, addresses, devices, refused settings, where stdout and stderr take
//! nothing, signals, clean stops that leave the next start warm, cold reads in a pipeline, and the tools that come with Redis.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::resp::{Client, Reply};
use crate::support::{Rng, Server, TempDir, alone, binary, busy, free_addr, run, said, value_of};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

const SMALL: &[&str] = &["--dram", "64M", "--ssd", "512M", "--threads", "2"];

/// Sets keys `from` to `to`, of `len` bytes each.
fn fill(client: &mut Client, keys: std::ops::Range<u64>, len: usize) {
    let keys: Vec<u64> = keys.collect();
    for batch in keys.chunks(64) {
        let pairs: Vec<(Vec<u8>, Vec<u8>)> = batch
            .iter()
            .map(|&k| (format!("key:{k}").into_bytes(), value_of(k, len)))
            .collect();
        let sets: Vec<Vec<&[u8]>> = pairs
            .iter()
            .map(|(k, v)| vec![b"SET".as_slice(), k, v])
            .collect();
        for reply in client.pipeline(&sets) {
            assert!(reply.is_ok(), "{reply:?}");
        }
    }
}

fn get_right(client: &mut Client, key: u64, len: usize) {
    let reply = client.call(&[b"GET", format!("key:{key}").as_bytes()]);
    assert!(
        reply == Reply::Bulk(value_of(key, len)),
        "key:{key}: {}",
        reply.shown()
    );
}

#[test]
fn e2e_a_pool_has_one_process_and_private_files() {
    let dir = TempDir::new("one-process");
    let pool = dir.pool();
    let server = Server::start(&pool, SMALL);
    let path = pool.to_str().expect("a printable path");
    let begun = Instant::now();
    for args in [
        vec![
            "serve",
            "--pool",
            path,
            "--dram",
            "64M",
            "--resp",
            "127.0.0.1:0",
        ],
        vec!["pool", "check", path],
        vec!["pool", "destroy", path, "--yes"],
    ] {
        let refused = run(&args);
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(1), "{args:?}: {text}");
        let pid = format!("process {}", server.pid());
        assert!(text.contains(&pid), "{args:?}: no {pid} in {text}");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "a refusal is quick"
    );
    let mut files = 0;
    for file in std::fs::read_dir(&pool).expect("the pool's directory") {
        let file = file.expect("a file");
        let mode = file.metadata().expect("its mode").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.path().display());
        files += 1;
    }
    assert!(files >= 2, "a pool has its data and its lock");
    server.kill();
    Server::start(&pool, SMALL).shutdown();
}

#[test]
fn e2e_only_loopback_is_served() {
    let dir = TempDir::new("loopback");
    let pool = dir.pool();
    let path = pool.to_str().expect("a printable path");
    for addr in ["0.0.0.0:0", "10.0.0.1:6380", "[::]:0"] {
        let refused = run(&["serve", "--pool", path, "--dram", "64M", "--resp", addr]);
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{addr}: {text}");
        assert!(
            text.contains("loopback only") && text.contains("127.0.0.1"),
            "{text}"
        );
    }
    assert!(!pool.exists(), "a refused start makes no pool");
}

/// Runs the binary with a path among its arguments, and stdout and stderr elsewhere.
fn run_at(args: &[&str], path: &Path, stdout: Stdio) -> Output {
    let ran = Command::new(binary())
        .args(args)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .output();
    ran.expect("the binary runs")
}

/// What an output's path was printed as.
fn shown(path: &Path) -> &str {
    path.to_str().expect("a printable path")
}

#[test]
fn e2e_settings_that_make_no_sense_make_no_pool() {
    let dir = TempDir::new("no-sense");
    let pool = dir.pool();
    let path = shown(&pool);
    let serve = ["serve", "--resp", "127.0.0.1:0", "--pool", path];
    for (args, why) in [
        (["--dram", "1M", "--ssd", "25M", "--threads", "1"], "16 MiB"),
        (["--dram", "64M", "--ssd", "1M", "--threads", "1"], "25 MiB"),
        (
            ["--dram", "64M", "--ssd", "0", "--threads", "1"],
            "--ssd is 0",
        ),
        (["--dram", "64M", "--ssd", "1G", "--threads", "5"], "80 MiB"),
    ] {
        let refused = run(&[&serve[..], &args].concat());
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: no {why} in {text}");
        assert!(!pool.exists(), "{args:?} made a pool");
    }
    for ssd in ["0", "1M"] {
        let refused = run(&["pool", "create", path, "--ssd", ssd]);
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(!pool.exists(), "--ssd {ssd} made a pool");
    }
}

/// A file is the device here: a real one needs root.
#[test]
fn e2e_a_pool_on_a_device_is_found_by_its_link_and_none_is_made_where_that_leads_nowhere() {
    let dir = TempDir::new("device");
    let pool = dir.pool();
    let (device, away) = (dir.path().join("device"), dir.path().join("away"));
    let file = File::create(&device).expect("a file");
    file.set_len(64 << 20).expect("its length");
    // As it is found from here, and not from the pool's directory.
    let made = Command::new(binary())
        .current_dir(dir.path())
        .args(["pool", "create", "pool", "--device", "device"])
        .output()
        .expect("the binary runs");
    assert!(made.status.success(), "{}", said(&made));
    let args = ["--dram", "64M", "--threads", "1"];
    let server = Server::start(&pool, &args);
    assert!(server.client().words("SET k v").is_ok());
    server.shutdown();
    std::fs::rename(&device, &away).expect("the device goes away");
    let serve = ["serve", "--resp", "127.0.0.1:0", "--pool", shown(&pool)];
    let refused = run(&[&serve[..], &args].concat());
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("attach that device"), "{text}");
    assert!(pool.join("data").is_symlink(), "the link is gone");
    std::fs::rename(&away, &device).expect("the device comes back");
    let server = Server::start(&pool, &args);
    assert_eq!(server.client().words("GET k"), Reply::Bulk(b"v".to_vec()));
    server.shutdown();
    let gone = run(&["pool", "destroy", shown(&pool), "--yes"]);
    assert!(gone.status.success() && device.exists(), "{}", said(&gone));
}

/// What is logged must not be in the way of what is kept.
#[test]
fn e2e_a_log_that_takes_nothing_harms_nothing() {
    let dir = TempDir::new("no-log");
    let pool = dir.pool();
    let start = |stderr: Stdio| {
        let addr = free_addr();
        let args = ["--durability", "async", "--flush-interval", "60000"];
        let child = Command::new(binary())
            .args(["serve", "--resp", &addr.to_string(), "--pool", shown(&pool)])
            .args([SMALL, &args].concat())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn();
        (child.expect("the server starts"), addr)
    };
    let (mut child, addr) = start(Stdio::piped());
    let mut log = child.stderr.take().expect("a pipe");
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("serving the Redis") {
        let mut byte = [0];
        assert_eq!(log.read(&mut byte).expect("a log"), 1, "it ended");
        text.push(byte[0]);
    }
    let mut client = Client::connect(addr);
    drop(log);
    fill(&mut client, 0..8, 100);
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal");
    let status = child.wait().expect("its end");
    assert!(status.success(), "without a reader of its log: {status}");

    let full = File::options().write(true).open("/dev/full");
    let (mut child, addr) = start(full.expect("/dev/full").into());
    let begun = Instant::now();
    while std::net::TcpStream::connect(addr).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no server");
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "with a full log: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut client = Client::connect(addr);
    (0..8).for_each(|key| get_right(&mut client, key, 100));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal");
    let status = child.wait().expect("its end");
    assert!(status.success(), "with a full log: {status}");
}

#[test]
fn e2e_where_stdout_takes_nothing_it_is_said_and_nothing_panics() {
    let dir = TempDir::new("no-stdout");
    let pool = dir.pool();
    let commands: [&[&str]; 7] = [
        &["pool", "create", "--ssd", "32M"],
        &["pool", "info"],
        &["pool", "check"],
        &["pool", "drop-checkpoints", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["pool", "destroy", "--yes"],
    ];
    for full in [true, false] {
        for args in commands {
            let stdout = match full {
                true => File::options()
                    .write(true)
                    .open("/dev/full")
                    .map(Stdio::from),
                // Its reader is gone at once.
                false => std::io::pipe().map(|(_, to)| Stdio::from(to)),
            };
            let ran = run_at(args, &pool, stdout.expect("a file"));
            let text = said(&ran);
            assert!(!text.contains("panicked"), "{args:?}: {text}");
            let want = match (full, args[0]) {
                (true, _) => Some(1),
                // It says so by that where the machine lacks something.
                (false, "doctor") => run_at(args, &pool, Stdio::piped()).status.code(),
                (false, _) => Some(0),
            };
            assert_eq!(ran.status.code(), want, "{args:?}: {text}");
            assert_eq!(text.contains("stdout"), full, "{args:?}: {text}");
        }
        let list = run_at(&["bench", "list", "--out"], &pool, Stdio::piped());
        assert!(list.status.success(), "{}", said(&list));
        assert!(!pool.exists(), "it was to be destroyed");
    }
}

#[test]
fn e2e_json_names_a_path_that_is_not_utf8() {
    let dir = TempDir::new("not-utf8");
    let pool = dir.path().join(OsStr::from_bytes(b"p\xff"));
    let commands: [&[&str]; 5] = [
        &["pool", "create", "--ssd", "32M", "--json"],
        &["doctor", "--json"],
        &["pool", "check", "--json"],
        &["pool", "drop-checkpoints", "--json"],
        &["pool", "destroy", "--yes", "--json"],
    ];
    for args in commands {
        let ran = run_at(args, &pool, Stdio::piped());
        // Where the machine lacks something doctor says so by that.
        let is_well = ran.status.success() || args[0] == "doctor";
        assert!(is_well, "{args:?}: {}", said(&ran));
        let text = String::from_utf8(ran.stdout).expect("UTF-8");
        assert!(text.ends_with("}\n"), "{args:?}: {text}");
        let names_it = !["create", "check"].contains(&args[1]);
        assert_eq!(text.contains("p\u{fffd}\""), names_it, "{args:?}: {text}");
    }
    assert!(!pool.exists());
}

#[test]
fn e2e_a_start_that_takes_long_ends_at_a_signal() {
    let dir = TempDir::new("long-start");
    let pool = dir.pool();
    Server::start(&pool, SMALL).shutdown();
    // As if a killed process still had writes under way: that is waited for.
    let data = File::open(pool.join("data")).expect("the data");
    flock(&data, FlockOperation::LockExclusive).expect("it is had");
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = Server::spawn(&pool, SMALL, None);
        let begun = Instant::now();
        let lock = pool.join("lock");
        while std::fs::read_to_string(&lock).is_ok_and(|l| !l.contains(&server.pid().to_string())) {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it does not open"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        server.signal(signal);
        let status = server.wait(Duration::from_secs(10));
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
    }
    drop(data);
    Server::start(&pool, SMALL).shutdown();
}

/// Much more than DRAM, a hot set that is read again and again, a stop: the next start has the hot set in DRAM.
fn stopped_cleanly_starts_warm(name: &str, stop: impl Fn(Server)) {
    let _alone = alone();
    const KEYS: u64 = 120_000;
    const HOT: u64 = 1_000;
    const LEN: usize = 1_000;
    let dir = TempDir::new(name);
    let pool = dir.pool();
    let args = [SMALL, &["--durability", "async"]].concat();
    let server = Server::start(&pool, &args);
    let mut client = server.client();
    fill(&mut client, 0..KEYS, LEN);
    let mut rng = Rng::new(7, 7);
    let hot: Vec<u64> = (0..HOT).map(|_| rng.within(0..KEYS)).collect();
    for _ in 0..6 {
        for &key in &hot {
            get_right(&mut client, key, LEN);
        }
    }
    let before = client.info("tiers", "misses");
    hot.iter().for_each(|&key| get_right(&mut client, key, LEN));
    assert_eq!(
        client.info("tiers", "misses"),
        before,
        "hot before the stop"
    );
    let begun = Instant::now();
    stop(server);
    let stopped = begun.elapsed();
    let server = Server::start(&pool, &args);
    let mut client = server.client();
    let warm = wait_until_warm(&mut client);
    let reads = client.info("tiers", "device_reads");
    hot.iter().for_each(|&key| get_right(&mut client, key, LEN));
    let reads = client.info("tiers", "device_reads") - reads;
    println!(
        "{name}: stopped in {stopped:?}, first reply after {:?}, {warm} entries warmed, {reads} device reads for {HOT} hot keys",
        server.first_reply
    );
    assert!(
        server.first_reply < Duration::from_secs(1),
        "first reply after {:?}",
        server.first_reply
    );
    assert_eq!(reads, 0, "device reads for hot keys after a clean stop");
    assert_eq!(client.words("DBSIZE"), Reply::Int(KEYS as i64));
    for _ in 0..500 {
        get_right(&mut client, rng.within(0..KEYS), LEN);
    }
    server.shutdown();
}

/// Until nothing more is warmed; how many entries were.
fn wait_until_warm(client: &mut Client) -> u64 {
    let begun = Instant::now();
    let mut last = 0;
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let warmed = client.info("tiers", "warmed");
        if warmed > 0 && warmed == last {
            return warmed;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "not warm in 10 s: {warmed} entries"
        );
        last = warmed;
    }
}

#[test]
fn e2e_the_start_after_shutdown_is_warm() {
    stopped_cleanly_starts_warm("warm-shutdown", Server::shutdown);
}

#[test]
fn e2e_the_start_after_sigterm_is_warm() {
    stopped_cleanly_starts_warm("warm-sigterm", Server::terminate);
}

/// A read that a pipeline has started must go to the device at once, and not when the thread next wakes up.
#[test]
fn e2e_cold_reads_in_a_pipeline_are_no_slower_than_one_by_one() {
    let _alone = alone();
    const LEN: usize = 3_000;
    const READS: u64 = 1_500;
    let dir = TempDir::new("cold-pipeline");
    let server = Server::start(&dir.pool(), SMALL);
    let mut client = server.client();
    fill(&mut client, 0..60_000, LEN);
    // The first keys are long out of DRAM.
    let begun = Instant::now();
    (0..READS).for_each(|key| get_right(&mut client, key, LEN));
    let single = begun.elapsed();
    let names: Vec<String> = (READS..2 * READS).map(|k| format!("key:{k}")).collect();
    let begun = Instant::now();
    for batch in names.chunks(50) {
        let gets: Vec<Vec<&[u8]>> = batch
            .iter()
            .map(|n| vec![b"GET".as_slice(), n.as_bytes()])
            .collect();
        let replies = client.pipeline(&gets);
        assert!(
            replies
                .iter()
                .all(|r| matches!(r, Reply::Bulk(b) if b.len() == LEN))
        );
    }
    let piped = begun.elapsed();
    let misses = client.info("tiers", "misses");
    println!("{READS} cold reads one by one {single:?}, in a pipeline {piped:?}; {misses} misses");
    assert!(misses > READS, "the reads were to be cold: {misses} misses");
    assert!(
        piped < 2 * single,
        "{READS} cold reads: one by one {single:?}, in a pipeline {piped:?}"
    );
    server.shutdown();
}

/// With several threads, a commit needs each of them: one that sleeps must be woken, and not be waited for.
#[test]
fn e2e_a_lone_client_in_sync_does_not_wait_for_sleeping_threads() {
    let _alone = alone();
    const SETS: u32 = 60;
    let dir = TempDir::new("lone-sync");
    let server = Server::start(&dir.pool(), SMALL);
    let mut client = server.client();
    let mut times: Vec<Duration> = (0..SETS)
        .map(|i| {
            let begun = Instant::now();
            assert!(
                client
                    .call(&[
                        b"SET",
                        format!("lone:{i}").as_bytes(),
                        &value_of(i.into(), 1_000)
                    ])
                    .is_ok()
            );
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let p90 = times[times.len() * 9 / 10];
    println!(
        "lone SETs in sync: half within {:?}, nine in ten within {p90:?}",
        times[times.len() / 2]
    );
    assert!(
        p90 < Duration::from_millis(20),
        "nine in ten lone SETs within {p90:?}"
    );
    server.shutdown();
}

/// redis-cli sends all of a command before it reads: it must get to read why a value is refused.
#[test]
fn e2e_redis_cli_reads_that_a_value_is_too_long() {
    let _busy = busy();
    let dir = TempDir::new("redis-cli-long");
    let args = [SMALL, &["--durability", "async"]].concat();
    let server = Server::start(&dir.pool(), &args);
    let port = server.addr.port().to_string();
    let mut cli = Command::new("redis-cli")
        .args(["-p", &port, "-x", "set", "k"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("redis-cli: {e}; install redis-tools"));
    let mut stdin = cli.stdin.take().unwrap();
    let mib = vec![b'x'; 1 << 20];
    for _ in 0..600 {
        stdin.write_all(&mib).unwrap();
    }
    drop(stdin);
    let text = said(&cli.wait_with_output().unwrap());
    assert!(
        text.contains("ERR value is 629145600 bytes long; at most 67108864 are allowed"),
        "{text}"
    );
    server.shutdown();
}

#[test]
fn e2e_redis_tools_run_without_an_error() {
    let _busy = busy();
    let dir = TempDir::new("redis-tools");
    let args = [SMALL, &["--durability", "async"]].concat();
    let server = Server::start(&dir.pool(), &args);
    let port = server.addr.port().to_string();
    let tool = |name: &str, args: &[&str]| {
        let output = Command::new(name).args(["-p", &port]).args(args).output();
        let output = output.unwrap_or_else(|e| panic!("{name}: {e}; install redis-tools"));
        let text = said(&output);
        assert!(output.status.success(), "{name} {args:?}: {text}");
        for bad in ["ERR", "WRONG", "Error", "OOM"] {
            assert!(!text.contains(bad), "{name} {args:?}: {text}");
        }
        text
    };
    assert_eq!(tool("redis-cli", &["set", "greeting", "hello"]), "OK\n");
    assert_eq!(tool("redis-cli", &["get", "greeting"]), "hello\n");
    assert_eq!(tool("redis-cli", &["-3", "incr", "n"]), "1\n");
    assert!(tool("redis-cli", &["info", "tiers"]).contains("cap_bytes:67108864"));
    assert_eq!(
        tool("redis-cli", &["--scan", "--pattern", "greet*"]),
        "greeting\n"
    );
    let begun = Instant::now();
    let table = tool(
        "redis-benchmark",
        &[
            "-t",
            "get,set,incr,mset",
            "-P",
            "16",
            "-n",
            "100000",
            "-r",
            "100000",
            "-c",
            "50",
            "--csv",
        ],
    );
    println!("redis-benchmark took {:?}:\n{table}", begun.elapsed());
    for row in ["\"SET\"", "\"GET\"", "\"INCR\"", "\"MSET (10 keys)\""] {
        assert!(table.contains(row), "no {row}: {table}");
    }
    let keys = tool("redis-cli", &["dbsize"]);
    assert!(
        keys.trim().parse::<u64>().is_ok_and(|n| n > 50_000),
        "{keys}"
    );
    server.shutdown();
}
