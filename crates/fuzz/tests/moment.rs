//! A moment of fuzzing, without knowing what is covered: each target takes its whole corpus, and then mutations of it for
//! FUZZ_SECONDS (2). An input that fails is printed, and kept beside the tests' binaries; put it into the corpus.
//! TERRACE_SEED repeats a run.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use terrace_fuzz::{Target, target};
use terrace_media::sim::Rng;

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name);
    let mut paths: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 5, "{} has a corpus", target.name);
    paths
        .iter()
        .map(|p| fs::read(p).expect("an input"))
        .collect()
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is {text}, which is no number")),
    )
}

/// Changes an input a little, in one to six ways.
fn mutate(rng: &mut Rng, input: &mut Vec<u8>, target: &Target, corpus: &[Vec<u8>]) {
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(input.len() + 1);
        let end = (at + 1 + rng.below(16)).min(input.len());
        let word: Vec<u8> = match rng.below(8) {
            0 if at < input.len() => {
                input[at] ^= 1 << rng.below(8);
                continue;
            }
            1 if at < input.len() => {
                input[at] = [0, 1, 0x7f, 0x80, 0xff, b'\r', b'\n', b'0'][rng.below(8)];
                continue;
            }
            2 => {
                input.drain(at..end);
                continue;
            }
            3 => input[at..end].to_vec(),
            4 | 5 if !target.words.is_empty() => {
                target.words[rng.below(target.words.len())].to_vec()
            }
            6 => {
                let other = &corpus[rng.below(corpus.len())];
                let from = rng.below(other.len() + 1);
                other[from..(from + 1 + rng.below(64)).min(other.len())].to_vec()
            }
            _ => (0..1 + rng.below(8)).map(|_| rng.bits() as u8).collect(),
        };
        input.splice(at..at, word);
    }
    input.truncate(target.input_max_bytes);
}

fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let test = std::env::current_exe().expect("the path of the test");
        let path = test.with_file_name(format!("fuzz-{}-failed", target.name));
        let _ = fs::write(&path, input);
        eprintln!(
            "{} fails on this input, kept as {}:",
            target.name,
            path.display()
        );
        eprintln!("{}", input.escape_ascii());
        resume_unwind(panic);
    }
}

fn for_a_moment(name: &str) {
    let target = target(name).expect("a target");
    let corpus = corpus(target);
    corpus.iter().for_each(|input| run(target, input));
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64)
    };
    let seed = setting("TERRACE_SEED").unwrap_or_else(now);
    let most = Duration::from_secs(setting("FUZZ_SECONDS").unwrap_or(2));
    let (begun, mut rng, mut runs) = (Instant::now(), Rng::new(seed), 0);
    while begun.elapsed() < most {
        let mut input = corpus[rng.below(corpus.len())].clone();
        mutate(&mut rng, &mut input, target, &corpus);
        run(target, &input);
        runs += 1;
    }
    println!(
        "{name}: {} kept inputs, {runs} mutated ones, seed {seed}",
        corpus.len()
    );
}

#[test]
fn fuzz_resp_for_a_moment() {
    for_a_moment("resp");
}

#[test]
fn fuzz_memcached_for_a_moment() {
    for_a_moment("memcached");
}

#[test]
fn fuzz_lzf_for_a_moment() {
    for_a_moment("lzf");
}

#[test]
fn fuzz_dump_for_a_moment() {
    for_a_moment("dump");
}

#[test]
fn fuzz_entry_for_a_moment() {
    for_a_moment("entry");
}

#[test]
fn fuzz_segment_for_a_moment() {
    for_a_moment("segment");
}

#[test]
fn fuzz_recovery_for_a_moment() {
    for_a_moment("recovery");
}
