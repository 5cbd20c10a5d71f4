//! Tests of LATENCY, SLOWLOG, MEMORY, CONFIG SET and of CLIENT's REPLY and PAUSE: what they tell is what was done.

use std::time::{Duration, Instant};

use super::double::Settings;
use super::{Running, encode, plain};
use crate::ServerOptions;

#[test]
fn slow_commands_are_kept_and_bounded() {
    let server = Running::start(plain(), 2);
    let mut c = server.client();
    c.ask(&["CLIENT", "SETNAME", "me"]);
    assert_eq!(
        c.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]),
        "+OK\r\n"
    );
    c.ask(&["SLOWLOG", "RESET"]);
    let long = "x".repeat(200);
    let mut many = vec!["MSET"];
    many.extend(std::iter::repeat_n(long.as_str(), 40));
    c.ask(&many);
    let kept = c.ask(&["SLOWLOG", "GET", "1"]);
    let short = format!("{}... (72 more bytes)", "x".repeat(128));
    assert!(
        kept.contains("$4\r\nMSET\r\n") && kept.contains(&short),
        "{kept}"
    );
    assert!(
        kept.contains("... (10 more arguments)") && kept.contains("$2\r\nme\r\n"),
        "{kept}"
    );
    assert!(kept.starts_with("*1\r\n*6\r\n:"));
    c.ask(&["AUTH", "default", "sesame"]);
    let kept = c.ask(&["SLOWLOG", "GET", "1"]);
    assert!(
        kept.contains("(redacted)") && !kept.contains("sesame"),
        "{kept}"
    );
    for _ in 0..200 {
        c.ask(&["PING"]);
    }
    assert_eq!(c.ask(&["SLOWLOG", "LEN"]), ":128\r\n");
    c.ask(&["CONFIG", "SET", "slowlog-max-len", "3"]);
    assert_eq!(c.ask(&["SLOWLOG", "LEN"]), ":3\r\n");
    let refused = c.ask(&["CONFIG", "SET", "slowlog-max-len", "99999999"]);
    assert!(refused.starts_with("-ERR CONFIG SET failed"), "{refused}");
    c.ask(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    c.ask(&["SLOWLOG", "RESET"]);
    c.ask(&["PING"]);
    assert_eq!(c.ask(&["SLOWLOG", "LEN"]), ":0\r\n");
    server.stop();
}

#[test]
fn the_latency_monitor_sees_what_waited() {
    let server = Running::start(plain(), 1);
    let (mut c, mut other) = (server.client(), server.client());
    assert!(c.ask(&["LATENCY", "DOCTOR"]).contains("is off"));
    c.ask(&["CONFIG", "SET", "latency-monitor-threshold", "5"]);
    assert!(
        c.ask(&["LATENCY", "DOCTOR"])
            .contains("No command took 5 ms")
    );
    c.ask(&["CLIENT", "PAUSE", "50"]);
    other.ask(&["SET", "a", "1"]);
    let latest = c.ask(&["LATENCY", "LATEST"]);
    assert!(
        latest.starts_with("*1\r\n*4\r\n$7\r\ncommand\r\n"),
        "{latest}"
    );
    let history = c.ask(&["LATENCY", "HISTORY", "COMMAND"]);
    assert!(history.starts_with("*1\r\n*2\r\n:"), "{history}");
    assert!(c.ask(&["LATENCY", "GRAPH", "command"]).contains(" ms ####"));
    assert!(c.ask(&["LATENCY", "DOCTOR"]).contains("command: 1 spikes"));
    let histogram = c.ask(&["LATENCY", "HISTOGRAM", "SET", "nonsense"]);
    assert!(
        histogram.starts_with("*2\r\n$3\r\nset\r\n*4\r\n$5\r\ncalls\r\n:1\r\n"),
        "{histogram}"
    );
    assert_eq!(c.ask(&["LATENCY", "RESET"]), ":1\r\n");
    server.stop();
}

