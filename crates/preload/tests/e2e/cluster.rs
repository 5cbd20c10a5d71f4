//! Redis Cluster under `terrace run`, which is how memory grows past one machine: three masters filled over their caps, each with a replica, resharded
//! while they are written to, one master killed, and started again as the replica of the one that took its place.
//!
//! Judged by the cluster's own checks, and by every key: what was acknowledged and had reached a replica (WAIT) is there, as it was written.

use crate::support::cluster::{Client, Node, Reply, cli};
use crate::support::{judge, value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CAP_MIB: u64 = 24;
const MASTERS: usize = 3;
const KEYS: u64 = 90_000;
const VALUE_BYTES: usize = 1024;
/// Keys that are written again and again meanwhile.
const BUSY_KEYS: u64 = 5000;
/// Values of a key that is written again differ by this.
const ROUND: u64 = 1_000_000;
/// Nodes tell one another what changed within this.
const GOES_ROUND: Duration = Duration::from_secs(30);
const SLOTS_MOVED: &str = "900";

fn key(n: u64) -> String {
    format!("key:{n}")
}

/// The cluster's own checks, once what changed has got round.
fn check(node: &Node) {
    let address = format!("127.0.0.1:{}", node.port);
    let good = |said: &str| {
        said.contains("[OK] All nodes agree about slots configuration")
            && said.contains("[OK] All 16384 slots covered")
            && !said.contains("[ERR]")
    };
    let since = Instant::now();
    loop {
        let (well, said) = cli(&["--cluster", "check", &address]);
        if well && good(&said) {
            return;
        }
        assert!(since.elapsed() < GOES_ROUND, "{said}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Set when dropped, so that a thread ends also where an assertion failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn cluster(dir: &std::path::Path) -> Vec<Node> {
    let nodes: Vec<Node> = (0..2 * MASTERS)
        .map(|n| Node::start(dir, n, CAP_MIB))
        .collect();
    let addresses: Vec<String> = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port))
        .collect();
    let mut args = vec!["--cluster", "create"];
    args.extend(addresses.iter().map(String::as_str));
    args.extend(["--cluster-replicas", "1", "--cluster-yes"]);
    let (well, said) = cli(&args);
    assert!(well, "{said}");
    for node in &nodes {
        node.await_word(&["cluster", "info"], "cluster_state:ok");
        if node.ask(&["role"]).starts_with("slave") {
            node.await_word(&["info", "replication"], "master_link_status:up");
        }
    }
    nodes
}

/// Writes until told to stop; answers the newest round that is kept for sure of each key, and the newest that was begun.
fn write_on(ports: &[u16], stop: &AtomicBool, rounds: &AtomicU64) -> HashMap<u64, (u64, u64)> {
    let mut client = Client::new(ports);
    let mut written = HashMap::new();
    for at in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (n, round) = (at % BUSY_KEYS * (KEYS / BUSY_KEYS), at / BUSY_KEYS + 1);
        let kept = client.set(&key(n), &value(n + round * ROUND, VALUE_BYTES));
        let entry = written.entry(n).or_insert((0, 0));
        entry.1 = round;
        if kept {
            entry.0 = round;
        }
        rounds.store(at, Ordering::Relaxed);
    }
    written
}

fn reshard(nodes: &[Node]) {
    let (from, to) = (
        nodes[0].ask(&["cluster", "myid"]),
        nodes[1].ask(&["cluster", "myid"]),
    );
    let at = format!("127.0.0.1:{}", nodes[0].port);
    let (well, said) = cli(&[
        "--cluster",
        "reshard",
        &at,
        "--cluster-from",
        &from,
        "--cluster-to",
        &to,
        "--cluster-slots",
        SLOTS_MOVED,
        "--cluster-pipeline",
        "100",
        "--cluster-yes",
    ]);
    assert!(well, "{said}");
    let slots = nodes[1].ask(&["cluster", "nodes"]);
    let own = slots.lines().find(|line| line.contains("myself"));
    assert!(own.is_some_and(|line| line.contains("0-899")), "{slots}");
}

