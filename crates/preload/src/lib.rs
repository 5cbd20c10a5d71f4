//! libterrace_preload: what `terrace run` puts in front of an unmodified program's memory.
//!
//! Here: the functions of malloc's and mmap's families, which serve what is large enough from a heap over the pool (`vm`), and pass the rest on. Faults
//! are taken in the program's threads, whose system calls are dispatched (`dispatch`), or by handler threads where that cannot be or was asked for: so the kernel's own accesses work. Promises: the program sees memory as the C library and the kernel promise
//! it; what cannot be served is refused with the errno that means so. Never: asks the program's malloc for memory of its own, or touches served memory
//! with a lock held that a fault needs.

// What tests do not call, since they must not stand in front of their own functions, is used all the same.
#![cfg_attr(test, allow(dead_code))]

mod answer;
mod arena;
mod becomes;
mod calls;
mod cancel;
mod descriptors;
mod direct;
#[cfg_attr(not(target_arch = "x86_64"), path = "undispatched.rs")]
mod dispatch;
mod door;
mod environment;
mod fork;
mod forked;
mod given;
mod grow;
mod keeper;
mod loaded;
mod malloc;
mod mapped;
mod mappings;
mod maps;
mod moves;
mod next;
mod opening;
mod own;
mod raw;
mod remote;
mod report;
mod reserved;
mod rings;
mod runtime;
mod sandbox;
mod serve;
mod settings;
mod shares;
mod small;
mod streams;
mod sync;
mod threads;
mod tls;
mod token;
mod wire;

/// Run by the loader before the program, and before the constructors of its libraries.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    prepare();
    if dispatch::is_on() {
        tls::dispatch_now();
    }
}

fn prepare() {
    let _inside = tls::enter();
    becomes::prepare();
    // Also what is not served has these functions in front of the C library's.
    next::prepare();
    malloc::prepare();
    streams::prepare();
    if !settings::are_there() {
        return;
    }
    if loaded::program_is_go() {
        // Who started it has said so: its handlers of signals know no others, and its memory is the kernel's.
        return;
    }
    if let Some(limit) = reserved::too_low_a_limit() {
        reserved::say_too_low(limit);
        if settings::is_first() {
            raw::exit(opening::EXIT_CANNOT);
        }
        return;
    }
    match settings::Settings::read() {
        Ok(Some(settings)) => {
            becomes::is_served(settings.processes > 1);
            descriptors::prepare();
            // A program that gives its rights up later still has this one.
            terrace_vm::hold_device();
            fork::register();
            report::prepare(settings.report.clone());
            let dispatch = settings.dispatch;
            small::prepare(
                settings.unserved_bytes,
                own::small_bytes(settings.dram_bytes),
            );
            opening::prepare(settings);
            match dispatch {
                settings::Dispatch::Not => {}
                settings::Dispatch::IfPossible => dispatch::begin(false, report::handler()),
                settings::Dispatch::Must => dispatch::begin(true, report::handler()),
            }
        }
        Ok(None) => {}
        // A program took the others away from one that it started.
        Err(_) if !settings::is_first() => {}
        Err(name) => raw::die(format_args!("{name} is not what it should be")),
    }
}
