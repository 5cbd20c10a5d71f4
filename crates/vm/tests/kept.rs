//! Named regions end to end: what was synced is there again, at the same addresses, whatever ended the program.

mod common;

use common::{Random, read_into};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use terrace_vm::kept::{NamedRegion, RegionError, Regions};
use terrace_vm::opp::HeapError;
use terrace_vm::store::{ObjectError, StoreOptions};
use terrace_vm::{PAGE_BYTES, SystemError, VmError, Way};

const CAP: u64 = 32 << 20;
const SSD: u64 = 256 << 20;
const WAYS: [Way; 2] = [Way::InThread, Way::Handlers(2)];

/// Waits while another test of this process has a pool at the place of this one: one that a child process made does not know of it.
fn open(dir: &Path, way: Way) -> Regions {
    let options = StoreOptions::kept(dir, CAP, SSD);
    let until = Instant::now() + Duration::from_secs(100);
    loop {
        match Regions::open(&options, way) {
            Err(e) if taken(&e) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20))
            }
            opened => return opened.unwrap(),
        }
    }
}

fn taken(e: &RegionError) -> bool {
    matches!(
        e,
        RegionError::Heap(HeapError::Memory(VmError::System(
            SystemError::Taken { .. }
        )))
    )
}

fn sync(region: &NamedRegion, range: Range<usize>) -> Result<(), RegionError> {
    region.sync(std::slice::from_ref(&range))
}

/// What the kernel was refused when the region was too short is not held against the program later.
#[test]
fn a_page_that_was_asked_for_too_early_is_there_once_the_region_has_grown() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_asks_too_early", "--ignored"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "run by a_page_that_was_asked_for_too_early_is_there_once_the_region_has_grown"]
fn child_asks_too_early() {
    // As in a program that does not handle it: Rust's tests do.
    // SAFETY: before anything of this process is a region.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let dir = tempfile::tempdir().unwrap();
    let regions = open(dir.path(), Way::Handlers(1));
    let region = regions.region("early", PAGE_BYTES as u64, 1 << 20).unwrap();
    let beyond = region.base().wrapping_add(PAGE_BYTES);
    assert_eq!(read_into(beyond), libc::EFAULT);
    region.grow(2 * PAGE_BYTES).unwrap();
    region.word(PAGE_BYTES / 8).store(7, Relaxed);
    assert_eq!(region.word(PAGE_BYTES / 8).load(Relaxed), 7);
    assert_eq!(read_into(beyond), 0);
}

/// A list in a region: each node is a page apart, its first word the address of the next, its second a number.
struct List<'a>(&'a NamedRegion);

impl List<'_> {
    fn node(&self, nth: usize) -> *mut [usize; 2] {
        // SAFETY: within the region.
        unsafe { self.0.base().add(nth * PAGE_BYTES).cast() }
    }

    /// Nodes 0 to `len`, each with `number`.
    fn write(&self, len: usize, number: usize) {
        for nth in 0..len {
            let next = match nth + 1 < len {
                true => self.node(nth + 1) as usize,
                false => 0,
            };
            // SAFETY: a node of the region, which is this thread's.
            unsafe { self.node(nth).write_volatile([next, number]) };
        }
        self.0.set_root(Some(0)).unwrap();
    }

    /// Follows the pointers from the root.
    fn read(&self) -> Vec<usize> {
        let mut numbers = Vec::new();
        let mut at = self
            .0
            .root()
            .map_or(0, |root| self.0.base() as usize + root);
        while at != 0 {
            let from = self.0.base() as usize;
            assert!(
                (from..from + self.0.bytes()).contains(&at),
                "a pointer out of the region: {at:#x}"
            );
            // SAFETY: within the region, as just seen.
            let [next, number] = unsafe { (at as *const [usize; 2]).read_volatile() };
            numbers.push(number);
            at = next;
        }
        numbers
    }
}

