//! Bytes from clients: a whole server on loopback sockets takes them. What must hold whatever they are: the server lives, the
//! connection ends when its client ends, replies are replies, and they are the same however the bytes were cut into
//! pieces on their way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use terrace_pool::{Durability, Options, Pool};
use terrace_server::{PoolFactory, Server, ServerOptions};

/// A reply takes no longer.
const REPLY_MAX: Duration = Duration::from_secs(20);
/// What one input is answered by at most: a GET of a long value again and again.
const REPLIES_MAX_BYTES: u64 = 64 << 20;
/// Sent this often before different kinds of replies count: what expires meanwhile is no bug.
const TRIES: usize = 4;

/// Words of the Redis protocol.
pub const RESP_WORDS: &[&[u8]] = &[
    b"\r\n",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"$1\r\n",
    b"$3\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"SET",
    b"GET",
    b"MGET",
    b"MSET",
    b"MSETNX",
    b"APPEND",
    b"SETRANGE",
    b"GETRANGE",
    b"SETBIT",
    b"GETBIT",
    b"BITCOUNT",
    b"BITPOS",
    b"BITOP",
    b"BITFIELD",
    b"INCRBYFLOAT",
    b"INCR",
    b"EXPIRE",
    b"PERSIST",
    b"GETEX",
    b"GETDEL",
    b"SCAN",
    b"KEYS",
    b"RENAME",
    b"COPY",
    b"DUMP",
    b"RESTORE",
    b"OBJECT",
    b"MULTI",
    b"EXEC",
    b"DISCARD",
    b"WATCH",
    b"HELLO",
    b"RESET",
    b"CLIENT",
    b"COMMAND",
    b"CONFIG",
    b"INFO",
    b"LCS",
    b"NX",
    b"XX",
    b"KEEPTTL",
    b"PX",
    b"AND",
    b"NOT",
    b"u8",
    b"i64",
    b"OVERFLOW",
    b"9223372036854775807",
    b"-1",
    b"4294967296",
    b"65536",
    b"65537",
    b"\"\\x00\"",
    b"nan",
    b"1e308",
];

/// Words of memcached's.
pub const MEMCACHED_WORDS: &[&[u8]] = &[
    b"\r\n",
    b"set ",
    b"add ",
    b"replace ",
    b"append ",
    b"prepend ",
    b"cas ",
    b"get ",
    b"gets ",
    b"gat ",
    b"gats ",
    b"delete ",
    b"incr ",
    b"decr ",
    b"touch ",
    b"stats",
    b"flush_all",
    b"version",
    b"verbosity",
    b"mg ",
    b"ms ",
    b"md ",
    b"ma ",
    b"mn\r\n",
    b"me ",
    b" noreply",
    b" 0 0 1\r\na\r\n",
    b" S1\r\na\r\n",
    b" b ",
    b" k v t f c q O1 ",
    b" N60 ",
    b" T0 ",
    b" C0 ",
    b" I ",
    b" MP ",
    b"18446744073709551615",
    b"-1",
    b"2592001",
];

/// A server and where it listens.
struct Bed {
    resp: SocketAddr,
    memcached: SocketAddr,
    ended: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

fn start() -> Bed {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        dir: dir.path().join("pool"),
        dram_bytes: 32 << 20,
        ssd_bytes: 128 << 20,
        durability: Durability::Async,
        flush_interval: Duration::from_secs(60),
        threads: 1,
        ..Options::default()
    };
    let pool = Pool::open_or_create(options, &mut |_, _, _| ()).expect("a pool");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = ServerOptions {
        listen: any,
        memcached: Some(any),
        ..ServerOptions::default()
    };
    let server = Server::bind(&options, Arc::new(PoolFactory(pool.clone()))).expect("a server");
    let ended = Arc::new(AtomicBool::new(false));
    let bed = Bed {
        resp: server.local_addr(),
        memcached: server.memcached_addr().expect("its address"),
        ended: ended.clone(),
        _dir: dir,
    };
    std::thread::spawn(move || {
        let well = server.run().is_ok() && pool.close().is_ok();
        ended.store(well, Ordering::SeqCst);
    });
    bed
}

/// Does something with the server; one that was told to stop (there are ways to spell SHUTDOWN) is started anew.
fn with_server(f: impl Fn(&Bed) -> Result<(), String>) {
    static BED: OnceLock<Mutex<Bed>> = OnceLock::new();
    let bed = BED.get_or_init(|| Mutex::new(start()));
    let mut bed = bed.lock().unwrap_or_else(PoisonError::into_inner);
    let Err(why) = f(&bed) else { return };
    std::thread::sleep(Duration::from_millis(500));
    let well = bed.ended.load(Ordering::SeqCst);
    *bed = start();
    assert!(well, "{why}");
}

