//! In the child of a fork: pages, room and cap that the process that has the pool gives.
//!
//! Promises: one question at a time, with the program's signals held back, so that no handler of its own faults meanwhile; when the other process is
//! gone, pages cannot be had (SIGBUS), and nothing waits. Never: keeps a page.

use crate::raw;
use crate::serve::ForChild;
use crate::wire::{self, Ask, Gone, Say};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use terrace_vm::heap::{AllocError, Ground};
use terrace_vm::opp::HeapError;
use terrace_vm::store::ObjectError;
use terrace_vm::{Backing, Changed, FetchError, Fetched, PAGE_BYTES, Page, Put, StoreError};

/// The connection.
pub struct Remote {
    state: Mutex<State>,
    /// Its descriptor, which a child of this child closes, whoever had the connection at the fork.
    fd: RawFd,
}

struct State {
    end: OwnedFd,
    /// Pages that were discarded and not yet told: area, first and how many.
    discarded: Option<(u32, u64, u64)>,
    /// The other process is, or what it says cannot be followed any more.
    is_gone: bool,
}

impl Remote {
    /// Over the child's end of a socket.
    pub fn new(end: OwnedFd) -> Remote {
        Remote {
            fd: end.as_raw_fd(),
            state: Mutex::new(State {
                end,
                discarded: None,
                is_gone: false,
            }),
        }
    }

    /// Does something with the connection, alone.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> Result<R, Gone>) -> Result<R, Gone> {
        let before = raw::block_signals();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = match state.is_gone {
            true => Err(Gone),
            false => work(&mut state),
        };
        // Whatever failed in the middle, the next question would get the answers to this one.
        state.is_gone |= result.is_err();
        drop(state);
        raw::restore_signals(&before);
        result
    }

    fn tell(&self, ask: Ask) {
        // If the other process is gone there is nothing to tell.
        let _ = self.with(|state| {
            state.settle()?;
            wire::send(&state.end, &[ask])
        });
    }

    /// A socket for a child of this child, and what its pages may take; `pages` is how many more a second version of everything would come to, `shared_bytes` what the two will have in DRAM together.
    pub fn fork(&self, pages: u64, shared_bytes: u64) -> Result<ForChild, i32> {
        let ask = Ask {
            what: wire::FORK,
            first: shared_bytes,
            count: pages,
            ..Ask::default()
        };
        let asked = self.with(|state| {
            state.settle()?;
            let say = state.ask(ask)?;
            match say.errno {
                0 => Ok(Ok((wire::receive_descriptor(&state.end)?, say.count))),
                errno => Ok(Err(errno)),
            }
        });
        asked.unwrap_or(Err(libc::ENOMEM))
    }

    /// Whether it may fork, where a second version of all comes to so many more pages.
    pub fn may_fork(&self, pages: u64) -> bool {
        let ask = Ask {
            what: wire::MAY_FORK,
            count: pages,
            ..Ask::default()
        };
        let said = self.with(|state| {
            state.settle()?;
            state.ask(ask)
        });
        said.is_ok_and(|say| say.errno == 0)
    }

    /// What this child's pages may have, which would have `wants` bytes.
    pub fn share(&self, wants: u64) -> Result<u64, Gone> {
        let ask = Ask {
            what: wire::SHARE,
            count: wants,
            ..Ask::default()
        };
        let said = self.with(|state| {
            state.settle()?;
            state.ask(ask)
        });
        said.map(|say| say.count)
    }

    /// They have no more than so many bytes now.
    pub fn gave_back(&self, all_but: u64) {
        self.tell(Ask {
            what: wire::GAVE_BACK,
            count: all_but,
            ..Ask::default()
        });
    }

    /// In a child of this child: the connection is not its own.
    pub fn close(self: Arc<Remote>) {
        // SAFETY: a copy of the parent's, which nobody here uses any more.
        unsafe { libc::close(self.fd) };
        std::mem::forget(self);
    }
}

impl State {
    fn ask(&mut self, ask: Ask) -> Result<Say, Gone> {
        wire::send(&self.end, &[ask])?;
        self.answer()
    }

    /// The answer about a page, with its contents.
    fn page(&mut self, into: &mut Page) -> Result<Say, Gone> {
        let say = self.answer()?;
        if say.errno == 0 && say.found != wire::ABSENT {
            wire::receive_bytes(&self.end, &mut into.0)?;
        }
        Ok(say)
    }

    fn answer(&mut self) -> Result<Say, Gone> {
        let mut say = [Say::default()];
        wire::receive(&self.end, &mut say)?;
        Ok(say[0])
    }

    /// Tells what was discarded, before anything else is said.
    fn settle(&mut self) -> Result<(), Gone> {
        match self.discarded.take() {
            Some((area, first, count)) => wire::send(
                &self.end,
                &[Ask {
                    what: wire::DISCARD,
                    area,
                    first,
                    count,
                }],
            ),
            None => Ok(()),
        }
    }
}