#[test]
fn what_was_synced_is_there_again_with_its_pointers() {
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let regions = open(dir.path(), way);
        let region = regions.region("list", 4 << 20, 8 << 20).unwrap();
        assert_eq!(
            (region.bytes(), region.bytes_max(), region.root()),
            (4 << 20, 8 << 20, None)
        );
        let base = region.base();
        List(&region).write(500, 7);
        region.sync_all().unwrap();
        // Not synced: gone.
        List(&region).write(800, 8);
        region.grow(6 << 20).unwrap();
        drop(region);
        let region = regions.region("list", 1, 0).unwrap();
        assert_eq!(List(&region).read(), [7; 500]);
        drop((region, regions));
        for _ in 0..2 {
            let regions = open(dir.path(), way);
            let region = regions.region("list", 1, 0).unwrap();
            assert_eq!((region.base(), region.bytes()), (base, 4 << 20));
            assert_eq!(List(&region).read(), [7; 500]);
        }
    }
}

#[test]
fn a_region_grows_and_its_end_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let regions = open(dir.path(), Way::InThread);
    let region = regions.region("r", 5000, 1 << 20).unwrap();
    assert_eq!(region.bytes(), 2 * PAGE_BYTES);
    assert!(region.set_root(Some(region.bytes())).is_err());
    assert!(sync(&region, 0..region.bytes() + 1).is_err());
    region.grow(1 << 20).unwrap();
    region.word((1 << 17) - 1).store(3, Relaxed);
    region.set_root(Some((1 << 20) - 8)).unwrap();
    sync(&region, (1 << 20) - 8..1 << 20).unwrap();
    assert!(region.grow((1 << 20) + 1).is_err() && region.grow(PAGE_BYTES).is_err());
    drop((region, regions));
    let regions = open(dir.path(), Way::InThread);
    let region = regions.region("r", 1, 0).unwrap();
    assert_eq!(
        (region.bytes(), region.root()),
        (1 << 20, Some((1 << 20) - 8))
    );
    assert_eq!(region.word((1 << 17) - 1).load(Relaxed), 3);
    // Larger than the SSD can promise.
    let big = regions.bytes_that_fit();
    let full = |e: &RegionError| {
        matches!(
            e,
            RegionError::Heap(HeapError::Store(ObjectError::Full { .. }))
        )
    };
    assert!(regions.region("big", big, 0).is_err_and(|e| full(&e)));
    let rest = regions.region("rest", big / 2, 0).unwrap();
    assert!(rest.grow(big as usize).is_err_and(|e| full(&e)));
    rest.word(rest.bytes() / 8 - 1).store(1, Relaxed);
    assert_eq!(
        rest.bytes(),
        (big / 2) as usize / PAGE_BYTES * PAGE_BYTES
            + usize::from(!(big / 2).is_multiple_of(4096)) * PAGE_BYTES
    );
}

#[test]
fn a_range_without_a_byte_syncs_no_page() {
    let dir = tempfile::tempdir().unwrap();
    let regions = open(dir.path(), Way::InThread);
    let region = regions.region("r", 8192, 0).unwrap();
    region.word(0).store(1, Relaxed);
    region.sync_all().unwrap();
    region.word(0).store(2, Relaxed);
    region.word(512).store(2, Relaxed);
    region.set_root(Some(8)).unwrap();
    let ranges = [0..0, 100..100, 5000..5000, 8192..8192];
    region.sync(&ranges).unwrap();
    assert!(sync(&region, 8193..8193).is_err());
    drop((region, regions));
    let regions = open(dir.path(), Way::InThread);
    let region = regions.region("r", 1, 0).unwrap();
    let words = [0, 512].map(|at| region.word(at).load(Relaxed));
    assert_eq!((words, region.root()), ([1, 0], Some(8)));
}

