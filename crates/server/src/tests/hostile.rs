//! Clients that mean no good, or mean nothing: garbage, half commands, silence, readers that never read. The others
//! must not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::double::Settings;
use super::{Running, Talk, encode, plain};

#[test]
fn protocol_errors_end_the_connection() {
    let server = Running::start(plain(), 1);
    for (sent, want) in [
        (
            "*x\r\n",
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (
            "*2\r\n$3\r\nGET\r\n:1\r\n",
            "-ERR Protocol error: expected '$', got ':'\r\n",
        ),
        (
            "*1\r\n$9999999999\r\n",
            "-ERR Protocol error: invalid bulk length\r\n",
        ),
        (
            "SET a \"b\r\n",
            "-ERR Protocol error: unbalanced quotes in request\r\n",
        ),
        (
            "PING\r\n*1\r\n$-5\r\n",
            "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n",
        ),
    ] {
        let mut c = server.client();
        c.send(sent);
        assert_eq!(c.rest(), want);
    }
    let mut c = server.client();
    c.send("x".repeat(70_000));
    assert_eq!(c.rest(), "-ERR Protocol error: too big inline request\r\n");
    // Within a command that is being assembled.
    let mut c = server.client();
    c.send(format!(
        "*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$100000\r\n{}\r\n:7\r\n",
        "x".repeat(100_000)
    ));
    assert_eq!(c.rest(), "-ERR Protocol error: expected '$', got ':'\r\n");
    server.stop();
}

fn with_password() -> Running {
    let options = crate::ServerOptions {
        password: Some(crate::auth::Password::new(b"secret").unwrap()),
        ..Default::default()
    };
    Running::start_with(plain(), options)
}

#[test]
fn who_has_not_said_the_password_gets_no_buffers_for_long_commands() {
    let server = with_password();
    let args = "-ERR Protocol error: unauthenticated multibulk length\r\n";
    let arg = "-ERR Protocol error: unauthenticated bulk length\r\n";
    for (sent, want) in [
        ("*11\r\n", args),
        ("*1048576\r\n$4\r\nMSET\r\n", args),
        ("*2\r\n$4\r\nAUTH\r\n$16385\r\n", arg),
        ("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n", arg),
        ("*1\r\n$16385\r\n", arg),
    ] {
        let mut c = server.client();
        c.send(sent);
        assert_eq!(c.rest(), want, "{sent}");
    }
    // As much as is allowed; and within a command that comes in parts.
    let mut c = server.client();
    let most = "x".repeat(16_384);
    let needed = "-NOAUTH Authentication required.\r\n";
    let ten = ["MGET", &most, "3", "4", "5", "6", "7", "8", "9", "10"];
    assert_eq!(c.ask(&ten), needed);
    c.send(format!(
        "*4\r\n$4\r\nMGET\r\n$16384\r\n{most}\r\n$1\r\nk\r\n"
    ));
    std::thread::sleep(Duration::from_millis(50));
    c.send("$16385\r\n");
    assert_eq!(c.rest(), arg);
    server.stop();
}

/// What stands behind the password is judged as what one sends who has said it.
#[test]
fn long_commands_may_follow_the_password_at_once() {
    let server = with_password();
    let long = "x".repeat(20_000);
    let auth = encode(&[b"AUTH", b"secret"]);
    let many = encode(&[&[&b"MSET"[..]][..], &[&b"k"[..]; 12]].concat());
    let set = encode(&[b"SET", b"long", long.as_bytes()]);
    let quoted = b"AUTH \"secret\"\r\n";
    for first in [&auth[..], b"AUTH secret\r\n", quoted] {
        let mut c = server.client();
        c.send([first, &many, &set, &many].concat());
        for _ in 0..4 {
            assert_eq!(String::from_utf8_lossy(&c.reply()), "+OK\r\n");
        }
        assert_eq!(c.ask(&["RESET"]), "+RESET\r\n");
        c.send("*11\r\n");
        assert_eq!(
            c.rest(),
            "-ERR Protocol error: unauthenticated multibulk length\r\n"
        );
    }
    server.stop();
}

/// A client that reads nothing before it has sent all gets to read what was wrong, and not that it was reset.
#[test]
fn who_sends_on_after_a_protocol_error_can_read_it() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    c.send("PING\r\n*1\r\n$9999999999\r\n");
    for _ in 0..64 {
        c.send(vec![b'x'; 1 << 20]);
    }
    assert_eq!(
        c.rest(),
        "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n"
    );
    server.stop();
}