/// What the answer about a page says.
fn fetched(page: u64, said: Say) -> Result<Fetched, FetchError> {
    match (said.errno, said.found) {
        (0, wire::ABSENT) => Ok(Fetched::Absent),
        (0, wire::FILLED) => Ok(Fetched::Filled),
        (0, _) => Ok(Fetched::Read),
        (errno, _) => Err(FetchError::Io {
            offset: page * PAGE_BYTES as u64,
            len: PAGE_BYTES as u32,
            errno,
        }),
    }
}

/// One heap's pages.
pub struct RemotePages {
    pub remote: Arc<Remote>,
    pub area: u32,
}

impl Backing for RemotePages {
    fn fetch(&self, page: u64, into: &mut Page) -> Result<Fetched, FetchError> {
        let ask = Ask {
            what: wire::FETCH,
            area: self.area,
            first: page,
            count: 1,
        };
        let said = self.remote.with(|state| {
            state.settle()?;
            wire::send(&state.end, &[ask])?;
            state.page(into)
        });
        said.map_or(Err(FetchError::Gone), |said| fetched(page, said))
    }

    fn fetch_several(&self, pages: &[u64], into: &mut Page, put: &mut Put<'_>) {
        let mut first = 0;
        for some in pages.chunks(wire::PAGES_MAX) {
            let mut heard = 0;
            let asked = self.remote.with(|state| {
                state.settle()?;
                let ask = Ask {
                    what: wire::FETCH_SEVERAL,
                    area: self.area,
                    first: 0,
                    count: some.len() as u64,
                };
                wire::send(&state.end, &[ask])?;
                wire::send(&state.end, some)?;
                for page in some {
                    let said = state.page(into)?;
                    put(first + heard, fetched(*page, said), into);
                    into.0.fill(0);
                    heard += 1;
                }
                Ok(())
            });
            if asked.is_err() {
                into.0.fill(0);
                (heard..some.len()).for_each(|at| put(first + at, Err(FetchError::Gone), into));
            }
            first += some.len();
        }
    }

    fn store(&self, pages: &[Changed<'_>]) -> Result<usize, StoreError> {
        let pages = &pages[..pages.len().min(wire::PAGES_MAX)];
        let mut numbers = [0; wire::PAGES_MAX];
        for (number, changed) in numbers.iter_mut().zip(pages) {
            *number = changed.page | if changed.surely { wire::SURELY } else { 0 };
        }
        let ask = Ask {
            what: wire::STORE,
            area: self.area,
            first: 0,
            count: pages.len() as u64,
        };
        let said = self.remote.with(|state| {
            state.settle()?;
            wire::send(&state.end, &[ask])?;
            wire::send(&state.end, &numbers[..pages.len()])?;
            for changed in pages {
                wire::send_bytes(&state.end, &changed.bytes.0)?;
            }
            state.answer()
        });
        match said {
            Err(Gone) => Err(StoreError::Closed),
            Ok(Say {
                errno: 0, count, ..
            }) => Ok(count as usize),
            Ok(Say {
                errno: libc::ENOSPC,
                ..
            }) => Err(StoreError::Full {
                asked_bytes: (pages.len() * PAGE_BYTES) as u64,
            }),
            Ok(Say { errno, .. }) => Err(StoreError::Io { errno }),
        }
    }

    fn discard(&self, page: u64) {
        // If the other process is gone there is nothing to tell.
        let _ = self.remote.with(|state| {
            match &mut state.discarded {
                Some((area, first, count)) if *area == self.area && *first + *count == page => {
                    *count += 1;
                }
                _ => {
                    state.settle()?;
                    state.discarded = Some((self.area, page, 1));
                }
            }
            Ok(())
        });
    }
}

/// Room and cap.
pub struct RemoteGround(pub Arc<Remote>);

impl Ground for RemoteGround {
    fn promise(&self, pages: u64) -> Result<(), AllocError> {
        if pages == 0 {
            return Ok(());
        }
        let ask = Ask {
            what: wire::PROMISE,
            count: pages,
            ..Ask::default()
        };
        let said = self.0.with(|state| {
            state.settle()?;
            state.ask(ask)
        });
        match said {
            Ok(Say { errno: 0, .. }) => Ok(()),
            _ => Err(AllocError::Heap(HeapError::Store(ObjectError::Full {
                asked_bytes: pages * PAGE_BYTES as u64,
            }))),
        }
    }

    fn unpromise(&self, pages: u64) {
        self.0.tell(Ask {
            what: wire::UNPROMISE,
            count: pages,
            ..Ask::default()
        });
    }

    fn count(&self, before: u64, after: u64) {
        self.0.tell(Ask {
            what: wire::COUNT,
            area: 0,
            first: before,
            count: after,
        });
    }
}
