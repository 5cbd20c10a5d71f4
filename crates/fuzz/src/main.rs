//! The driver that is guided by coverage: libFuzzer around the target that TERRACE_FUZZ_TARGET names. Built by scripts/fuzz.sh, which
//! has the compiler count what is covered. Never: part of an ordinary build.
#![no_main]

use std::sync::OnceLock;

use terrace_fuzz::{Target, target};

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("TERRACE_FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| panic!("TERRACE_FUZZ_TARGET is `{name}`"))
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = chosen();
    if data.len() <= target.input_max_bytes {
        (target.run)(data);
    }
});
