//! Commands over real sockets: replies, pipelining, waiting and durability.

use std::time::{Duration, Instant};

use super::double::Settings;
use super::{Running, encode, plain};
use crate::ServerOptions;

#[test]
fn replies_and_errors() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    for (command, want) in [
        ("PING", "+PONG\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("GET a", "$1\r\n1\r\n"),
        ("GET b", "$-1\r\n"),
        ("SET a 2 NX", "$-1\r\n"),
        ("SET a 2 XX GET", "$1\r\n1\r\n"),
        ("SET a 2 NX XX", "-ERR syntax error\r\n"),
        (
            "SET a 2 EX 0",
            "-ERR invalid expire time in 'set' command\r\n",
        ),
        (
            "SET a 2 EX x",
            "-ERR value is not an integer or out of range\r\n",
        ),
        ("INCR a", ":3\r\n"),
        ("DECRBY a 5", ":-2\r\n"),
        (
            "DECRBY a -9223372036854775808",
            "-ERR decrement would overflow\r\n",
        ),
        ("SET s abc", "+OK\r\n"),
        ("INCR s", "-ERR value is not an integer or out of range\r\n"),
        ("STRLEN s", ":3\r\n"),
        ("GETSET s def", "$3\r\nabc\r\n"),
        ("GETDEL s", "$3\r\ndef\r\n"),
        ("GETDEL s", "$-1\r\n"),
        ("SETNX s 1", ":1\r\n"),
        ("SETNX s 1", ":0\r\n"),
        ("MSET x 1 y 2", "+OK\r\n"),
        (
            "MSET x 1 y",
            "-ERR wrong number of arguments for 'mset' command\r\n",
        ),
        ("MGET x none y", "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n"),
        (
            "MGET x damaged y",
            "*3\r\n$1\r\n1\r\n-ERR the value of this key is damaged\r\n$1\r\n2\r\n",
        ),
        ("EXISTS x x none", ":2\r\n"),
        ("DEL x none y", ":2\r\n"),
        ("TYPE a", "+string\r\n"),
        ("TYPE none", "+none\r\n"),
        ("TTL a", ":-1\r\n"),
        ("TTL none", ":-2\r\n"),
        ("EXPIRE a 100", ":1\r\n"),
        ("TTL a", ":100\r\n"),
        ("EXPIRE a 50 GT", ":0\r\n"),
        ("EXPIRE a 50 XX LT", ":1\r\n"),
        (
            "EXPIRE a 50 NX GT",
            "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n",
        ),
        ("PERSIST a", ":1\r\n"),
        ("EXPIRE a 50 XX LT", ":0\r\n"),
        ("EXPIRE a -1", ":1\r\n"),
        ("EXISTS a", ":0\r\n"),
        (
            "SETEX a 0 x",
            "-ERR invalid expire time in 'setex' command\r\n",
        ),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        (
            "ECHO",
            "-ERR wrong number of arguments for 'echo' command\r\n",
        ),
        (
            "FOO a b",
            "-ERR unknown command 'FOO', with args beginning with: 'a' 'b' \r\n",
        ),
        ("FLUSHALL SYNC", "+OK\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("SCAN x", "-ERR invalid cursor\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        (
            "CLIENT FOO",
            "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n",
        ),
        (
            "CONFIG GET port",
            &format!("*2\r\n$4\r\nport\r\n$5\r\n{}\r\n", server.addr.port()),
        ),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        ("RESET", "+RESET\r\n"),
        ("QUIT", "+OK\r\n"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(c.ask(&words), want, "{command}");
    }
    assert_eq!(c.rest(), "");
    server.stop();
}

#[test]
fn resp3_has_its_own_nulls_and_maps() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    assert!(
        c.ask(&["HELLO", "3", "SETNAME", "me"])
            .starts_with("%7\r\n$6\r\nserver\r\n")
    );
    assert_eq!(c.ask(&["GET", "none"]), "_\r\n");
    assert_eq!(c.ask(&["CLIENT", "GETNAME"]), "$2\r\nme\r\n");
    assert_eq!(
        c.ask(&["CONFIG", "GET", "databases"]),
        "%1\r\n$9\r\ndatabases\r\n$1\r\n1\r\n"
    );
    assert!(c.ask(&["INFO", "tiers"]).contains("# Tiers\r\nkeys:0\r\n"));
    assert!(c.ask(&["INFO"]).starts_with("="));
    server.stop();
}

/// Pipelined commands with random waits: replies stay in order, and nothing is left behind.
fn pipelined(settings: Settings, threads: usize) {
    let server = Running::start(settings, threads);
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let mut c = server.client();
            std::thread::spawn(move || {
                for round in 0..30 {
                    let mut sent = Vec::new();
                    let mut want = Vec::new();
                    for i in 0..50 {
                        let key = format!("k{n}:{i}");
                        let value = format!("v{n}:{i}:{round}").repeat(1 + i % 40);
                        sent.extend(encode(&[b"SET", key.as_bytes(), value.as_bytes()]));
                        want.extend(b"+OK\r\n");
                        sent.extend(encode(&[b"GET", key.as_bytes()]));
                        want.extend(format!("${}\r\n{value}\r\n", value.len()).bytes());
                        sent.extend(encode(&[b"MGET", key.as_bytes(), b"none", key.as_bytes()]));
                        let one = format!("${}\r\n{value}\r\n", value.len());
                        want.extend(format!("*3\r\n{one}$-1\r\n{one}").bytes());
                        sent.extend(encode(&[b"GETDEL", key.as_bytes()]));
                        want.extend(one.bytes());
                        sent.extend(encode(&[b"INCR", format!("n{n}").as_bytes()]));
                        want.extend(format!(":{}\r\n", round * 50 + i + 1).bytes());
                    }
                    // In odd parts, so that commands are cut anywhere.
                    for part in sent.chunks(777 + round) {
                        c.send(part);
                    }
                    let mut got = Vec::new();
                    while got.len() < want.len() {
                        got.extend(c.reply());
                    }
                    assert!(got == want, "round {round} of client {n}");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    server.stop();
}

#[test]
fn pipelining_without_waits() {
    pipelined(plain(), 1);
}

#[test]
fn pipelining_with_waits_on_two_threads() {
    pipelined(
        Settings {
            wait_per_mille: 300,
            ..plain()
        },
        2,
    );
}

#[test]
fn pipelining_in_sync_mode() {
    pipelined(
        Settings {
            wait_per_mille: 100,
            sync: true,
            ..plain()
        },
        2,
    );
}

#[test]
fn replies_that_never_become_durable_end_in_an_error() {
    let server = Running::start(
        Settings {
            sync: true,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    assert_eq!(c.ask(&["SET", "a", "1"]), "+OK\r\n");
    server.factory.fail();
    c.send(encode(&[b"GET", b"a"]));
    c.send(encode(&[b"SET", b"a", b"2"]));
    c.send(encode(&[b"SET", b"a", b"3"]));
    let rest = c.rest();
    assert_eq!(
        rest,
        "$1\r\n1\r\n-ERR the write was not made durable: the disk is gone\r\n"
    );
    // Reads of other connections go on.
    assert!(server.client().ask(&["EXISTS", "a"]).starts_with(':'));
    server.stop();
}

/// A command of several steps has a task for each: what an earlier one showed must hold its reply, too.
#[test]
fn what_is_shown_is_durable_before_it_is_sent() {
    let server = Running::start(
        Settings {
            wait_per_mille: 400,
            sync: true,
            ..plain()
        },
        2,
    );
    let (mut writer, mut reader) = (server.client(), server.client());
    let mut watcher = server.client();
    for at in 0..200 {
        let key = format!("key-{at}");
        assert_eq!(writer.ask(&["SET", &key, "old"]), "+OK\r\n");
    }
    // Its reply is held: that it was executed is seen elsewhere.
    let mut executed = 200;
    let mut await_set = || {
        executed += 1;
        let wanted = format!("cmdstat_set:calls={executed},");
        let until = Instant::now() + Duration::from_secs(20);
        while !watcher.ask(&["INFO", "commandstats"]).contains(&wanted) {
            assert!(Instant::now() < until, "the SET was not executed");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let commands: [&[&str]; 4] = [
        &["GET", "key-1"],
        &["MGET", "key-0", "key-1", "key-2", "key-3", "key-4", "key-5"],
        &["SCAN", "0", "COUNT", "500"],
        &["KEYS", "key-1?"],
    ];
    for command in commands {
        server.factory.stall(true);
        writer.send(encode(&[b"SET", b"key-1", b"new"]));
        await_set();
        let args: Vec<&[u8]> = command.iter().map(|a| a.as_bytes()).collect();
        reader.send(encode(&args));
        reader.stream.set_nonblocking(true).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        let early = reader.stream.peek(&mut [0; 64]);
        reader.stream.set_nonblocking(false).unwrap();
        assert!(
            early.is_err(),
            "{command:?} was answered with what a crash may take back"
        );
        server.factory.stall(false);
        assert!(!reader.reply().is_empty());
        assert_eq!(writer.reply(), b"+OK\r\n");
    }
    server.stop();
}

#[test]
fn scan_finds_every_key_once() {
    let server = Running::start(
        Settings {
            wait_per_mille: 200,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    for i in 0..500 {
        c.ask(&[
            "SET",
            &format!("{}:{i}", if i % 2 == 0 { "even" } else { "odd" }),
            "x",
        ]);
    }
    for (options, want) in [
        (vec![], 500),
        (vec!["COUNT", "170"], 500),
        (vec!["MATCH", "even:*", "COUNT", "30"], 250),
        (vec!["TYPE", "hash"], 0),
    ] {
        let (mut cursor, mut keys) = ("0".to_string(), Vec::new());
        loop {
            let mut command = vec!["SCAN", &cursor];
            command.extend(&options);
            let reply = c.ask(&command);
            let lines: Vec<&str> = reply.split("\r\n").collect();
            keys.extend(
                lines[4..]
                    .iter()
                    .filter(|l| l.contains(':'))
                    .map(|l| l.to_string()),
            );
            cursor = lines[2].to_string();
            if cursor == "0" {
                break;
            }
        }
        keys.sort();
        let found = keys.len();
        keys.dedup();
        assert_eq!((found, keys.len()), (want, want), "{options:?}");
    }
    server.stop();
}

#[test]
fn clients_are_listed_and_killed_across_threads() {
    let server = Running::start(plain(), 2);
    let (mut a, mut b) = (server.client(), server.client());
    assert_eq!(a.ask(&["CLIENT", "SETNAME", "first"]), "+OK\r\n");
    let id = b
        .ask(&["CLIENT", "ID"])
        .trim_matches(|c: char| !c.is_ascii_digit())
        .to_string();
    let list = a.ask(&["CLIENT", "LIST"]);
    assert!(
        list.contains("name=first") && list.contains(&format!("id={id} ")),
        "{list}"
    );
    assert_eq!(a.ask(&["CLIENT", "KILL", "ID", &id]), ":1\r\n");
    assert_eq!(b.rest(), "");
    assert_eq!(
        a.ask(&["CLIENT", "KILL", "1.2.3.4:5"]),
        "-ERR No such client\r\n"
    );
    server.stop();
}

#[test]
fn shutdown_stops_the_server() {
    let server = Running::start(plain(), 2);
    let mut c = server.client();
    assert_eq!(c.ask(&["SHUTDOWN", "BAD"]), "-ERR syntax error\r\n");
    c.send(encode(&[b"SHUTDOWN", b"NOSAVE"]));
    assert_eq!(c.rest(), "");
    server.ended();
}

#[test]
fn too_many_clients_are_told() {
    let server = Running::start_with(
        plain(),
        ServerOptions {
            max_clients: 2,
            ..Default::default()
        },
    );
    let (mut a, mut b) = (server.client(), server.client());
    a.ask(&["PING"]);
    b.ask(&["PING"]);
    assert_eq!(
        server.client().rest(),
        "-ERR max number of clients reached\r\n"
    );
    drop(b);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.client().ask(&["PING"]), "+PONG\r\n");
    server.stop();
}

#[test]
fn only_loopback_is_listened_on() {
    let options = ServerOptions {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Default::default()
    };
    let factory = std::sync::Arc::new(super::Shared(super::Factory::new(plain())));
    let refused = crate::Server::bind(&options, factory)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("loopback only"), "{refused}");
}

/// A transaction fails when somebody else changed what it watched: by a write, a deletion, or because its time was up.
#[test]
fn a_watched_key_that_others_change_stops_a_transaction() {
    for settings in [
        plain(),
        Settings {
            wait_per_mille: 300,
            ..plain()
        },
    ] {
        let server = Running::start(settings, 2);
        let (mut a, mut b) = (server.client(), server.client());
        for (change, stops) in [
            (&["SET", "k", "2"][..], true),
            (&["GET", "k"], false),
            (&["DEL", "k"], true),
            (&["DEL", "k"], false),
            (&["APPEND", "k", ""], true),
            (&["PEXPIRE", "k", "1"], true),
            (&["SET", "other", "1"], false),
            (&["RENAME", "other", "k"], true),
            (&["FLUSHALL"], true),
        ] {
            assert_eq!(a.ask(&["WATCH", "k"]), "+OK\r\n");
            b.ask(change);
            std::thread::sleep(Duration::from_millis(3));
            a.ask(&["MULTI"]);
            assert_eq!(a.ask(&["SET", "mine", "1"]), "+QUEUED\r\n");
            let want = if stops { "*-1\r\n" } else { "*1\r\n+OK\r\n" };
            assert_eq!(a.ask(&["EXEC"]), want, "{change:?}");
        }
        // A connection that dies within a transaction leaves nothing.
        a.ask(&["WATCH", "k", "l"]);
        a.ask(&["MULTI"]);
        a.ask(&["SET", "k", "1"]);
        drop((a, b));
        server.stop();
    }
}

/// What a transaction cannot do is said when it is queued or run, and nothing of it is done by halves.
#[test]
fn the_bounds_of_a_transaction() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    let long = "x".repeat(70_000);
    assert_eq!(c.ask(&["SET", "long", &long]), "+OK\r\n");
    c.ask(&["MULTI"]);
    for n in 0..256 {
        assert_eq!(
            c.ask(&["SET", &format!("l{}", n % 2), &long]),
            "+QUEUED\r\n"
        );
    }
    assert!(
        c.ask(&["SET", "k", &long])
            .starts_with("-ERR a transaction brings and makes at most 256 values above")
    );
    assert!(c.ask(&["EXEC"]).starts_with("-EXECABORT"));
    c.ask(&["MULTI"]);
    c.ask(&["SET", "k", "1"]);
    c.ask(&["GET", "long"]);
    c.ask(&["STRLEN", "long"]);
    c.ask(&["RENAME", "long", "moved"]);
    let want = format!("*4\r\n+OK\r\n$70000\r\n{long}\r\n:70000\r\n+OK\r\n");
    assert_eq!(c.ask(&["EXEC"]), want);
    assert_eq!(c.ask(&["STRLEN", "moved"]), ":70000\r\n");
    // Replies that are too long change nothing.
    let half = "y".repeat(60_000);
    c.ask(&["SET", "half", &half]);
    c.ask(&["MULTI"]);
    c.ask(&["SET", "k", "2"]);
    (0..100).for_each(|_| drop(c.ask(&["GET", "half"])));
    assert!(
        c.ask(&["EXEC"])
            .starts_with("-ERR the replies of the transaction are longer")
    );
    assert_eq!(c.ask(&["GET", "k"]), "$1\r\n1\r\n");
    c.ask(&["MULTI"]);
    assert_eq!(
        c.ask(&["KEYS", "*"]),
        "-ERR Command not allowed inside a transaction\r\n"
    );
    assert!(c.ask(&["EXEC"]).starts_with("-EXECABORT"));
    // What is refused while it comes in was not queued either.
    c.ask(&["MULTI"]);
    c.ask(&["SET", "k", "3"]);
    assert!(c.ask(&["SET", &long, "v"]).starts_with("-ERR argument 1"));
    assert!(c.ask(&["EXEC"]).starts_with("-EXECABORT"));
    assert_eq!(c.ask(&["GET", "k"]), "$1\r\n1\r\n");
    // Short commands make long values: only so many.
    c.ask(&["MULTI"]);
    for n in 0..200 {
        c.ask(&["SETRANGE", &format!("made:{n}"), "60000", "x"]);
    }
    let got = c.ask(&["EXEC"]);
    assert_eq!(
        got.matches("-ERR the transaction makes values").count(),
        131,
        "{got}"
    );
    assert_eq!(c.ask(&["STRLEN", "made:68"]), ":60001\r\n");
    assert_eq!(c.ask(&["EXISTS", "made:69"]), ":0\r\n");
    server.stop();
}

/// Before the password nothing is done, whatever the protocol; after it everything.
#[test]
fn nobody_gets_in_without_the_password() {
    use std::io::{Read, Write};
    let server = Running::start_with(
        plain(),
        ServerOptions {
            password: Some(crate::auth::Password::new(b"secret").unwrap()),
            memcached: Some(([127, 0, 0, 1], 0).into()),
            ..Default::default()
        },
    );
    let mut c = server.client();
    let needed = "-NOAUTH Authentication required.\r\n";
    for words in [
        &["GET", "k"][..],
        &["SET", "k", "v"],
        &["MULTI"],
        &["INFO"],
        &["PING"],
        &["SHUTDOWN"],
    ] {
        assert_eq!(c.ask(words), needed, "{words:?}");
    }
    assert!(
        c.ask(&["HELLO", "3"])
            .starts_with("-NOAUTH HELLO must be called")
    );
    for words in [
        &["AUTH", "wrong"][..],
        &["AUTH", "user", "secret"],
        &["HELLO", "3", "AUTH", "default", "x"],
    ] {
        assert!(c.ask(words).starts_with("-WRONGPASS"), "{words:?}");
    }
    assert_eq!(c.ask(&["GET", "k"]), needed);
    assert_eq!(c.ask(&["AUTH", "secret"]), "+OK\r\n");
    assert_eq!(c.ask(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(c.ask(&["RESET"]), "+RESET\r\n");
    assert_eq!(c.ask(&["GET", "k"]), needed);
    assert!(
        c.ask(&["HELLO", "2", "AUTH", "default", "secret"])
            .contains("server")
    );
    assert_eq!(c.ask(&["GET", "k"]), "$1\r\nv\r\n");
    let mut m = std::net::TcpStream::connect(server.memcached.unwrap()).unwrap();
    m.write_all(
        b"get k\r\nset a 0 0 11\r\nuser secreX\r\nset a 0 0 11\r\nuser secret\r\nget k\r\nquit\r\n",
    )
    .unwrap();
    let mut got = String::new();
    m.read_to_string(&mut got).unwrap();
    assert_eq!(
        got,
        "CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n"
    );
    drop(c);
    server.stop();
}

#[test]
fn idle_connections_and_long_values_have_their_bounds() {
    let server = Running::start_with(
        plain(),
        ServerOptions {
            idle_timeout: Some(Duration::from_secs(1)),
            max_value_bytes: 100_000,
            ..Default::default()
        },
    );
    let (mut idle, mut busy) = (server.client(), server.client());
    assert_eq!(idle.ask(&["PING"]), "+PONG\r\n");
    let refused = busy.ask(&["SET", "k", &"x".repeat(100_001)]);
    assert!(
        refused.starts_with("-ERR value is 100001 bytes long; at most 100000"),
        "{refused}"
    );
    assert_eq!(busy.ask(&["SET", "k", &"x".repeat(100_000)]), "+OK\r\n");
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(busy.ask(&["PING"]), "+PONG\r\n");
    }
    assert_eq!(idle.rest(), "", "closed by now");
    drop(busy);
    server.stop();
}