#[test]
fn replies_can_be_switched_off_and_skipped() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    for line in [
        "SET a 1",
        "CLIENT REPLY OFF",
        "SET a 2",
        "GET a",
        "NONSENSE",
        "CLIENT REPLY SKIP",
        "GET a",
    ] {
        c.send(format!("{line}\r\n"));
    }
    c.send("CLIENT REPLY ON\r\nGET a\r\nCLIENT REPLY SKIP\r\nGET a\r\nPING\r\n");
    let big = "x".repeat(100_000);
    for want in ["+OK\r\n", "+OK\r\n", "$1\r\n2\r\n", "+PONG\r\n"] {
        assert_eq!(String::from_utf8_lossy(&c.reply()), want);
    }
    // Also of values in pieces.
    c.ask(&["SET", "big", &big]);
    c.send("CLIENT REPLY SKIP\r\nGET big\r\nCLIENT REPLY SKIP\r\nMGET big a big\r\nPING\r\n");
    assert_eq!(c.reply(), b"+PONG\r\n");
    server.stop();
}

/// A command that is refused for an argument that is too long is one like others there.
#[test]
fn a_refused_command_says_nothing_either_and_is_the_one_that_is_skipped() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    let refused = encode(&[b"GET", "x".repeat(100_000).as_bytes()]);
    c.send("CLIENT REPLY OFF\r\n");
    c.send(&refused);
    c.send("CLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\n");
    c.send(&refused);
    c.send("PING\r\n");
    assert_eq!(String::from_utf8_lossy(&c.reply()), "+OK\r\n");
    assert_eq!(String::from_utf8_lossy(&c.reply()), "+PONG\r\n");
    c.send(&refused);
    assert!(c.reply().starts_with(b"-ERR argument 1 of 'get'"));
    server.stop();
}

/// Whoever sends a command is not idle: in memcached's words, too, and where a command came in parts.
#[test]
fn each_command_ends_the_time_without_one() {
    use super::memcached::{ask, connect, start};
    let server = start(plain());
    let (mut m, mut r, mut long) = (connect(&server), server.client(), server.client());
    ask(&mut m, b"get k\r\n");
    long.ask(&["CLIENT", "SETNAME", "long"]);
    std::thread::sleep(Duration::from_millis(3_100));
    ask(&mut m, b"get k\r\n");
    assert_eq!(long.ask(&["SET", "k", &"x".repeat(100_000)]), "+OK\r\n");
    assert_eq!(r.ask(&["PING"]), "+PONG\r\n");
    for line in r
        .ask(&["CLIENT", "LIST"])
        .lines()
        .filter(|l| l.contains("id="))
    {
        let idle = line.split(" idle=").nth(1).unwrap().split(' ').next();
        let idle: u32 = idle.unwrap().parse().unwrap();
        assert!(idle <= 1, "{line}");
    }
    drop(m);
    server.stop();
}

/// Such a command was taken for one that waits, for ever: told that a durable write was not made durable, once the pool failed.
#[test]
fn a_durable_command_that_says_nothing_leaves_nothing_that_waits() {
    let server = Running::start(
        Settings {
            sync: true,
            ..plain()
        },
        1,
    );
    let (mut silent, mut other) = (server.client(), server.client());
    silent.send("CLIENT REPLY OFF\r\nSET a 1\r\n");
    let until = Instant::now() + Duration::from_secs(20);
    while other.ask(&["GET", "a"]) != "$1\r\n1\r\n" {
        assert!(Instant::now() < until, "the SET was not executed");
    }
    for _ in 0..3 {
        assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    }
    server.factory.fail();
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    silent.send("CLIENT REPLY ON\r\nPING\r\n");
    assert_eq!(silent.reply(), b"+OK\r\n");
    assert_eq!(silent.reply(), b"+PONG\r\n");
    server.stop();
}

