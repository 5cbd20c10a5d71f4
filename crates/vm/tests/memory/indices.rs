//! Pages that come with another one because an array of indices names them: faults taken in the thread, of programs that do not know this library.
#![cfg(target_arch = "x86_64")]

use crate::common::Plain;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use terrace_vm::{Memory, Options, PAGE_BYTES, Region};

const PAGES: u64 = 20_000;
const WORDS: u64 = PAGE_BYTES as u64 / 8;

fn memory() -> Memory {
    Memory::new(Options {
        unmodified: true,
        pages_max: 2000,
        reserve_bytes: 8 << 30,
        ..Options::default()
    })
    .unwrap()
}

/// A region whose words each have their own number.
fn numbered(memory: &Memory) -> Region {
    let region = memory.region(PAGES, Arc::new(Plain::new())).unwrap();
    for page in 0..PAGES {
        for word in [0, 200, 511] {
            let at = page * WORDS + word;
            region.word(at as usize).store(at, Relaxed);
        }
    }
    region
}

fn base(region: &Region) -> *mut u64 {
    region.word(0).as_ptr()
}

fn index(n: u64) -> u64 {
    n * 7919 % PAGES * WORDS + [0, 200, 511][n as usize % 3]
}

/// Memory of a region as a slice: what is not in such is not looked at.
fn slice<T: Copy>(memory: &Memory, values: &[T]) -> (Region, &'static [T]) {
    let pages = size_of_val(values).div_ceil(PAGE_BYTES) as u64;
    let region = memory.region(pages, Arc::new(Plain::new())).unwrap();
    let at = base(&region).cast::<T>();
    // SAFETY: as many bytes as the region has at least; nobody else writes to them, and the caller keeps the region.
    let slice = unsafe {
        at.copy_from_nonoverlapping(values.as_ptr(), values.len());
        std::slice::from_raw_parts(at, values.len())
    };
    (region, slice)
}

/// The sum of what the indices name.
fn gather(base: *const u64, indices: &[u64]) -> u64 {
    let (mut at, mut sum) = (indices.as_ptr(), 0u64);
    // SAFETY: reads the indices, and words of a region that is there.
    unsafe {
        std::arch::asm!(
            "2:",
            "mov {index}, qword ptr [{at}]",
            "add {at}, 8",
            "add {sum}, qword ptr [{base} + {index} * 8]",
            "cmp {at}, {end}",
            "jne 2b",
            at = inout(reg) at,
            sum = inout(reg) sum,
            index = out(reg) _,
            base = in(reg) base,
            end = in(reg) indices.as_ptr_range().end,
            options(nostack),
        );
    }
    assert_eq!(at, indices.as_ptr_range().end);
    sum
}

/// Writes to what they name, by indices of four bytes, from the last to the first.
fn scatter(base: *mut u64, indices: &[u32], value: u64) {
    let mut at = indices.as_ptr_range().end;
    // SAFETY: reads the indices, and writes to words of a region that is there; nobody else has them.
    unsafe {
        std::arch::asm!(
            "2:",
            "sub {at}, 4",
            "mov {index:e}, dword ptr [{at}]",
            "mov qword ptr [{base} + {index} * 8], {value}",
            "cmp {at}, {start}",
            "jne 2b",
            at = inout(reg) at,
            index = out(reg) _,
            base = in(reg) base,
            start = in(reg) indices.as_ptr(),
            value = in(reg) value,
            options(nostack),
        );
    }
    assert_eq!(at, indices.as_ptr());
}

#[test]
fn what_an_array_of_indices_names_comes_ahead_of_faults() {
    let memory = memory();
    let region = numbered(&memory);
    memory.evict_all().unwrap();
    let indices: Vec<u64> = (0..10_000).map(index).collect();
    let (_kept, indices) = slice(&memory, &indices);
    let before = memory.stats();
    assert_eq!(gather(base(&region), indices), indices.iter().sum());
    let stats = memory.stats();
    let ahead = stats.ahead - before.ahead;
    assert!(ahead > 8500, "{ahead} pages ahead");
    // What is written comes to be changed, and stays.
    let few: Vec<u32> = (0..5000).map(|n| index(n * 3 + 1) as u32).collect();
    let written: std::collections::HashSet<u32> = few.iter().copied().collect();
    let (_kept, few) = slice(&memory, &few);
    scatter(base(&region), few, u64::MAX);
    assert!(
        memory.stats().ahead > stats.ahead + 3500,
        "{:?}",
        memory.stats()
    );
    memory.evict_all().unwrap();
    for page in 0..PAGES {
        for word in [0, 200, 511] {
            let at = page * WORDS + word;
            let value = region.word(at as usize).load(Relaxed);
            let is_written = written.contains(&(at as u32));
            assert_eq!(value, if is_written { u64::MAX } else { at });
        }
    }
    assert_eq!(memory.stats().failed_faults, 0);
}

#[test]
fn an_array_that_is_itself_not_there_is_gone_along_and_its_end_is_no_harm() {
    let memory = memory();
    let region = numbered(&memory);
    let array = memory.region(40, Arc::new(Plain::new())).unwrap();
    let count = 40 * WORDS;
    for n in 0..count {
        // At the end: what no region has, and what would go over.
        let value = if n + 20 > count {
            (u64::MAX / 9).wrapping_mul(n)
        } else {
            index(n)
        };
        array.word(n as usize).store(value, Relaxed);
    }
    for round in 0..3 {
        memory.evict_all().unwrap();
        let before = memory.stats().ahead;
        // SAFETY: words of the region, which nobody writes to.
        let indices = unsafe { std::slice::from_raw_parts(base(&array), count as usize - 20) };
        let sum = gather(base(&region), indices);
        assert_eq!(sum, (0..count - 20).map(index).sum());
        assert!(
            memory.stats().ahead > before + 10_000,
            "{round}: {:?}",
            memory.stats()
        );
    }
    assert_eq!(memory.stats().failed_faults, 0);
}

#[test]
fn threads_go_along_arrays_of_their_own() {
    let memory = memory();
    let region = numbered(&memory);
    memory.evict_all().unwrap();
    let before = memory.stats().ahead;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (base, memory) = (base(&region) as usize, &memory);
            scope.spawn(move || {
                let indices: Vec<u64> = (0..4000).map(|n| index(n * 5 + thread)).collect();
                let (_kept, indices) = slice(memory, &indices);
                let sum = gather(base as *const u64, indices);
                assert_eq!(sum, indices.iter().sum());
            });
        }
    });
    let stats = memory.stats();
    assert!(stats.ahead > before + 6000, "{stats:?}");
    assert_eq!(stats.failed_faults, 0);
}
