//! Requests in HTTP that a web page, or a service that fetches what others name, was made to send here: none of the commands in
//! them is executed.

use std::time::Duration;

use super::{Running, Talk, encode, plain};
use crate::ServerOptions;

/// Sends it all, waits for the end of the connection, and answers what came.
fn sent(c: &mut Talk, request: &str) -> String {
    let soon = Some(Duration::from_secs(5));
    c.stream.set_read_timeout(soon).unwrap();
    c.send(request);
    let mut all = Vec::new();
    match std::io::Read::read_to_end(&mut c.stream, &mut all) {
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => panic!("{request}: it stays open"),
        // Closed with something unread, it may be reset.
        _ => String::from_utf8(all).unwrap(),
    }
}

#[test]
fn a_request_in_http_executes_no_command_of_redis() {
    let server = Running::start(plain(), 1);
    let body = "SET pwned 1\r\n";
    let framed = String::from_utf8(encode(&[b"SET", b"pwned", b"1"])).unwrap();
    for head in [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nContent-Length: 13\r\n\r\n",
        "post /it HTTP/1.1\r\n\r\n",
        "PUT / HTTP/1.1\r\nHOST: 127.0.0.1:6380\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: 127.0.0.1:6380\r\n\r\n",
        // Quoted words take another way.
        "POST /\"it\" HTTP/1.1\r\n\r\n",
        // A transaction that is queued, a client that wants no replies, and Redis's own form.
        "MULTI\r\nPING\r\nHost: x\r\nEXEC\r\n",
        "CLIENT REPLY OFF\r\nPOST / HTTP/1.1\r\n",
        "*1\r\n$4\r\nPost\r\n",
    ] {
        for body in [body, &framed] {
            sent(&mut server.client(), &format!("{head}{body}"));
        }
    }
    let mut c = server.client();
    assert_eq!(c.ask(&["EXISTS", "pwned"]), ":0\r\n");
    // What only looks like it is an unknown command, as before.
    assert!(c.ask(&["POSTS"]).starts_with("-ERR unknown command"));
    assert!(c.ask(&["Host"]).starts_with("-ERR unknown command"));
    assert_eq!(c.ask(&["ECHO", "POST"]), "$4\r\nPOST\r\n");
    server.stop();
}

#[test]
fn a_request_in_http_executes_no_command_of_memcached() {
    let options = ServerOptions {
        memcached: Some(([127, 0, 0, 1], 0).into()),
        ..Default::default()
    };
    let server = Running::start_with(plain(), options);
    let memcached = server.memcached.unwrap();
    for head in ["POST / HTTP/1.1", "GET /x HTTP/1.0", "OPTIONS * HTTP/1.1"] {
        let request = format!("{head}\r\nHost: x\r\n\r\nset pwned 0 0 1\r\n1\r\n");
        assert_eq!(sent(&mut Talk::new(memcached), &request), "");
    }
    assert_eq!(server.client().ask(&["EXISTS", "pwned"]), ":0\r\n");
    // The last word alone does not make a command that is known one of HTTP.
    let mut c = Talk::new(memcached);
    c.send("get HTTP/1.1\r\nGET HTTP\r\nquit\r\n");
    assert_eq!(c.rest(), "END\r\nERROR\r\n");
    server.stop();
}
