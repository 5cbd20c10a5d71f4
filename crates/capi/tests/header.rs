//! `include/terrace.h` is what cbindgen makes of the sources now. `WRITE_HEADER=1` writes it.

use std::path::Path;

#[test]
fn the_header_is_not_stale() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_crate(here)
        .with_config(config)
        .generate()
        .expect("a header")
        .write(&mut made);
    let header = here.join("include/terrace.h");
    if std::env::var_os("WRITE_HEADER").is_some() {
        std::fs::write(&header, &made).expect("written");
    }
    let there = std::fs::read(&header).expect("include/terrace.h");
    assert!(
        there == made,
        "include/terrace.h is stale: WRITE_HEADER=1 cargo test -p terrace-capi --test header"
    );
}
