//! Where the code of loaded libraries lies.
//!
//! Promises: what the loader says. Never: keeps anything.

use libc::{c_int, c_void};

/// The part of a library, loaded with one protection, that an address is in: start and length. None: of no library.
pub fn part_with(address: usize) -> Option<(usize, usize)> {
    struct Asked {
        address: usize,
        found: Option<(usize, usize)>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        asked: *mut c_void,
    ) -> c_int {
        // SAFETY: what dl_iterate_phdr gives, and what was handed to it.
        let (base, parts, asked) = unsafe {
            let info = &*info;
            (
                info.dlpi_addr as usize,
                std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()),
                &mut *asked.cast::<Asked>(),
            )
        };
        let parts = parts.iter().filter(|part| part.p_type == libc::PT_LOAD);
        asked.found = parts
            .map(|part| (base + part.p_vaddr as usize, part.p_memsz as usize))
            .find(|(start, len)| asked.address.wrapping_sub(*start) < *len);
        asked.found.is_some().into()
    }
    let mut asked = Asked {
        address,
        found: None,
    };
    // SAFETY: a function of that kind, and what it takes, which lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut asked).cast()) };
    asked.found
}

/// The type of the note by which Go's linker names a build.
const NOTE_GO_BUILD: u32 = 4;

/// Whether one of an ELF file's notes is that of Go's linker.
pub fn are_go(mut notes: &[u8]) -> bool {
    let word = |at: usize, notes: &[u8]| {
        let bytes = notes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    while let (Some(name), Some(len), Some(kind)) = (word(0, notes), word(4, notes), word(8, notes))
    {
        if kind == NOTE_GO_BUILD && notes[12..].starts_with(b"Go\0") {
            return true;
        }
        let padded = |bytes: u32| (bytes as usize).next_multiple_of(4);
        let next = 12usize
            .saturating_add(padded(name))
            .saturating_add(padded(len));
        notes = notes.get(next..).unwrap_or_default();
    }
    false
}

/// Whether this process runs a program of Go's.
pub fn program_is_go() -> bool {
    // SAFETY: what the kernel tells of the program that it started: its table of parts, which is mapped, and how many there are.
    let parts = unsafe {
        let (at, count) = (
            libc::getauxval(libc::AT_PHDR),
            libc::getauxval(libc::AT_PHNUM),
        );
        if at == 0 {
            return false;
        }
        std::slice::from_raw_parts(at as *const libc::Elf64_Phdr, count as usize)
    };
    let table = parts.iter().find(|part| part.p_type == libc::PT_PHDR);
    let base = table.map_or(0, |table| {
        (parts.as_ptr() as u64).wrapping_sub(table.p_vaddr)
    });
    let notes = parts.iter().filter(|part| part.p_type == libc::PT_NOTE);
    notes.into_iter().any(|part| {
        let at = base.wrapping_add(part.p_vaddr) as *const u8;
        // SAFETY: notes are mapped with the program.
        are_go(unsafe { std::slice::from_raw_parts(at, part.p_memsz as usize) })
    })
}

/// An address in the loader's code.
pub fn loaders_function() -> usize {
    unsafe extern "C" {
        fn __tls_get_addr(of: *mut c_void) -> *mut c_void;
    }
    __tls_get_addr as unsafe extern "C" fn(*mut c_void) -> *mut c_void as usize
}