#[test]
fn a_value_far_too_long_is_passed_over_and_the_reply_says_what_is_allowed() {
    let budget_bytes = 4 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    let mib = vec![b'x'; 1 << 20];
    c.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", 600 << 20));
    (0..600).for_each(|_| c.send(&mib));
    c.send("\r\n");
    assert_eq!(
        String::from_utf8(c.reply()).unwrap(),
        "-ERR value is 629145600 bytes long; at most 67108864 are allowed; split it over several keys\r\n"
    );
    assert_eq!(c.ask(&["GET", "k"]), "$-1\r\n");
    let peak = (server.factory.granted_peak).load(std::sync::atomic::Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    server.stop();
}

#[test]
fn who_stays_after_a_protocol_error_is_closed_in_the_end() {
    let server = Running::start(plain(), 1);
    let mut stays = server.client();
    stays.send("*x\r\n");
    let mut reply = [0; 47];
    stays.stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"-ERR Protocol error: invalid multibulk length\r\n");
    let mut c = server.client();
    assert!(
        c.ask(&["INFO", "clients"])
            .contains("connected_clients:2\r\n")
    );
    let until = Instant::now() + 2 * Duration::from_millis(crate::limits::LINGER_MAX_MS);
    while !(c.ask(&["INFO", "clients"])).contains("connected_clients:1\r\n") {
        assert!(Instant::now() < until, "it is still connected");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.stop();
}

#[test]
fn half_a_command_is_waited_for_and_half_a_connection_answered() {
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    for byte in encode(&[b"SET", b"slow", b"value"]) {
        c.send([byte]);
    }
    assert_eq!(c.reply(), b"+OK\r\n");
    c.send("*2\r\n$3\r\nGET\r\n$4\r\nslow\r\n*2\r\n$3\r\nGE");
    c.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(c.rest(), "$5\r\nvalue\r\n");
    server.stop();
}

#[test]
fn two_thousand_silent_connections_cost_nearly_nothing() {
    let server = Running::start(plain(), 2);
    let before = rss_bytes();
    let silent: Vec<TcpStream> = (0..2_000)
        .map(|_| TcpStream::connect(server.addr).unwrap())
        .collect();
    let mut c = server.client();
    let info = c.ask(&["INFO", "clients"]);
    assert!(
        info.contains("connected_clients:2001\r\n") && info.contains("buffer_bytes:0\r\n"),
        "{info}"
    );
    let each = rss_bytes().saturating_sub(before) / 2_000;
    // The structures are under 400 bytes; the rest is what this process holds for its own end and the allocator's slack.
    assert!(each < 1_500, "{each} bytes a connection");
    drop(silent);
    server.stop();
}

#[test]
fn a_connection_is_small() {
    let conn = size_of::<crate::conn::Conn<super::double::Double>>();
    let client = size_of::<crate::session::Client>() + 2 * size_of::<usize>();
    // The registry's tree holds key and pointer, and is at worst half full.
    let registry = 2 * 2 * size_of::<u64>();
    assert!(
        conn + client + registry < 400,
        "{conn} + {client} + {registry}"
    );
}

fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Asks for much and reads nothing, until the server takes no more.
fn never_reads(addr: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let asked = encode(&[b"GET", b"v"]).repeat(1_000);
    for _ in 0..200 {
        if stream.write_all(&asked).is_err() {
            break;
        }
    }
    stream
}

#[test]
fn readers_that_never_read_are_bounded_and_harm_nobody() {
    let budget_bytes = 4 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    c.ask(&["SET", "v", &"x".repeat(30_000)]);
    let addr = server.addr;
    let readers: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || never_reads(addr)))
        .collect();
    let readers: Vec<TcpStream> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    let begun = Instant::now();
    assert_eq!(c.ask(&["PING"]), "+PONG\r\n");
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    let peak = server
        .factory
        .granted_peak
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    drop(readers);
    server.stop();
}

#[test]
fn when_buffers_run_out_the_stuck_are_cut_off() {
    let budget_bytes = 2 << 20;
    let server = Running::start(
        Settings {
            budget_bytes,
            ..plain()
        },
        1,
    );
    let mut c = server.client();
    c.ask(&["SET", "v", &"x".repeat(60_000)]);
    let addr = server.addr;
    let readers: Vec<_> = (0..30)
        .map(|_| std::thread::spawn(move || never_reads(addr)))
        .collect();
    let readers: Vec<TcpStream> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    // Within a few seconds the server serves again, because it has cut some of them off.
    assert_eq!(c.ask(&["PING"]), "+PONG\r\n");
    let info = c.ask(&["INFO", "stats"]);
    let cut: u64 = info
        .split("cut_off_connections:")
        .nth(1)
        .unwrap()
        .split('\r')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(cut > 0, "{info}");
    let peak = server
        .factory
        .granted_peak
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(peak <= budget_bytes, "{peak}");
    drop(readers);
    server.stop();
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let server = Running::start(plain(), 1);
    let mut good = server.client();
    let mut random = 88_172_645_463_325_252u64;
    for _ in 0..100 {
        let mut garbage = Vec::new();
        for _ in 0..500 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            garbage.push(random as u8);
        }
        let mut bad = Talk::new(server.addr);
        let _ = bad.stream.write_all(&garbage);
        assert_eq!(good.ask(&["PING"]), "+PONG\r\n");
    }
    server.stop();
}

/// For measuring by hand: `cargo test --release -p terrace-server -- --ignored --nocapture serve_the_double`, then
/// `redis-benchmark -p 7777 -t get,set -P 16`.
#[test]
#[ignore = "serves for half a minute, to be measured from outside"]
fn serve_the_double() {
    let factory = super::Factory::new(plain());
    let options = crate::ServerOptions {
        listen: ([127, 0, 0, 1], 7777).into(),
        ..Default::default()
    };
    let server =
        crate::Server::bind(&options, std::sync::Arc::new(super::Shared(factory))).unwrap();
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run());
    std::thread::sleep(Duration::from_secs(30));
    stopper.stop();
    thread.join().unwrap().unwrap();
}
