//! Making a pool: what is refused leaves nothing behind, on a file and on a device.

use std::fs::File;
use std::path::PathBuf;
use terrace_index::KeyMap;
use terrace_pool::{Contents, Options, Pool, PoolError, Superblock};

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
        if device.is_some() {
            let other = options(at.path().join("other"), 0, device);
            let refused = Pool::create(&other, &mut |_, _, _| {}).unwrap_err();
            assert!(refused.to_string().contains("a pool on it"), "{refused}");
            terrace_pool::destroy(&dir).unwrap();
            Pool::create(&other, &mut |_, _, _| {}).unwrap();
        } else {
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}

#[test]
fn a_link_to_a_device_that_is_not_there_is_no_place_for_a_pool() {
    let at = tempfile::tempdir().unwrap();
    let data = at.path().join("data");
    let missing = at.path().join("missing");
    std::os::unix::fs::symlink(&missing, &data).unwrap();
    let asked = options(at.path().into(), 64 << 20, None);
    for refused in [
        Pool::open_or_create(asked.clone(), &mut |_, _, _| {}).err(),
        Pool::create(&asked, &mut |_, _, _| {}).err(),
        Pool::open(asked.clone()).err(),
        terrace_pool::info(at.path()).err(),
    ] {
        assert!(
            matches!(refused, Some(PoolError::NoDevice { .. })),
            "{refused:?}"
        );
        assert_eq!(std::fs::read_link(&data).unwrap(), missing);
    }
    terrace_pool::destroy(at.path()).unwrap();
    assert!(!at.path().exists());
}

#[test]
fn what_cannot_be_opened_afterwards_is_not_made() {
    let at = tempfile::tempdir().unwrap();
    let asked = Options {
        threads: 3,
        ..options(at.path().join("pool"), 128 << 20, None)
    };
    let refused = Pool::open_or_create(asked.clone(), &mut |_, _, _| {}).err();
    let refused = refused.expect("32 MiB are too few for 3 lanes");
    assert!(
        matches!(refused, PoolError::Setting { .. }) && refused.to_string().contains("48 MiB"),
        "{refused}"
    );
    assert!(!asked.dir.exists());
    let fewer = Options {
        threads: 2,
        ..asked
    };
    Pool::open_or_create(fewer, &mut |_, _, _| {}).unwrap();
}

#[test]
fn a_size_that_is_no_whole_number_of_blocks_is_rounded_down() {
    let at = tempfile::tempdir().unwrap();
    for (contents, name) in [(Contents::Keys, "keys"), (Contents::Scratch, "scratch")] {
        let mut asked = Options {
            contents,
            ..options(at.path().join(name), (64 << 20) + 4097, None)
        };
        Pool::create(&asked, &mut |_, _, _| {}).unwrap();
        let len = || std::fs::metadata(asked.dir.join("data")).unwrap().len();
        assert_eq!(len(), (64 << 20) + 4096);
        asked.ssd_bytes = 0;
        asked.dram_bytes += 1;
        std::fs::remove_dir_all(&asked.dir).unwrap();
        Pool::create(&asked, &mut |_, _, _| {}).unwrap();
        assert_eq!(
            std::fs::metadata(asked.dir.join("data")).unwrap().len(),
            128 << 20
        );
    }
}

