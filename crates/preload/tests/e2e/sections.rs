//! The sections of `src/dispatch/section.rs` under a model checker: a page leaves in every order of steps beside threads whose calls have it, up to a bound on preemptions.
//!
//! Both fences are of the processor here; in the product the callers' is the compiler's, and the kernel's membarrier makes up for it. A page that leaves under a call is a race, which loom reports.

#[path = "../../src/dispatch/section.rs"]
mod section;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use section::Section;

/// Times that a thread is interrupted at most in one schedule.
const PREEMPTIONS_MAX: usize = 3;
const CALLERS: usize = 2;

struct Machine {
    sections: [Section; CALLERS],
    is_calm: AtomicBool,
    /// Whether it is there.
    page: UnsafeCell<bool>,
}

impl Machine {
    fn call(&self, caller: usize) {
        let section = &self.sections[caller];
        let is_calm = || self.is_calm.load(Ordering::Acquire);
        if section.begin(1 + caller, || fence(Ordering::SeqCst), is_calm) {
            self.page.with(|page| {
                // SAFETY: loom looks that nobody takes it away meanwhile.
                assert!(unsafe { *page });
            });
            section.end();
        }
    }

    fn end_calm(&self) {
        self.is_calm.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        for section in &self.sections {
            while section.at() != 0 {
                thread::yield_now();
            }
        }
        self.page.with_mut(|page| {
            // SAFETY: loom looks that nobody has it.
            unsafe { *page = false }
        });
    }
}

#[test]
fn loom_no_page_leaves_under_a_call() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(|| {
        let machine = Arc::new(Machine {
            sections: std::array::from_fn(|_| Section::new()),
            is_calm: AtomicBool::new(true),
            page: UnsafeCell::new(true),
        });
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let machine = machine.clone();
                thread::spawn(move || machine.call(caller))
            })
            .collect();
        machine.end_calm();
        for caller in callers {
            caller.join().unwrap();
        }
        assert!(machine.sections.iter().all(|section| section.at() == 0));
    });
}
