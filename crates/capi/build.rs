//! Gives the shared library its name for the linker: programs ask for `libterrace.so.0`, whatever 0.x it is. Never: writes a file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libterrace.so.0");
}
