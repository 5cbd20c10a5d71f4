//! Addresses that are asked for. Alone in its process: nobody else maps anything meanwhile.

/// What a memory maps beside its addresses does not come to lie in them.
#[test]
fn a_memory_has_the_addresses_that_it_asks_for_where_they_are_the_next_to_be_given() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    const BYTES: usize = 1 << 40;
    let (none, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping, in which nothing is.
    let base = unsafe {
        let at = mmap_anonymous(std::ptr::null_mut(), 2 * BYTES, none, flags).expect("addresses");
        munmap(at, 2 * BYTES).expect("given back");
        // The upper half, from where the kernel gives first.
        (at as usize + BYTES).next_multiple_of(terrace_vm::ADDRESSES_ALIGN_BYTES)
    };
    let memory = terrace_vm::Memory::new(terrace_vm::Options {
        base: Some(base),
        reserve_bytes: BYTES - terrace_vm::ADDRESSES_ALIGN_BYTES,
        ..terrace_vm::Options::default()
    });
    match memory {
        Ok(memory) => assert_eq!(memory.addresses().0, base),
        Err(e) if e.to_string().contains("cannot be had") => panic!("{e}"),
        Err(e) => println!("not judged: {e}"),
    }
}