#[test]
fn regions_are_listed_removed_and_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let regions = open(dir.path(), Way::InThread);
    let a = regions.region("a", 1 << 20, 3 << 30).unwrap();
    let b = regions.region("b", 2 << 20, 2 << 20).unwrap();
    assert!(matches!(
        regions.region("a", 1, 0),
        Err(RegionError::InUse { .. })
    ));
    assert!(matches!(
        regions.remove("a"),
        Err(RegionError::InUse { .. })
    ));
    assert!(matches!(
        regions.remove("c"),
        Err(RegionError::Missing { .. })
    ));
    assert!(matches!(
        regions.region("", 1, 0),
        Err(RegionError::Name { bytes: 0 })
    ));
    let ends = a.base() as usize + a.bytes_max();
    assert!(b.base() as usize >= ends);
    for (nth, region) in [&a, &b].into_iter().enumerate() {
        (0..region.bytes() / PAGE_BYTES)
            .for_each(|page| region.word(page * 512).store(nth as u64 + 1, Relaxed));
        region.sync_all().unwrap();
    }
    drop((a, b));
    regions.remove("a").unwrap();
    drop(regions);
    let regions = open(dir.path(), Way::InThread);
    let names: Vec<String> = regions.list().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["b"]);
    let b = regions.region("b", 1, 0).unwrap();
    assert!((0..512).all(|page| b.word(page * 512).load(Relaxed) == 2));
    // Its number and addresses are used again, and nothing of it is left.
    let c = regions.region("c", 1 << 20, 1 << 20).unwrap();
    assert!((c.base() as usize) < b.base() as usize);
    assert!((0..256).all(|page| c.word(page * 512).load(Relaxed) == 0));
    // What is not kept has no place here.
    assert!(matches!(
        regions.heap().array(1, 8, 1),
        Err(HeapError::Kept)
    ));
}

#[test]
fn two_pools_are_open_beside_each_other_and_a_taken_place_is_told() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let pools = dirs.each_ref().map(|dir| open(dir.path(), Way::InThread));
    let [(a, bytes), (b, _)] = pools.each_ref().map(Regions::addresses);
    assert!(a.abs_diff(b) >= bytes);
    drop(pools);
    let access = rustix::mm::ProtFlags::READ;
    let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED_NOREPLACE;
    // An error says that another test has a pool there meanwhile, which takes the place as well.
    // SAFETY: a new mapping that replaces none.
    let other = unsafe { rustix::mm::mmap_anonymous((a + 4096) as *mut _, 4096, access, flags) };
    let said = Regions::open(&StoreOptions::kept(dirs[0].path(), CAP, SSD), Way::InThread);
    assert!(said.is_err_and(|e| taken(&e) && e.to_string().contains(&format!("{a:#x}"))));
    if let Ok(other) = other {
        // SAFETY: mapped above.
        unsafe { rustix::mm::munmap(other, 4096) }.unwrap();
    }
    open(dirs[0].path(), Way::InThread);
}

#[test]
fn what_a_removed_region_took_is_free_again() {
    let dir = tempfile::tempdir().unwrap();
    let regions = open(dir.path(), Way::InThread);
    let mut random = Random::new(7);
    let bytes = regions.bytes_that_fit();
    for _ in 0..3 {
        let region = regions.region("big", bytes, 0).unwrap();
        for _ in 0..2 {
            for page in 0..region.bytes() / PAGE_BYTES {
                // Does not pack.
                (0..512).for_each(|n| region.word(page * 512 + n).store(random.next(), Relaxed));
            }
            region.sync_all().unwrap();
        }
        drop(region);
        regions.remove("big").unwrap();
    }
}

