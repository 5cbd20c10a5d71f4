//! The generator against a small server of its own, right and wrong.

use super::*;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// A server that keeps values in a map and answers GET and SET; `spoil` may change a value on its way out.
fn serve(spoil: fn(&[u8], Vec<u8>) -> Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let map = std::sync::Arc::new(std::sync::Mutex::new(HashMap::<Vec<u8>, Vec<u8>>::new()));
        for socket in listener.incoming() {
            let map = std::sync::Arc::clone(&map);
            std::thread::spawn(move || answer(socket.unwrap(), &map, spoil));
        }
    });
    addr
}

fn answer(
    mut socket: TcpStream,
    map: &std::sync::Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    spoil: fn(&[u8], Vec<u8>) -> Vec<u8>,
) {
    // Torn replies in small pieces would each wait for an acknowledgement otherwise.
    socket.set_nodelay(true).unwrap();
    let (mut buffer, mut chunk) = (Vec::new(), [0u8; 4096]);
    while let Ok(n @ 1..) = socket.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..n]);
        let mut out = Vec::new();
        while let Some((words, taken)) = request(&buffer) {
            buffer.drain(..taken);
            match &words[0][..] {
                b"GET" => match map.lock().unwrap().get(&words[1]).cloned() {
                    Some(value) => {
                        let value = spoil(&words[1], value);
                        out.extend(format!("${}\r\n", value.len()).bytes());
                        out.extend(value);
                        out.extend(b"\r\n");
                    }
                    None => out.extend(b"$-1\r\n"),
                },
                b"SET" => {
                    map.lock()
                        .unwrap()
                        .insert(words[1].clone(), words[2].clone());
                    out.extend(b"+OK\r\n");
                }
                _ => out.extend(b"-ERR unknown\r\n"),
            }
        }
        // In two pieces, so that replies arrive torn.
        let (a, b) = out.split_at(out.len() / 3);
        socket.write_all(a).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(50));
        socket.write_all(b).unwrap();
    }
}

fn request(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |from: usize| {
        let end = from + bytes[from..].windows(2).position(|w| w == b"\r\n")?;
        Some((
            std::str::from_utf8(&bytes[from + 1..end])
                .unwrap()
                .parse::<usize>()
                .unwrap(),
            end + 2,
        ))
    };
    if bytes.is_empty() {
        return None;
    }
    let (count, mut at) = line(0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        if at >= bytes.len() {
            return None;
        }
        let (length, start) = line(at)?;
        words.push(bytes.get(start..start + length)?.to_vec());
        at = start + length + 2;
        if at > bytes.len() {
            return None;
        }
    }
    Some((words, at))
}

fn load() -> Load {
    Load {
        connections: 3,
        in_flight: 7,
        choice: KeyChoice::InOrder { from: 0 },
        get_percent: 0,
        until: Until::Requests(500),
        cpu: None,
        ..Load::of(500, 100)
    }
}

#[test]
fn loads_and_reads_back() {
    let addr = serve(|_, value| value);
    let set = drive(addr, &load()).unwrap();
    assert_eq!((set.ops, set.sets, set.gets), (500, 500, 0));
    set.check(false).unwrap();
    let mixed = Load {
        get_percent: 95,
        choice: KeyChoice::Zipf { theta: 0.99 },
        until: Until::Requests(4000),
        ..load()
    };
    let mixed = drive(addr, &mixed).unwrap();
    mixed.check(false).unwrap();
    assert_eq!(mixed.ops, 4000);
    assert!((3700..3900).contains(&mixed.gets), "{}", mixed.gets);
    assert_eq!(
        mixed.get_latency_us.len() + mixed.set_latency_us.len(),
        4000
    );
    assert!(mixed.ops_per_s() > 0.0 && mixed.latency_us(0.5) <= mixed.latency_us(0.99));
}

#[test]
fn nils_and_wrong_values_are_counted() {
    let addr = serve(|_, value| value);
    let gets = Load {
        get_percent: 100,
        until: Until::Requests(100),
        ..load()
    };
    let empty = drive(addr, &gets).unwrap();
    assert_eq!(empty.nils, 100);
    assert!(empty.check(true).is_ok() && empty.check(false).is_err());

    let addr = serve(|key, mut value| {
        if key.ends_with(b"7") {
            value[0] ^= 1;
        }
        value
    });
    drive(addr, &load()).unwrap();
    let wrong = drive(addr, &gets).unwrap();
    assert_eq!(wrong.wrong, 10);
    assert!(wrong.check(true).is_err());
}

#[test]
fn time_and_rate_bound_a_run() {
    let addr = serve(|_, value| value);
    let paced = Load {
        until: Until::Seconds(0.5),
        pace: Pace::AtMost(1000),
        in_flight: 1,
        ..load()
    };
    let outcome = drive(addr, &paced).unwrap();
    assert!(
        (350..650).contains(&outcome.ops),
        "{} in half a second at 1000/s",
        outcome.ops
    );
}

/// A server that sleeps once makes every request late that fell due meanwhile, not only those it had.
#[test]
fn an_open_loop_counts_from_when_a_request_was_due() {
    let addr = serve(|key, value| {
        if key == b"key:000000000100" {
            std::thread::sleep(Duration::from_millis(200));
        }
        value
    });
    drive(addr, &load()).unwrap();
    let open = Load {
        connections: 1,
        in_flight: 1,
        get_percent: 100,
        pace: Pace::Open(1000),
        ..load()
    };
    let outcome = drive(addr, &open).unwrap();
    assert_eq!(outcome.ops, 500);
    // Of 500 requests 200 fell due in the pause: the one that waited in a closed loop would be the 99.8th percentile.
    assert!(
        outcome.latency_us(0.8) > 20_000.0,
        "{} us",
        outcome.latency_us(0.8)
    );
}

#[test]
fn bounds_are_refused_and_garbage_is_an_error() {
    let addr = serve(|_, value| value);
    for bad in [
        Load {
            connections: 0,
            ..load()
        },
        Load {
            in_flight: IN_FLIGHT_MAX + 1,
            ..load()
        },
        Load {
            value_bytes: 15,
            ..load()
        },
        Load {
            get_percent: 101,
            ..load()
        },
        Load { keys: 0, ..load() },
    ] {
        assert!(drive(addr, &bad).is_err());
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let _ = socket.unwrap().write_all(b"HTTP/1.1 400\r\n");
        }
    });
    assert!(
        drive(addr, &load())
            .unwrap_err()
            .to_string()
            .contains("no reply")
    );
}