fn command(n: u64, name: &str, more: &[u8]) -> (String, Vec<Vec<u8>>) {
    let mut args = vec![name.into(), key(n).into_bytes()];
    if !more.is_empty() {
        args.push(more.to_vec());
    }
    (key(n), args)
}

fn fill(client: &mut Client) {
    let commands = (0..KEYS).map(|n| command(n, "SET", &value(n, VALUE_BYTES)));
    client.many(commands, |n, reply| {
        assert_eq!(reply, Reply::Ok("OK".into()), "key {n}");
    });
    client.settle();
}

/// Every key has its value, or one that was written after the last that is kept for sure.
fn all_is_there(client: &mut Client, written: &HashMap<u64, (u64, u64)>) {
    let commands = (0..KEYS).map(|n| command(n, "GET", b""));
    client.many(commands, |n, reply| {
        let Reply::Value(Some(got)) = reply else {
            panic!("key {n} is lost: {reply:?}")
        };
        let n = n as u64;
        let (kept, begun) = written.get(&n).copied().unwrap_or((0, 0));
        let is = (kept..=begun).any(|round| got == value(n + round * ROUND, VALUE_BYTES));
        assert!(
            is,
            "key {n}, kept in round {kept} of {begun}, has another value"
        );
    });
}

#[test]
fn e2e_a_cluster_is_resharded_while_written_to_and_loses_a_master() {
    let dir = tempfile::Builder::new()
        .tempdir_in("/var/tmp")
        .expect("a directory");
    let since = Instant::now();
    let mut nodes = cluster(dir.path());
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let mut client = Client::new(&ports);
    client.learn(&nodes[0].ask(&["cluster", "nodes"]));
    fill(&mut client);
    let step = |what: &str| println!("{what} after {:.1} s", since.elapsed().as_secs_f64());
    step("filled");
    for node in &nodes {
        let said = node.ask(&["info", "memory"]);
        let used = said
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        let used: u64 = used
            .and_then(|n| n.trim().parse().ok())
            .expect("its memory");
        assert!(used > CAP_MIB << 20, "{used} bytes are within the cap");
    }
    check(&nodes[0]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&ports, &stop, &rounds));
        let stopping = Stop(&stop);
        reshard(&nodes);
        check(&nodes[0]);
        step("resharded");
        // The one that took slots in, so that what moved must have reached its replica.
        nodes[1].kill();
        nodes[0].await_word(&["cluster", "nodes"], "master,fail ");
        nodes[0].await_word(&["cluster", "info"], "cluster_state:ok");
        step("taken over");
        let so_far = rounds.load(Ordering::Relaxed);
        while rounds.load(Ordering::Relaxed) < so_far + 60 && !writer.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(stopping);
        writer.join().expect("it writes")
    });
    assert!(written.values().any(|(kept, _)| *kept > 0));
    check(&nodes[0]);
    let mut client = Client::new(&ports);
    client.learn(&nodes[0].ask(&["cluster", "nodes"]));
    all_is_there(&mut client, &written);
    step("all there");
    // It comes back without data and gets all of it: the master that took its place forks for that.
    nodes[1].start_again();
    nodes[1].await_word(&["info", "replication"], "master_link_status:up");
    nodes[0].await_word(&["cluster", "info"], "cluster_state:ok");
    let own = nodes[1].ask(&["cluster", "myid"]);
    assert!(nodes[1].ask(&["role"]).starts_with("slave"), "{own}");
    check(&nodes[1]);
    let keys = |node: &Node| node.ask(&["dbsize"]).parse::<u64>().expect("a number");
    let sums = nodes.iter().map(keys).sum::<u64>();
    assert_eq!(sums, 2 * KEYS, "masters and replicas have all keys each");
    step("started again");
    for node in &nodes {
        judge("a node", node.group.as_ref());
    }
}