#[test]
fn a_pause_holds_what_it_names_until_it_ends() {
    let server = Running::start(plain(), 2);
    let (mut c, mut other) = (server.client(), server.client());
    c.ask(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    assert_eq!(other.ask(&["GET", "a"]), "$-1\r\n");
    other.send("SET a 1\r\n");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(c.ask(&["GET", "a"]), "$-1\r\n");
    c.ask(&["CLIENT", "UNPAUSE"]);
    assert_eq!(other.reply(), b"+OK\r\n");
    let began = Instant::now();
    c.ask(&["CLIENT", "PAUSE", "100"]);
    assert_eq!(other.ask(&["GET", "a"]), "$1\r\n1\r\n");
    assert!(began.elapsed() >= Duration::from_millis(90));
    server.stop();
}

#[test]
fn a_pause_holds_memcacheds_clients_too() {
    use super::memcached::{ask, connect, start};
    let server = start(plain());
    let (mut c, mut other) = (server.client(), connect(&server));
    c.ask(&["CLIENT", "PAUSE", "100", "WRITE"]);
    let began = Instant::now();
    assert_eq!(ask(&mut other, b"get a\r\nmg a v\r\n"), "END\r\nEN\r\n");
    assert!(began.elapsed() < Duration::from_millis(90));
    assert_eq!(ask(&mut other, b"set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert!(began.elapsed() >= Duration::from_millis(90));
    let began = Instant::now();
    c.ask(&["CLIENT", "PAUSE", "100"]);
    assert_eq!(ask(&mut other, b"get a\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
    assert!(began.elapsed() >= Duration::from_millis(90));
    server.stop();
}

#[test]
fn what_a_key_takes_is_told() {
    let server = Running::start_with(plain(), ServerOptions::default());
    let mut c = server.client();
    c.ask(&["SET", "a", &"x".repeat(1000)]);
    c.ask(&["SET", "b", &"x".repeat(1_000_000)]);
    let bytes = |text: String| -> u64 { text.trim_start_matches(':').trim().parse().unwrap() };
    let (a, b) = (
        bytes(c.ask(&["MEMORY", "USAGE", "a"])),
        bytes(c.ask(&["MEMORY", "USAGE", "b"])),
    );
    assert!((1_024..1_100).contains(&a), "{a}");
    assert!((1_000_500..1_002_000).contains(&b), "{b}");
    c.ask(&["MULTI"]);
    c.ask(&["MEMORY", "USAGE", "a"]);
    assert_eq!(c.ask(&["EXEC"]), format!("*1\r\n:{a}\r\n"));
    assert!(c.ask(&["MEMORY", "STATS"]).contains("keys.count\r\n:2\r\n"));
    assert!(c.ask(&["MEMORY", "DOCTOR"]).contains("of the cap"));
    server.stop();
}

/// As in Redis, clients are shown in the order in which they are asked for, and as often.
#[test]
fn clients_are_listed_as_they_are_asked_for() {
    let budget_bytes = 2 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    let id = |c: &mut super::Talk| {
        let reply = c.ask(&["CLIENT", "ID"]);
        reply[1..].trim().to_string()
    };
    let (mut other, me) = (server.client(), id(&mut c));
    let other_id = id(&mut other);
    let ids = |reply: String| -> Vec<String> {
        let shown = reply.lines().filter_map(|l| l.strip_prefix("id="));
        shown
            .map(|l| l.split(' ').next().unwrap().to_string())
            .collect()
    };
    let asked = [
        "CLIENT", "LIST", "ID", &other_id, "999", &me, "-1", &other_id,
    ];
    let want = [&other_id, &me, &other_id].map(String::clone);
    assert_eq!(ids(c.ask(&asked)), want);
    assert_eq!(
        ids(c.ask(&["CLIENT", "LIST"])),
        [&me, &other_id].map(String::clone)
    );
    assert_eq!(
        c.ask(&["CLIENT", "LIST", "ID", &me, "x"]),
        "-ERR Invalid client ID\r\n"
    );
    assert_eq!(c.ask(&["CLIENT", "LIST", "ID"]), "-ERR syntax error\r\n");
    // More than any reply may take is granted, or refused; also in a transaction.
    let mut many = vec!["CLIENT", "LIST", "ID"];
    many.extend(std::iter::repeat_n(me.as_str(), 900));
    assert_eq!(ids(c.ask(&many)).len(), 900);
    c.ask(&["MULTI"]);
    c.ask(&many);
    assert_eq!(ids(c.ask(&["EXEC"])).len(), 900);
    many.extend(std::iter::repeat_n(me.as_str(), 20_000));
    let refused = c.ask(&many);
    assert!(
        refused.starts_with("-OOM"),
        "{}",
        &refused[..refused.len().min(90)]
    );
    let peak = (server.factory.granted_peak).load(std::sync::atomic::Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    drop((c, other));
    server.stop();
}
