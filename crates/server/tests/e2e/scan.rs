//! SCAN and KEYS over data several times larger than DRAM: they find every key, others are served meanwhile, and the cap holds.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::resp::{Client, Reply};
use crate::support::{Server, TempDir, alone, value_of};

const KEYS: u64 = 100_000;
const CAP_BYTES: u64 = 32 << 20;
/// Nobody waits longer for a GET while all keys are gone through, on a machine that does other things, too.
const GET_MAX: Duration = Duration::from_secs(2);

fn key_of(at: u64) -> String {
    format!("key:{at:06}")
}

fn bulks(reply: Reply) -> Vec<Vec<u8>> {
    let Reply::Array(items) = reply else {
        panic!("an array, not {}", reply.shown());
    };
    let bytes = items.into_iter().map(|item| match item {
        Reply::Bulk(bytes) => bytes,
        other => panic!("a bulk string, not {}", other.shown()),
    });
    bytes.collect()
}

fn fill(client: &mut Client) {
    let value = value_of(7, 1_000);
    let keys: Vec<String> = (0..KEYS).map(key_of).collect();
    for keys in keys.chunks(100) {
        let commands: Vec<Vec<&[u8]>> = keys
            .iter()
            .map(|key| vec![b"SET".as_slice(), key.as_bytes(), &value])
            .collect();
        assert!(client.pipeline(&commands).iter().all(Reply::is_ok));
    }
}

fn scan_all(client: &mut Client) -> HashSet<Vec<u8>> {
    let mut found = HashSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let Reply::Array(mut both) = client.call(&[b"SCAN", &cursor, b"COUNT", b"1000"]) else {
            panic!("SCAN");
        };
        let keys = both.pop().expect("keys");
        let Some(Reply::Bulk(next)) = both.pop() else {
            panic!("a cursor");
        };
        found.extend(bulks(keys));
        if next == b"0" {
            return found;
        }
        cursor = next;
    }
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn e2e_scan_and_keys_go_through_more_than_dram_holds() {
    let _alone = alone();
    let dir = TempDir::new("scan");
    let cap = CAP_BYTES.to_string();
    let args = [
        "--dram",
        &cap,
        "--ssd",
        "512M",
        "--threads",
        "2",
        "--durability",
        "async",
    ];
    let server = Server::start(&dir.pool(), &args);
    let mut client = server.client();
    fill(&mut client);
    assert!(client.info("tiers", "ssd_live_bytes") > 2 * CAP_BYTES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = server.client();
            let mut at = 0;
            while !done.load(Ordering::Relaxed) {
                at = (at + 7_919) % KEYS;
                let began = Instant::now();
                let got = other.call(&[b"GET", key_of(at).as_bytes()]);
                assert!(matches!(got, Reply::Bulk(_)), "{}", got.shown());
                assert!(began.elapsed() < GET_MAX, "{:?}", began.elapsed());
                let used = other.info("tiers", "used_bytes");
                assert!(used <= CAP_BYTES, "{used}");
            }
        });
        // Also when something below fails, or the other thread would go on for ever.
        let _done = Done(&done);
        let found = scan_all(&mut client);
        let wanted: HashSet<Vec<u8>> = (0..KEYS).map(|at| key_of(at).into_bytes()).collect();
        assert!(found == wanted, "SCAN found {} of {KEYS}", found.len());
        let some = bulks(client.call(&[b"KEYS", b"key:05????"]));
        assert_eq!(some.len(), 10_000);
        // All of them do not fit into the share of connections: that is said, and nothing else breaks.
        let all = client.call(&[b"KEYS", b"*"]);
        let refused = all
            .error()
            .is_some_and(|e| e.starts_with("OOM ") && e.contains("SCAN"));
        assert!(refused, "{}", all.shown());
    });
    server.shutdown();
}
