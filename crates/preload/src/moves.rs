//! mremap of served memory: it shrinks and grows where it is, or what is in it is copied to where it is to be, and the old mapping goes, or stays without anything in it.
//!
//! Promises: on an error what was to be moved is there as it was; what moves keeps its protection. Never: serves what the program moves to addresses that are not the heap's.

use crate::mapped::{PAGE_BYTES, Refused, is_unreadable, whole};
use crate::raw;
use crate::runtime::{self, Area};
use libc::{c_int, c_void};
use std::ops::Range;

const OPEN: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// As mremap(2) of memory at served addresses.
pub fn remap(
    at: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> Result<*mut c_void, Refused> {
    let says = |flag| flags & flag != 0;
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (may_move, keeps) = (says(libc::MREMAP_MAYMOVE), says(libc::MREMAP_DONTUNMAP));
    let to = says(libc::MREMAP_FIXED).then_some(to);
    let wrong = says(!known) || (keeps || to.is_some()) && !may_move;
    let lens = whole(at, old_len).zip(whole(0, new_len));
    let (Some(((start, old), (_, new))), Some(runtime), false) = (lens, runtime::get(), wrong)
    else {
        return Err(libc::EINVAL);
    };
    if old == 0 || new == 0 || keeps && old != new {
        return Err(libc::EINVAL);
    }
    let area = &runtime.maps;
    let pages = area.pages(start, old).ok_or(libc::EINVAL)?;
    // More than there are addresses cannot be had, and has no number either.
    let wants = match u32::try_from(new / PAGE_BYTES) {
        Ok(wants) if new <= area.heap.bytes() => wants,
        _ => return Err(libc::ENOMEM),
    };
    if area.there(pages.start..pages.start + 1).is_empty() {
        return Err(libc::EFAULT);
    }
    match to {
        Some(to) => area.move_to(pages, wants, to, keeps),
        None if keeps => area.moved(pages.clone(), pages, wants, None, true),
        None => area.resize(pages, wants, may_move),
    }
}

/// Where what is moved comes to be.
enum Place {
    Served(Range<u32>),
    /// The kernel's: start and length.
    Other(*mut c_void, usize),
}

impl Area {
    fn resize(
        &self,
        pages: Range<u32>,
        wants: u32,
        may_move: bool,
    ) -> Result<*mut c_void, Refused> {
        let has = pages.end - pages.start;
        if wants <= has {
            // Whatever is there, several mappings or none: all of it goes.
            self.unmap(pages.start + wants..pages.end);
            return Ok(self.at(&pages).0);
        }
        let (room, prot) = self.one(&pages)?;
        if prot == OPEN && self.grow(pages.end..pages.start + wants, room) {
            return Ok(self.at(&pages).0);
        }
        match may_move {
            true => self.moved(pages.clone(), pages, wants, None, false),
            false => Err(libc::ENOMEM),
        }
    }

    /// To an address that the program says, over what is there.
    fn move_to(
        &self,
        pages: Range<u32>,
        wants: u32,
        to: usize,
        keeps: bool,
    ) -> Result<*mut c_void, Refused> {
        let (start, len) = self.at(&pages);
        let start = start as usize;
        let (to, new_len) = whole(to, wants as usize * PAGE_BYTES).ok_or(libc::EINVAL)?;
        if to < start + len && start < to + new_len {
            return Err(libc::EINVAL);
        }
        // What is longer than it is to be goes with the old mapping.
        let from = pages.start..pages.end.min(pages.start + wants);
        self.moved(from, pages, wants, Some(to), keeps)
    }

    /// What is in the pages `from`, the first of those that are `given` up, in as many as are wanted: anywhere, or at an address.
    fn moved(
        &self,
        from: Range<u32>,
        given: Range<u32>,
        wants: u32,
        to: Option<usize>,
        keeps: bool,
    ) -> Result<*mut c_void, Refused> {
        let (room, prot) = self.one(&from)?;
        // Where nothing was ever to be touched nothing is promised, and there is nothing to copy.
        let place = self.place(to, wants, if room { OPEN } else { libc::PROT_NONE })?;
        let done = match room {
            true => self.fill_as(&place, &from, prot, keeps),
            false => Ok(()),
        };
        if let Err(errno) = done {
            self.leave(&place);
            if is_unreadable(prot) {
                // As it was. If that fails, too, it can be read, and the call's error stays the first.
                let _ = self.protect(from, prot);
            }
            return Err(errno);
        }
        if !keeps {
            self.unmap(given);
        }
        Ok(match place {
            Place::Served(pages) => self.at(&pages).0,
            Place::Other(at, _) => at,
        })
    }

    /// Whether pages of one mapping have room, and their protection.
    fn one(&self, pages: &Range<u32>) -> Result<(bool, c_int), Refused> {
        let mappings = self.mappings();
        let room = match mappings.mapped.look(pages.clone()).as_slice() {
            [(piece, room)] if piece == pages => *room,
            // Of several mappings.
            _ => return Err(libc::EFAULT),
        };
        match mappings.closed.look(pages.clone()).as_slice() {
            [] => Ok((room, OPEN)),
            [(piece, prot)] if piece == pages => Ok((room, *prot)),
            // Of several protections it is several mappings.
            _ => Err(libc::EFAULT),
        }
    }

    /// New memory for what moves.
    fn place(&self, to: Option<usize>, pages: u32, prot: c_int) -> Result<Place, Refused> {
        let len = pages as usize * PAGE_BYTES;
        let Some(to) = to else {
            let at = self.map(len, prot)? as usize;
            return Ok(Place::Served(self.pages(at, len).ok_or(libc::EFAULT)?));
        };
        if let Some(pages) = self.pages(to, len) {
            self.map_over(pages.clone(), prot, true)?;
            return Ok(Place::Served(pages));
        }
        if runtime::overlaps(to, len) {
            return Err(libc::EINVAL);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: not at addresses of ours, and the program says that what is there goes.
        let at = unsafe { raw::mmap(to as *mut c_void, len, prot, flags, -1, 0) };
        match at == libc::MAP_FAILED {
            true => Err(raw::errno()),
            false => Ok(Place::Other(at, len)),
        }
    }

    /// What is in some pages, and their protection; the pages are empty from then on if the program keeps them.
    fn fill_as(
        &self,
        place: &Place,
        from: &Range<u32>,
        prot: c_int,
        keeps: bool,
    ) -> Result<(), Refused> {
        let (to, len) = match place {
            Place::Served(pages) => self.at(pages),
            Place::Other(at, len) => (*at, *len),
        };
        self.copy_protected(from, to, prot)?;
        if prot != OPEN {
            match place {
                Place::Served(pages) => self.protect(pages.clone(), prot)?,
                // SAFETY: mapped just now, for what has this protection.
                Place::Other(..) if unsafe { raw::mprotect(to, len, prot) } != 0 => {
                    return Err(raw::errno());
                }
                Place::Other(..) => {}
            }
        }
        if keeps {
            if is_unreadable(prot) {
                self.protect(from.clone(), prot)?;
            }
            // SAFETY: mapped, and the program asked that what was in them be elsewhere.
            unsafe { self.heap.clear(from.clone()) }.map_err(|_| libc::ENOMEM)?;
        }
        Ok(())
    }

    fn leave(&self, place: &Place) {
        match place {
            Place::Served(pages) => self.unmap(pages.clone()),
            // SAFETY: mapped for what comes not; nobody knows of it.
            Place::Other(at, len) => drop(unsafe { raw::munmap(*at, *len) }),
        }
    }

    /// Copies pages; closed ones can be read from then on.
    fn copy_protected(
        &self,
        pages: &Range<u32>,
        to: *mut c_void,
        prot: c_int,
    ) -> Result<(), Refused> {
        let (from, len) = self.at(pages);
        if is_unreadable(prot) {
            self.protect(pages.clone(), libc::PROT_READ)?;
        }
        // SAFETY: both are mapped with so many bytes and can be read, and the new one written; they do not overlap; the program gives the old one up.
        unsafe {
            to.cast::<u8>()
                .copy_from_nonoverlapping(from.cast::<u8>(), len)
        };
        Ok(())
    }
}