#[test]
fn what_is_no_pool_is_neither_removed_nor_overwritten() {
    let at = tempfile::tempdir().unwrap();
    let (dir, image) = (at.path().join("dir"), at.path().join("image"));
    let text = b"a backup of something".repeat(2 << 20);
    std::fs::create_dir(&dir).unwrap();
    for path in [&dir.join("data"), &image] {
        std::fs::write(path, &text).unwrap();
    }
    // Nor is anything of ours left beside it.
    let asked = [
        terrace_pool::destroy(&dir).unwrap_err(),
        terrace_pool::contents(&dir).unwrap_err(),
        Pool::open(options(dir.clone(), 0, None)).err().unwrap(),
    ];
    for refused in asked {
        assert!(matches!(refused, PoolError::NotAPool { .. }), "{refused}");
        assert!(!dir.join("lock").exists());
    }
    let short = at.path().join("short");
    std::fs::create_dir(&short).unwrap();
    std::fs::write(short.join("data"), "hello").unwrap();
    let refused = terrace_pool::destroy(&short).unwrap_err();
    assert!(matches!(refused, PoolError::NotAPool { .. }), "{refused}");
    assert_eq!(std::fs::read_dir(&short).unwrap().count(), 1);
    let on_it = options(at.path().join("pool"), 0, Some(image.clone()));
    let refused = Pool::create(&on_it, &mut |_, _, _| {}).unwrap_err();
    assert!(matches!(refused, PoolError::Setting { .. }), "{refused}");
    for path in [&dir.join("data"), &image] {
        assert!(std::fs::read(path).unwrap() == text);
    }
    // One behind a link, as after a device was made something else.
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(0).unwrap();
    file.set_len(64 << 20).unwrap();
    Pool::create(&on_it, &mut |_, _, _| {}).unwrap();
    std::fs::write(&image, &text).unwrap();
    let refused = terrace_pool::destroy(&on_it.dir).unwrap_err();
    assert!(matches!(refused, PoolError::NotAPool { .. }), "{refused}");
    // Half made on a device that holds something: the link goes, and nothing else.
    std::fs::rename(on_it.dir.join("data"), on_it.dir.join("data.part")).unwrap();
    terrace_pool::destroy(&on_it.dir).unwrap();
    assert!(!on_it.dir.exists() && std::fs::read(&image).unwrap() == text);
}

#[test]
fn what_is_half_made_is_removed() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().join("pool");
    std::fs::create_dir(&dir).unwrap();
    for name in ["data.part", "lock"] {
        File::create(dir.join(name)).unwrap();
    }
    terrace_pool::destroy(&dir).unwrap();
    assert!(!dir.exists());
}

/// The process ended before the link had its name: the device is no pool afterwards, and can be one again.
#[test]
fn what_is_half_made_on_a_device_is_no_pool() {
    let at = tempfile::tempdir().unwrap();
    let (dir, device) = (at.path().join("pool"), at.path().join("device"));
    File::create(&device).unwrap().set_len(64 << 20).unwrap();
    let options = options(dir.clone(), 64 << 20, Some(device));
    Pool::create(&options, &mut |_, _, _| {}).unwrap();
    std::fs::rename(dir.join("data"), dir.join("data.part")).unwrap();
    terrace_pool::destroy(&dir).unwrap();
    Pool::create(&options, &mut |_, _, _| {}).unwrap();
}

/// A scratch pool is made anew where another size is asked for: it is never there without being whole.
#[test]
fn a_scratch_pool_that_changes_its_size_is_whole_or_not_there() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().join("pool");
    let open = |ssd_bytes, progress: &mut dyn FnMut(&str, u64, u64)| {
        let asked = Options {
            contents: Contents::Scratch,
            prewrite: true,
            ..options(dir.clone(), ssd_bytes, None)
        };
        let make = |_, planned: &Superblock| KeyMap::new(planned.user_shards, planned.unit_bits());
        Pool::open_objects(asked, &make, progress).map(|pool| pool.superblock().pool)
    };
    let first = open(64 << 20, &mut |_, _, _| {}).unwrap();
    let refused = open(1 << 20, &mut |_, _, _| {}).unwrap_err();
    assert!(matches!(refused, PoolError::Setting { .. }), "{refused}");
    let again = open(64 << 20, &mut |_, _, _| panic!("it is there")).unwrap();
    assert_ne!(first, again, "what was in it counts no more");
    let ended = std::panic::catch_unwind(|| {
        open(96 << 20, &mut |_, _, _| {
            assert!(!dir.join("data").exists());
            panic!("the process ends here");
        })
    });
    assert!(ended.is_err() && !dir.join("data").exists());
    // What a process leaves that is ended meanwhile.
    File::create(dir.join("data.part")).unwrap();
    open(96 << 20, &mut |_, _, _| {}).unwrap();
    let made = std::fs::metadata(dir.join("data")).unwrap().len();
    assert_eq!((made, dir.join("data.part").exists()), (96 << 20, false));
}