/// Several threads write to a region of several times the cap; now and then all stop, and it is synced whole or in part.
#[test]
fn a_region_larger_than_dram_against_a_plain_copy() {
    const THREADS: usize = 4;
    const BYTES: usize = 80 << 20;
    const ROUNDS: usize = 12;
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let regions = open(dir.path(), way);
        regions.heap().set_pages_max(256).unwrap();
        let region = regions.region("large", BYTES as u64, 0).unwrap();
        let (barrier, words) = (Barrier::new(THREADS), BYTES / 8);
        let life = |thread: usize| {
            let mut random = Random::new(thread as u64 + 1);
            let (mut now, mut kept) = (BTreeMap::new(), BTreeMap::new());
            for round in 0..ROUNDS {
                for _ in 0..2000 {
                    let at = random.below((words / THREADS) as u64) as usize * THREADS + thread;
                    assert_eq!(
                        region.word(at).load(Relaxed),
                        now.get(&at).copied().unwrap_or(0)
                    );
                    now.insert(at, random.next());
                    region.word(at).store(now[&at], Relaxed);
                }
                barrier.wait();
                let half = if round % 3 == 2 { BYTES / 2 } else { BYTES };
                if thread == 0 {
                    region.sync(&[0..half, 5..half]).unwrap();
                }
                barrier.wait();
                kept.extend(
                    now.iter()
                        .filter(|(at, _)| **at * 8 < half)
                        .map(|(at, number)| (*at, *number)),
                );
            }
            kept
        };
        let kept: Vec<BTreeMap<usize, u64>> = std::thread::scope(|scope| {
            let life = &life;
            let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || life(t))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let (cap, used) = regions.heap().store().cap_and_used_bytes();
        assert!(used <= cap + (cap >> 3), "{used} bytes held of {cap}");
        drop((region, regions));
        let regions = open(dir.path(), way);
        let region = regions.region("large", 1, 0).unwrap();
        for (at, number) in kept.iter().flatten() {
            assert_eq!(region.word(*at).load(Relaxed), *number, "word {at}");
        }
        drop((region, regions));
    }
}

const CHILD: &str = "TERRACE_KEPT_CHILD";

/// Not a test of its own: the program that is killed. It says the number of each list before it syncs it, and after.
#[test]
fn child_of_the_kill() {
    let Ok(dir) = std::env::var(CHILD) else {
        return;
    };
    let regions = open(Path::new(&dir), Way::InThread);
    let region = regions.region("list", 16 << 20, 0).unwrap();
    let list = List(&region);
    let begun = list.read().first().copied().unwrap_or(0);
    let mut out = std::io::stdout();
    for number in begun + 1.. {
        list.write(100 + number * 37 % 3000, number);
        writeln!(out, "begun {number}").unwrap();
        region.sync_all().unwrap();
        writeln!(out, "synced {number}").unwrap();
    }
}

#[test]
fn a_program_that_is_killed_leaves_a_completed_sync() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(std::process::id().into());
    let (mut begun, mut synced) = (0, 0);
    for _ in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_of_the_kill", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let id = rustix::process::Pid::from_child(&child);
        let after = Duration::from_millis(100 + random.below(300));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        });
        for line in out.lines().map_while(Result::ok) {
            match line
                .rsplit_once(' ')
                .map(|(what, n)| (what, n.parse::<usize>()))
            {
                Some((what, Ok(n))) if what.ends_with("begun") => begun = n,
                Some(("synced", Ok(n))) => synced = n,
                _ => {}
            }
        }
        killer.join().unwrap();
        child.wait().unwrap();
        let regions = open(dir.path(), Way::InThread);
        let Ok(region) = regions.region("list", 16 << 20, 0) else {
            panic!("the region is there or can be made");
        };
        let list = List(&region).read();
        let number = list.first().copied().unwrap_or(0);
        assert!(
            (synced..=begun.max(synced)).contains(&number),
            "list {number}, synced {synced}, begun {begun}"
        );
        let len = if number == 0 {
            0
        } else {
            100 + number * 37 % 3000
        };
        assert_eq!(list, vec![number; len]);
    }
    assert!(synced > 8, "{synced} syncs were too few to meet a kill");
}

#[test]
fn a_fork_that_ends_leaves_its_parents_region_alone() {
    let dir = tempfile::tempdir().unwrap();
    let regions = open(dir.path(), Way::InThread);
    let region = regions.region("r", 1 << 20, 0).unwrap();
    region.word(0).store(1, Relaxed);
    region.sync_all().unwrap();
    region.word(0).store(2, Relaxed);
    // SAFETY: the child uses what it has from its parent only to find that it is refused, and to drop it; then it ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = region.sync_all().is_err() && region.set_root(Some(8)).is_err();
        drop((region, regions));
        // SAFETY: ends the child here.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "{status:#x}"
    );
    assert_eq!((region.word(0).load(Relaxed), region.root()), (2, None));
    region.sync_all().unwrap();
    drop((region, regions));
    let regions = open(dir.path(), Way::InThread);
    assert_eq!(regions.region("r", 1, 0).unwrap().word(0).load(Relaxed), 2);
}
