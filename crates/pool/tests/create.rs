//! Making a pool: what is refused leaves nothing behind, on a file and on a device.

use std::fs::File;
use std::path::PathBuf;
use terrace_pool::{Options, Pool, PoolError};

fn options(dir: PathBuf, ssd_bytes: u64, device: Option<PathBuf>) -> Options {
    Options {
        dir,
        dram_bytes: 32 << 20,
        ssd_bytes,
        device,
        prewrite: false,
        ..Options::default()
    }
}

#[test]
fn a_refused_pool_leaves_nothing_and_a_better_one_can_follow() {
    let at = tempfile::tempdir().unwrap();
    let device = at.path().join("device");
    File::create(&device).unwrap().set_len(1 << 20).unwrap();
    for device in [None, Some(device)] {
        let dir = at.path().join("pool");
        let small = options(dir.clone(), 1 << 20, device.clone());
        let refused = Pool::create(&small, &mut |_, _, _| {});
        assert!(
            matches!(refused, Err(PoolError::Setting { .. })),
            "{refused:?}"
        );
        assert!(!dir.exists());
        if let Some(device) = &device {
            let file = File::options().write(true).open(device).unwrap();
            file.set_len(64 << 20).unwrap();
        }
        let large = options(dir.clone(), 64 << 20, device.clone());
        let made = Pool::create(&large, &mut |_, _, _| {}).unwrap();
        let opened = Pool::open(large.clone()).unwrap();
        assert_eq!(opened.superblock().pool, made.pool);
        opened.close().unwrap();
        assert_eq!(dir.join("data").is_symlink(), device.is_some());
        drop(opened);
        assert!(matches!(
            Pool::create(&large, &mut |_, _, _| {}),
            Err(PoolError::Exists(_))
        ));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
