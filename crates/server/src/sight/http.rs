//! The door of the metrics: answers `GET /metrics` over HTTP on an address of its own, one request a connection, in a thread
//! of its own.
//!
//! Promises: the server's threads have nothing to do with it; at most `AT_ONCE_MAX` requests at a time, each of bounded length
//! and time; where clients must say a password, so must whoever reads the metrics (any user, that password). Never: stays
//! behind when the server stops.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use mio::{Events, Interest, Poll, Token, Waker};

use super::metrics;
use crate::shared::Shared;

/// Requests at a time; more are told to come back.
const AT_ONCE_MAX: usize = 8;
/// The longest request, bytes.
const REQUEST_MAX_BYTES: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a request and its reply may take.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// How often a waiting request looks whether the server stops.
const LOOK_MS: u64 = 100;
const LISTENER: Token = Token(0);
const STOP: Token = Token(1);

/// A listener that does not serve yet.
pub struct MetricsDoor {
    listener: mio::net::TcpListener,
    poll: Poll,
}

impl MetricsDoor {
    /// Prepares to serve; whoever wakes the waker ends it, if the server is stopping.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(mut listener: mio::net::TcpListener) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), STOP)?;
        Ok((MetricsDoor { listener, poll }, waker))
    }

    /// Serves until the server stops.
    pub fn run(mut self, shared: &Arc<Shared>) {
        let mut events = Events::with_capacity(16);
        let serving = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while !shared.stopping.load(Ordering::Acquire) {
                if let Err(e) = self.poll.poll(&mut events, None)
                    && e.kind() != io::ErrorKind::Interrupted
                {
                    tracing::error!(error = %e, "the metrics are served no more");
                    return;
                }
                while let Ok((stream, _)) = self.listener.accept() {
                    let stream = TcpStream::from(stream);
                    let _ = stream.set_nonblocking(false);
                    if serving.load(Ordering::Acquire) >= AT_ONCE_MAX {
                        let _ = stream.set_write_timeout(Some(Duration::from_millis(LOOK_MS)));
                        let _ = (&stream).write_all(&reply(BUSY, "try again\n", true));
                        continue;
                    }
                    serving.fetch_add(1, Ordering::AcqRel);
                    let serving = &serving;
                    let body = move || {
                        // Who went away meanwhile misses nothing.
                        let _ = serve(stream, shared);
                        serving.fetch_sub(1, Ordering::AcqRel);
                    };
                    let thread = std::thread::Builder::new().name("metrics-reply".to_string());
                    if let Err(e) = thread.spawn_scoped(scope, body) {
                        serving.fetch_sub(1, Ordering::AcqRel);
                        tracing::warn!(error = %e, "no thread for a request of the metrics");
                    }
                }
            }
        });
    }
}

const OK: &str = "200 OK";
const BAD: &str = "400 Bad Request";
const WHO: &str = "401 Unauthorized";
const NOT_FOUND: &str = "404 Not Found";
const NOT_ALLOWED: &str = "405 Method Not Allowed";
const TOO_LONG: &str = "431 Request Header Fields Too Large";
const FAILED: &str = "500 Internal Server Error";
const BUSY: &str = "503 Service Unavailable";

fn serve(mut stream: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let until = Instant::now() + REQUEST_MAX;
    stream.set_read_timeout(Some(Duration::from_millis(LOOK_MS)))?;
    let mut request = Vec::new();
    let answer = loop {
        if let Some(answer) = answer(&request, shared) {
            break answer;
        }
        if request.len() >= REQUEST_MAX_BYTES {
            break reply(TOO_LONG, "the request is too long\n", true);
        }
        let mut more = [0; 1024];
        match stream.read(&mut more) {
            Ok(0) => return Ok(()),
            Ok(n) => request.extend_from_slice(&more[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if Instant::now() >= until || shared.stopping.load(Ordering::Acquire) {
            return Ok(());
        }
    };
    stream.set_write_timeout(Some(Duration::from_millis(LOOK_MS)))?;
    let mut left = answer.as_slice();
    while !left.is_empty() && Instant::now() < until && !shared.stopping.load(Ordering::Acquire) {
        match stream.write(left) {
            Ok(0) => return Ok(()),
            Ok(n) => left = &left[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn reply(status: &str, body: &str, with_body: bool) -> Vec<u8> {
    let kind = match status {
        OK => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let more = match status {
        WHO => "WWW-Authenticate: Basic realm=\"terrace\"\r\n",
        NOT_ALLOWED => "Allow: GET, HEAD\r\n",
        _ => "",
    };
    let len = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{more}Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The reply to a request, once it is complete.
fn answer(request: &[u8], shared: &Arc<Shared>) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(e) => return Some(reply(BAD, &format!("{e}\n"), true)),
    }
    let with_body = parsed.method != Some("HEAD");
    if !matches!(parsed.method, Some("GET" | "HEAD")) {
        return Some(reply(NOT_ALLOWED, "only GET and HEAD are served\n", true));
    }
    let said = parsed
        .headers
        .iter()
        .find(|h| h.name.eq_ignore_ascii_case("authorization"));
    if !is_trusted(shared, said.map(|h| h.value)) {
        let text = "the server has a password: say it (basic authentication, any user)\n";
        return Some(reply(WHO, text, with_body));
    }
    let path = parsed.path.unwrap_or("").split('?').next();
    if path != Some("/metrics") {
        return Some(reply(NOT_FOUND, "the metrics are at /metrics\n", with_body));
    }
    Some(match metrics::text(shared) {
        Ok(text) => reply(OK, &text, with_body),
        Err(_) => reply(FAILED, "the metrics could not be written\n", with_body),
    })
}

/// Whether there is no password, or the header says it.
fn is_trusted(shared: &Shared, authorization: Option<&[u8]>) -> bool {
    let Some(password) = &shared.password else {
        return true;
    };
    let said = authorization.and_then(|value| {
        let (scheme, coded) = value.split_at_checked(6)?;
        let engine = base64::engine::general_purpose::STANDARD;
        let plain = engine.decode(coded.trim_ascii()).ok()?;
        let at = plain.iter().position(|&b| b == b':')?;
        scheme
            .eq_ignore_ascii_case(b"basic ")
            .then(|| plain[at + 1..].to_vec())
    });
    said.is_some_and(|said| password.is(&said))
}
