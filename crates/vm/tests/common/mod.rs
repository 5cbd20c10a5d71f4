//! A backing in plain memory that fails and dawdles when told to. Never: part of the product.
#![allow(dead_code)]

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrace_vm::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, StoreError};

/// Pages in a map.
pub struct Plain {
    pages: Mutex<HashMap<u64, Box<[u8]>>>,
    span: fn(u64) -> Range<usize>,
    pub fetch_fails: AtomicBool,
    pub store_fails: AtomicBool,
    pub fetch_delay_us: AtomicU64,
    pub store_delay_us: AtomicU64,
    /// Calls of `store` that were refused.
    pub refused: AtomicU64,
    pub fetches: AtomicU64,
    pub stores: AtomicU64,
    pub discards: AtomicU64,
    /// The most pages taken at a time.
    pub taken_max: AtomicU64,
}

impl Plain {
    pub fn new() -> Plain {
        Plain::with_span(|_| 0..PAGE_BYTES)
    }

    pub fn with_span(span: fn(u64) -> Range<usize>) -> Plain {
        Plain {
            pages: Mutex::default(),
            span,
            fetch_fails: AtomicBool::new(false),
            store_fails: AtomicBool::new(false),
            fetch_delay_us: AtomicU64::new(0),
            store_delay_us: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
            stores: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            taken_max: AtomicU64::new(u64::MAX),
        }
    }

    pub fn stored_pages(&self) -> usize {
        self.pages.lock().unwrap().len()
    }
}

impl Backing for Plain {
    fn span(&self, page: u64) -> Range<usize> {
        (self.span)(page)
    }

    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let delay_us = self.fetch_delay_us.load(Ordering::Relaxed);
        if delay_us > 0 {
            std::thread::sleep(Duration::from_micros(delay_us));
        }
        if self.fetch_fails.load(Ordering::Relaxed) {
            return Err(FetchError::Io {
                offset: page * PAGE_BYTES as u64,
                len: PAGE_BYTES as u32,
                errno: libc::EIO,
            });
        }
        match self.pages.lock().unwrap().get(&page) {
            Some(bytes) => {
                into.0[self.span(page)].copy_from_slice(bytes);
                Ok(Fetched::Filled)
            }
            None => Ok(Fetched::Absent),
        }
    }

    fn absent(&self, pages: &[u64]) -> u64 {
        // Where fetching fails or takes long it is to be asked.
        if self.fetch_fails.load(Ordering::Relaxed)
            || self.fetch_delay_us.load(Ordering::Relaxed) > 0
        {
            return 0;
        }
        let map = self.pages.lock().unwrap();
        let bit = |(at, page)| u64::from(!map.contains_key(page)) << at;
        pages.iter().enumerate().map(bit).sum()
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        let delay_us = self.store_delay_us.load(Ordering::Relaxed);
        if delay_us > 0 {
            std::thread::sleep(Duration::from_micros(delay_us));
        }
        if self.store_fails.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Io { errno: libc::EIO });
        }
        let taken = pages
            .len()
            .min(self.taken_max.load(Ordering::Relaxed) as usize);
        let mut map = self.pages.lock().unwrap();
        for changed in &pages[..taken] {
            let bytes = &changed.bytes.0[self.span(changed.page)];
            self.stores.fetch_add(1, Ordering::Relaxed);
            map.insert(changed.page, bytes.into());
        }
        Ok(taken)
    }

    fn discard(&self, page: u64) {
        self.discards.fetch_add(1, Ordering::Relaxed);
        self.pages.lock().unwrap().remove(&page);
    }
}

/// A generator of numbers that a seed repeats (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Reads into a page as the kernel does. The errno, if it refused.
pub fn read_into(at: *mut u8) -> i32 {
    let zeros = File::open("/dev/zero").unwrap();
    // SAFETY: the caller's page, or nobody's, which the kernel says.
    let got = unsafe { libc::read(zeros.as_raw_fd(), at.cast(), 1) };
    match got {
        1 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
    }
}
