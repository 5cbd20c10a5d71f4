//! Tests of what the server tells about itself: the sections of INFO and the door of the metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{Running, Talk, plain};
use crate::{Server, ServerError, ServerOptions};

fn with_metrics(password: Option<&[u8]>) -> (Running, SocketAddr) {
    let options = ServerOptions {
        metrics: Some(([127, 0, 0, 1], 0).into()),
        memcached: Some(([127, 0, 0, 1], 0).into()),
        threads: 2,
        password: password.map(|p| crate::auth::Password::new(p).unwrap()),
        ..Default::default()
    };
    let server = Running::start_with(plain(), options);
    let addr = server.metrics.unwrap();
    (server, addr)
}

fn http(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    // A request that is refused before it was read to its end is answered by a reset behind the reply.
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn sections_are_those_that_are_asked_for() {
    let server = Running::start(plain(), 2);
    let mut c = server.client();
    let titles = |text: String| -> Vec<String> {
        let titles = text.lines().filter_map(|l| l.strip_prefix("# "));
        titles.map(str::to_string).collect()
    };
    let usual = [
        "Server",
        "Clients",
        "Memory",
        "Persistence",
        "Stats",
        "Replication",
        "CPU",
        "Errorstats",
        "Cluster",
        "Tiers",
        "Keyspace",
    ];
    assert_eq!(titles(c.ask(&["INFO"])), usual);
    assert_eq!(titles(c.ask(&["INFO", "DEFAULT"])), usual);
    assert_eq!(
        titles(c.ask(&["INFO", "everything"])).len(),
        usual.len() + 2
    );
    assert_eq!(titles(c.ask(&["INFO", "all"])).len(), usual.len() + 2);
    assert_eq!(
        titles(c.ask(&["INFO", "cpu", "commandstats", "none"])),
        ["CPU", "Commandstats"]
    );
    assert!(c.ask(&["INFO", "replication"]).contains("role:master\r\n"));
    server.stop();
}

#[test]
fn commands_are_counted_by_name() {
    let (server, _) = with_metrics(None);
    let mut c = server.client();
    for _ in 0..10 {
        c.ask(&["SET", "a", "x"]);
    }
    c.ask(&["INCR", "a"]);
    c.ask(&["INCR"]);
    c.ask(&["NONSENSE"]);
    c.ask(&["MULTI"]);
    c.ask(&["GET", "a"]);
    c.ask(&["INCR", "a"]);
    c.ask(&["STRLEN", "a"]);
    c.ask(&["GET", "a"]);
    c.ask(&["EXEC"]);
    // What is only queued is not counted.
    c.ask(&["MULTI"]);
    c.ask(&["GET", "a"]);
    c.ask(&["DISCARD"]);
    let mut m = Talk::new(server.memcached.unwrap());
    m.send("get a\r\nincr a 1\r\n");
    while !m.stream_text().contains("CLIENT_ERROR") {}
    let stats = c.ask(&["INFO", "commandstats"]);
    let line = |name: &str| {
        let line = stats.lines().find(|l| l.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {stats}"))
            .to_string()
    };
    assert!(line("cmdstat_set:").contains("calls=10,"));
    assert!(line("cmdstat_set:").ends_with("rejected_calls=0,failed_calls=0"));
    assert!(line("cmdstat_incr:").contains("calls=2,"));
    assert!(line("cmdstat_incr:").ends_with("rejected_calls=1,failed_calls=2"));
    assert!(line("cmdstat_get:").contains("calls=2,"));
    assert!(line("cmdstat_strlen:").contains("calls=1,"));
    assert!(line("cmdstat_exec:").contains("calls=1,"));
    assert!(line("cmdstat_memcached|get:").contains("calls=1,"));
    assert!(line("cmdstat_memcached|incr:").ends_with("failed_calls=1"));
    let errors = c.ask(&["INFO", "errorstats"]);
    assert!(errors.contains("errorstat_ERR:count=4\r\n"), "{errors}");
    assert!(
        errors.contains("errorstat_CLIENT_ERROR:count=1\r\n"),
        "{errors}"
    );
    let times = c.ask(&["INFO", "latencystats"]);
    assert!(
        times.contains("latency_percentiles_usec_set:p50="),
        "{times}"
    );
    c.ask(&["CONFIG", "RESETSTAT"]);
    let stats = c.ask(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_set"), "{stats}");
    assert!(!c.ask(&["INFO", "errorstats"]).contains("errorstat"));
    server.stop();
}

#[test]
fn metrics_are_served_and_nothing_else() {
    let (server, addr) = with_metrics(None);
    server.client().ask(&["SET", "a", "x"]);
    let text = http(addr, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("\nterrace_keys 1\n"), "{text}");
    assert!(
        text.contains("terrace_command_seconds_count{protocol=\"redis\",command=\"set\"} 1\n"),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"));
    let head = http(addr, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_string(), "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n".to_string(), "405"),
        ("nonsense\r\n\r\n".to_string(), "400"),
        (format!("GET /{} HTTP/1.1\r\n", "x".repeat(8 << 10)), "431"),
    ] {
        let text = http(addr, &request);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
    }
    server.stop();
}

#[test]
fn readers_of_metrics_are_bounded_and_do_not_keep_the_server() {
    let (server, addr) = with_metrics(None);
    let idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let until = Instant::now() + Duration::from_secs(10);
    // Each holds a place until its time is up.
    while !http(addr, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 ") {
        assert!(Instant::now() < until);
    }
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(3));
    drop(idle);
}

#[test]
fn the_password_is_asked_for_here_too() {
    let (server, addr) = with_metrics(Some(b"secret"));
    let plain = http(addr, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 401 ") && plain.contains("\r\nWWW-Authenticate: Basic "));
    // x:secret, x:other, and what is no code at all
    for (said, status) in [
        ("eDpzZWNyZXQ=", "200"),
        ("eDpvdGhlcg==", "401"),
        ("!", "401"),
    ] {
        let text = http(
            addr,
            &format!("GET /metrics HTTP/1.1\r\nAuthorization: Basic {said}\r\n\r\n"),
        );
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status} ")),
            "{said}: {text}"
        );
    }
    server.stop();
    let options = ServerOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        metrics: Some(([0, 0, 0, 0], 0).into()),
        ..Default::default()
    };
    let factory = std::sync::Arc::new(super::double::Shared(super::double::Factory::new(
        super::plain(),
    )));
    let refused = Server::bind(&options, factory);
    assert!(matches!(refused, Err(ServerError::MetricsNotLoopback(_))));
}