fn connect(addr: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(addr).map_err(|e| format!("no connection: {e}"))?;
    let set = stream
        .set_nodelay(true)
        .and(stream.set_read_timeout(Some(REPLY_MAX)))
        .and(stream.set_write_timeout(Some(REPLY_MAX)));
    set.map_err(|e| format!("a socket without its settings: {e}"))?;
    Ok(stream)
}

/// Empties the server.
fn forget(bed: &Bed) -> Result<(), String> {
    let mut stream = connect(bed.resp)?;
    let told = |e| format!("the server does not answer: {e}");
    stream.write_all(b"FLUSHALL\r\n").map_err(told)?;
    let mut reply = [0; 5];
    stream.read_exact(&mut reply).map_err(told)?;
    match &reply == b"+OK\r\n" {
        true => Ok(()),
        false => Err(format!("FLUSHALL is answered {reply:?}")),
    }
}

/// Sends pieces, ends, and reads to the end.
fn exchange<'a>(
    addr: SocketAddr,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<u8>, String> {
    let mut stream = connect(addr)?;
    for piece in pieces {
        // The server may have ended the connection, and say why.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut got = Vec::new();
    match stream.take(REPLIES_MAX_BYTES).read_to_end(&mut got) {
        Ok(_) => Ok(got),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(got),
        Err(e) => Err(format!("the connection does not end: {e}")),
    }
}

/// Sends the bytes whole and in pieces, and compares what is left of the replies by `essence`.
fn compare(
    bed: &Bed,
    addr: SocketAddr,
    data: &[u8],
    essence: fn(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<(), String> {
    // The first byte says how long pieces are.
    let (len, data) = data.split_first().unwrap_or((&1, &[]));
    let len = 1 + usize::from(*len) % 64;
    let mut seen = (Vec::new(), Vec::new());
    for _ in 0..TRIES {
        forget(bed)?;
        seen.0 = essence(&exchange(addr, std::iter::once(data))?)?;
        forget(bed)?;
        seen.1 = essence(&exchange(addr, data.chunks(len))?)?;
        if seen.0 == seen.1 {
            return Ok(());
        }
    }
    Err(format!(
        "replies differ with how bytes are cut: {:?} and {:?}",
        String::from_utf8_lossy(&seen.0),
        String::from_utf8_lossy(&seen.1)
    ))
}

/// Bytes of a client of Redis's protocol.
pub fn resp(data: &[u8]) {
    with_server(|bed| compare(bed, bed.resp, data, kinds));
}

/// Bytes of a client of memcached's.
pub fn memcached(data: &[u8]) {
    with_server(|bed| compare(bed, bed.memcached, data, without_digits));
}

/// The kind of each reply: values, times and numbers may differ, a value may be there or not.
fn kinds(mut replies: &[u8]) -> Result<Vec<u8>, String> {
    let mut kinds = Vec::new();
    while !replies.is_empty() {
        let (kind, behind) = (replies[0], after(replies, 0)?);
        kinds.push(match kind {
            b'_' | b'$' | b'=' => b'$',
            b'*' | b'~' | b'%' => b'*',
            other => other,
        });
        replies = behind;
    }
    Ok(kinds)
}

/// What follows a whole reply.
fn after(replies: &[u8], depth: usize) -> Result<&[u8], String> {
    let bad = |what: &str| {
        let shown = String::from_utf8_lossy(&replies[..replies.len().min(80)]);
        format!("{what}: {shown:?}")
    };
    let end = replies.windows(2).position(|w| w == b"\r\n");
    let end = end.ok_or_else(|| bad("half a reply"))?;
    let mut rest = &replies[end + 2..];
    let number = || {
        let text = std::str::from_utf8(&replies[1..end]).ok();
        let n = text.and_then(|t| t.parse::<i64>().ok());
        n.ok_or_else(|| bad("a length that is none"))
    };
    let many = match replies[0] {
        b'+' | b'-' | b'_' | b'#' | b',' | b'(' => 0,
        b':' => number().map(|_| 0)?,
        b'$' | b'=' => {
            let Ok(len) = usize::try_from(number()?) else {
                return Ok(rest);
            };
            let is_whole = rest.len() >= len + 2 && rest[len..].starts_with(b"\r\n");
            return match is_whole {
                true => Ok(&rest[len + 2..]),
                false => Err(bad("a value that is cut")),
            };
        }
        b'*' | b'~' | b'>' => number()?.max(0),
        b'%' => 2 * number()?,
        _ => return Err(bad("no reply")),
    };
    if depth > 16 {
        return Err(bad("replies in replies in replies"));
    }
    for _ in 0..many {
        rest = after(rest, depth + 1)?;
    }
    Ok(rest)
}

/// Times, tokens and counters differ, and what `stats` counts with them.
fn without_digits(replies: &[u8]) -> Result<Vec<u8>, String> {
    let text = replies.iter().copied();
    Ok(text.filter(|b| !b.is_ascii_digit() && *b != b'.').collect())
}
