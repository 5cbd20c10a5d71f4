//! Pages that the program closed to every access (PROT_NONE) and that are to leave DRAM: they are read past their protection.
//!
//! Who closes pages says so before (`Closing`), makes them leave, and then closes them; one that came back in between, by a fault that was under way, is
//! read through the kernel as long as anything is closed. An eviction that looked before that has its pages already, and is waited for when they are made
//! to leave. Promises: where nothing is closed nothing is different. Never: holds a lock, or allocates.

use crate::backing::{Backing, Changed, FetchError, Fetched, Page, Put, StoreError};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_media::descriptors::keep_file;

/// Read at a time, on the stack.
const TOGETHER: usize = 4;

/// Ranges that nobody may read, and those that are being closed.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

/// Ranges that nobody may read, until it is dropped.
pub struct Closing(usize);

impl Closing {
    /// So many.
    pub fn new(ranges: usize) -> Closing {
        CLOSED.fetch_add(ranges, Ordering::SeqCst);
        Closing(ranges)
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSED.fetch_sub(self.0, Ordering::SeqCst);
    }
}

/// In the child of a fork: nothing is closed yet. What the parent counted is not to be dropped there.
pub fn none_closed() {
    CLOSED.store(0, Ordering::SeqCst);
}

/// A backing whose pages may be closed when they are given to it.
pub struct Closable {
    inner: Arc<dyn Backing>,
    /// This process's memory, as the kernel reads it.
    memory: Option<File>,
}

impl Closable {
    /// Around another, in the process whose pages they are.
    pub fn new(inner: Arc<dyn Backing>) -> Closable {
        let memory = File::open("/proc/self/mem").ok().map(keep_file);
        Closable { inner, memory }
    }

    fn store_closed(&self, memory: &File, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        let pages = &pages[..pages.len().min(TOGETHER)];
        let mut read = [const { Page::ZERO }; TOGETHER];
        for (page, changed) in read.iter_mut().zip(pages) {
            let at = std::ptr::from_ref(changed.bytes) as u64;
            let done = memory.read_exact_at(&mut page.0, at);
            done.map_err(|e| StoreError::Io {
                errno: e.raw_os_error().unwrap_or(libc::EIO),
            })?;
        }
        let mut readable = [Changed::NONE; TOGETHER];
        for ((readable, changed), bytes) in readable.iter_mut().zip(pages).zip(&read) {
            *readable = Changed { bytes, ..*changed };
        }
        self.inner.store(&readable[..pages.len()])
    }
}

impl Backing for Closable {
    fn span(&self, page: u64) -> Range<usize> {
        self.inner.span(page)
    }

    fn span_max(&self, page: u64) -> Range<usize> {
        self.inner.span_max(page)
    }

    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        self.inner.fetch(page, into)
    }

    fn fetch_several(&self, pages: &[u64], into: &mut Page, put: &mut Put<'_>) {
        self.inner.fetch_several(pages, into, put);
    }

    fn absent(&self, pages: &[u64]) -> u64 {
        self.inner.absent(pages)
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        match &self.memory {
            Some(memory) if CLOSED.load(Ordering::SeqCst) > 0 => self.store_closed(memory, pages),
            _ => self.inner.store(pages),
        }
    }

    fn discard(&self, page: u64) {
        self.inner.discard(page);
    }
}
