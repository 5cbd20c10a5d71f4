//! A walk through every command: what the documentation lists, what COMMAND lists and what is executed is the same list, and a plain
//! call of each is answered as redis-server answers it.

use std::collections::BTreeSet;

use super::differential::redis;
use super::{Running, Talk, encode, plain};
use crate::table::COMMANDS;

/// A plain call of each command, in an order in which most find something. Behind `~` only the kind of the reply is compared: it tells
/// the time, the process or the build.
#[rustfmt::skip]
const CALLS: &[&str] = &[
    "PING", "ECHO x", "SELECT 0", "AUTH default x", "~HELLO 2", "CLIENT GETNAME", "~COMMAND", "CONFIG GET appendonly", "~INFO server",
    "~TIME", "SLOWLOG RESET", "SLOWLOG LEN", "LATENCY LATEST", "MEMORY USAGE none", "FLUSHALL", "SET a abc", "RANDOMKEY", "SCAN 0",
    "KEYS *", "DBSIZE", "GET a", "APPEND a def", "STRLEN a", "GETRANGE a 1 2", "SUBSTR a 1 2", "SETRANGE a 0 x", "GETSET a foobar",
    "GETEX a", "BITCOUNT a", "BITPOS a 1", "BITFIELD a GET u8 0", "BITFIELD_RO a GET u8 0", "GETBIT a 1", "SETBIT a 7 1",
    "BITOP NOT d a", "SETNX b foobaz", "SETEX s 100 x", "PSETEX p 100000 x", "MSET m 1 n 2", "MSETNX m 1 o 2", "MGET a m none",
    "LCS a b", "INCR n", "INCRBY n 5", "DECR n", "DECRBY n 2", "INCRBYFLOAT n 1.5", "TYPE a", "OBJECT ENCODING b", "DUMP b",
    "EXISTS a none", "TOUCH a none", "EXPIRE a 100", "TTL a", "~PTTL a", "EXPIREAT a 9999999999", "EXPIRETIME a",
    "PEXPIRE a 100000", "PEXPIREAT a 9999999999999", "PEXPIRETIME a", "PERSIST a", "COPY a c", "RENAME c e", "RENAMENX e f",
    "RESTORE r 0", "GET r", "GETDEL f", "DEL d", "UNLINK s p", "WATCH a", "UNWATCH", "MULTI", "GET a", "EXEC", "MULTI", "DISCARD",
    "FLUSHDB", "DBSIZE", "RESET", "QUIT", "SHUTDOWN NOSAVE",
];

fn name_of(call: &str) -> String {
    let name = call.trim_start_matches('~').split(' ').next();
    name.unwrap_or_default().to_lowercase()
}

/// The words of a call; what RESTORE takes is no text.
fn words(call: &str) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = call
        .trim_start_matches('~')
        .split(' ')
        .map(|word| word.as_bytes().to_vec())
        .collect();
    if words[0] == b"RESTORE" {
        words.push(terrace_kv::strings::dump::dump(b"a value that was dumped"));
    }
    words
}

#[test]
fn the_lists_of_commands_are_one() {
    let executed: BTreeSet<String> = COMMANDS.iter().map(|c| c.name.to_string()).collect();
    let documentation = include_str!("../../../../docs/redis.md");
    let table = documentation
        .split_once("## Commands")
        .and_then(|(_, rest)| rest.split_once("\n\n")?.1.split_once("\n\n"));
    let rows = table.expect("a table of commands").0.lines().skip(2);
    let documented: BTreeSet<String> = rows
        .filter_map(|row| row.split('|').nth(2))
        .flat_map(|names| names.split_whitespace().map(str::to_lowercase))
        .collect();
    assert_eq!(documented, executed, "docs/redis.md");
    let called: BTreeSet<String> = CALLS.iter().map(|call| name_of(call)).collect();
    assert_eq!(called, executed, "the calls of this test");
    let server = Running::start(plain(), 1);
    let mut c = server.client();
    let reply = c.ask(&["COMMAND", "LIST"]);
    let told: BTreeSet<String> = reply
        .lines()
        .filter(|line| !line.starts_with(['*', '$']) && !line.contains('|'))
        .map(str::to_lowercase)
        .collect();
    assert_eq!(told, executed, "COMMAND LIST");
    assert_eq!(
        c.ask(&["COMMAND", "COUNT"]),
        format!(":{}\r\n", executed.len())
    );
    server.stop();
}

#[test]
fn each_command_answers_as_redis_does() {
    let Some(redis) = redis() else {
        println!("skipped: redis-server could not be started (apt-get install redis-server)");
        return;
    };
    let server = Running::start(plain(), 1);
    let mut talks = [server.addr, ([127, 0, 0, 1], redis.port).into()].map(Talk::new);
    let mut differences = Vec::new();
    for call in CALLS {
        let args = words(call);
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let name = name_of(call);
        let [ours, theirs] = talks.each_mut().map(|talk| {
            talk.send(encode(&args));
            match &*name {
                // It ends without a word.
                "shutdown" => talk.rest().into_bytes(),
                _ => talk.reply(),
            }
        });
        let same = match call.starts_with('~') {
            true => ours[0] == theirs[0],
            false => ours == theirs,
        };
        if !same {
            let shown =
                |reply: &[u8]| String::from_utf8_lossy(&reply[..reply.len().min(200)]).into_owned();
            differences.push(format!(
                "{call}\n  ours   {:?}\n  theirs {:?}",
                shown(&ours),
                shown(&theirs)
            ));
        }
        if name == "quit" {
            talks = [server.addr, ([127, 0, 0, 1], redis.port).into()].map(Talk::new);
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    server.ended();
}
