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

/// An address in the loader's code.
pub fn loaders_function() -> usize {
    unsafe extern "C" {
        fn __tls_get_addr(of: *mut c_void) -> *mut c_void;
    }
    __tls_get_addr as unsafe extern "C" fn(*mut c_void) -> *mut c_void as usize
}
