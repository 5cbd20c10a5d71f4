//! Reading memory of this process that may not be there, or may go at any moment.
//!
//! Promises: what cannot be read is an answer. Never: raises a signal, or writes to what it reads.

use crate::PAGE_BYTES;

/// Copies from any address, as far as memory is there, at most up to the end of the page behind the first. How many bytes came: those from the beginning on.
///
/// The kernel does the reading, as for a debugger: an address that nothing has, or a page that is absent from a region where threads take their own faults, is an answer. But it brings in what others
/// have mapped (a file's pages, what another user of userfaultfd has to bring), and waits for that: not to be asked for what is not ours.
pub(crate) fn peek(address: usize, into: &mut [u8]) -> usize {
    let to_border = PAGE_BYTES - address % PAGE_BYTES;
    let (first, second) = (
        to_border.min(into.len()),
        into.len().saturating_sub(to_border).min(PAGE_BYTES),
    );
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: first + second,
    };
    // Only whole pieces come, so each page is one.
    let piece = |at: usize, len| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: len,
    };
    let remote = [
        piece(address, first),
        piece(address.wrapping_add(first), second),
    ];
    let pieces = if second == 0 { 1 } else { 2 };
    // SAFETY: the kernel writes to `into` only, as many bytes as it has; what it reads may be anything, and errors are answers.
    let came = unsafe {
        // A thread's number: the process's is of its first thread, which may have ended.
        let this = rustix::thread::gettid().as_raw_nonzero().get();
        libc::process_vm_readv(this, &local, 1, remote.as_ptr(), pieces, 0)
    };
    usize::try_from(came).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_after_the_first_thread_has_ended() {
        let bytes = [7; 100];
        // SAFETY: the child makes one thread, whose memory it does not share with its parent, and ends its first; neither takes a lock that another thread of the parent's may have had.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut thread = 0;
                let from = (&raw const bytes).cast_mut().cast();
                libc::pthread_create(&mut thread, std::ptr::null(), after_the_first, from);
                libc::syscall(libc::SYS_exit, 1);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status));
            assert_eq!(libc::WEXITSTATUS(status), 100);
        }
    }

    extern "C" fn after_the_first(bytes: *mut libc::c_void) -> *mut libc::c_void {
        let mut into = [0; 100];
        // The first thread's end is not told.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let came = peek(bytes as usize, &mut into);
        // SAFETY: ends the process.
        unsafe { libc::_exit(came as i32) }
    }

    #[test]
    fn what_is_there_comes_and_what_is_not_is_no_harm() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        let mut into = [0; 4000];
        for from in [7, 2011, 9999] {
            assert_eq!(peek(bytes.as_ptr() as usize + from, &mut into), 4000);
            assert_eq!(into, bytes[from..from + 4000]);
        }
        assert_eq!(peek(0, &mut into), 0);
        assert_eq!(peek(usize::MAX - 3, &mut into), 0);
        // Two pages, of which the second may not be read.
        let mapped = crate::sys::map_addresses(2 * PAGE_BYTES).unwrap();
        // SAFETY: the mapping is this test's.
        unsafe {
            let second = mapped.byte_add(PAGE_BYTES);
            assert_eq!(libc::mprotect(second, PAGE_BYTES, libc::PROT_NONE), 0);
            mapped.cast::<u8>().write_bytes(7, PAGE_BYTES);
        }
        let near = mapped as usize + PAGE_BYTES - 100;
        assert_eq!(peek(near, &mut into[..200]), 100);
        assert_eq!(into[..100], [7; 100]);
        assert_eq!(peek(near + 100, &mut into), 0);
        // SAFETY: as above, and nobody looks at it any more.
        unsafe { libc::munmap(mapped, 2 * PAGE_BYTES) };
    }
}
