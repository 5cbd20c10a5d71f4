//! Which file a program is, and whether a library can be put in front of its memory.
//!
//! Promises: what is refused is refused with the reason; what cannot be read is not refused for that. Never: runs anything.

use anyhow::anyhow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts whose interpreter is a script whose interpreter…
const SCRIPTS_MAX: usize = 4;
/// Bytes of a file's head that are looked at.
const HEAD_BYTES: usize = 4096;
const SEGMENT_INTERPRETER: u32 = 3;
const SEGMENT_NOTE: u32 = 4;
/// The type of the note by which Go's linker names a build.
const NOTE_GO_BUILD: u32 = 4;
/// The longest segment that is read.
const SEGMENT_BYTES_MAX: u64 = 1 << 16;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// The file that a shell would run for this name.
pub fn find(name: &OsStr) -> Result<PathBuf, anyhow::Error> {
    let is_program = |path: &Path| {
        let found = std::fs::metadata(path).ok();
        found.is_some_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match is_program(&path) {
            true => Ok(path),
            false => Err(anyhow!("{} is no program", path.display())),
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&dirs).map(|dir| dir.join(name));
    paths
        .find(|path| is_program(path))
        .ok_or_else(|| anyhow!("{} is not found in PATH", name.display()))
}

/// Whether a program can be served; the error says why not.
pub fn check(path: &Path) -> Result<(), String> {
    check_script(path, SCRIPTS_MAX)
}

fn check_script(path: &Path, deeper: usize) -> Result<(), String> {
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    let mode = file
        .metadata()
        .map_or(0, |found| found.permissions().mode());
    let mut head = Vec::new();
    if Read::take(&file, HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .is_err()
    {
        return Ok(());
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        let interpreter = interpreter(line);
        return match interpreter {
            Some(interpreter) if deeper > 0 => check_script(&interpreter, deeper - 1)
                .map_err(|why| format!("its interpreter {}: {why}", interpreter.display())),
            _ => Ok(()),
        };
    }
    if !head.starts_with(b"\x7fELF") {
        return Err("it is neither an ELF program nor a script with a #! line".into());
    }
    if mode & 0o6000 != 0 && changes_user(&file, mode) {
        return Err(
            "it runs as another user (setuid or setgid), and the loader ignores LD_PRELOAD then; \
             start it as that user"
                .into(),
        );
    }
    if has_capabilities(path) {
        return Err(
            "it has capabilities of its own (see getcap), and the loader ignores LD_PRELOAD then; take a copy without them"
                .into(),
        );
    }
    check_elf(&head, |at, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    })
}

/// Whether running it changes user or group.
fn changes_user(file: &File, mode: u32) -> bool {
    let Ok(found) = file.metadata() else {
        return true;
    };
    let user = mode & 0o4000 != 0 && found.uid() != rustix::process::getuid().as_raw();
    let group = mode & 0o2000 != 0 && found.gid() != rustix::process::getgid().as_raw();
    user || group
}

fn has_capabilities(path: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(path, c"security.capability", &mut value[..]).is_ok()
}

/// What a #! line names: through env, the program that it would find.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let first = PathBuf::from(OsString::from(OsStr::from_bytes(words.next()?)));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(named)).ok()
}

/// Looks at an ELF file's head and segments; `read` reads bytes of the file.
fn check_elf(head: &[u8], read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Result<(), String> {
    const CLASS_64: u8 = 2;
    const ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
    if head.len() < 64 || head[4] != CLASS_64 || head[5] != ORDER {
        return Err("it is for another kind of machine (not 64 bits)".into());
    }
    if half(head, 18) != Some(MACHINE) {
        return Err("it is for another kind of processor".into());
    }
    let (start, size, count) = (long(head, 32), half(head, 54), half(head, 56));
    let (Some(start), Some(size), Some(count)) = (start, size, count) else {
        return Ok(());
    };
    let mut loader = None;
    for n in 0..u64::from(count) {
        let Some(segment) = read(start.saturating_add(n * u64::from(size)), 56) else {
            return Ok(());
        };
        let kind = word(&segment, 0).unwrap_or(0);
        let (at, len) = (
            long(&segment, 8).unwrap_or(0),
            long(&segment, 32).unwrap_or(0),
        );
        let contents = || read(at, len.min(SEGMENT_BYTES_MAX) as usize);
        match kind {
            SEGMENT_INTERPRETER => loader = contents(),
            SEGMENT_NOTE if contents().is_some_and(|notes| is_go(&notes)) => {
                return Err(
                    "it is a Go program, whose runtime asks the kernel for memory itself, past every library"
                        .into(),
                );
            }
            _ => {}
        }
    }
    match loader {
        None => Err("it is statically linked, so no library can be put in front of its malloc; link it dynamically".into()),
        Some(name) if String::from_utf8_lossy(&name).contains("musl") => {
            Err("it is for musl, and the preload library is for glibc".into())
        }
        Some(_) => Ok(()),
    }
}

/// Whether one of the notes is that of Go's linker.
fn is_go(notes: &[u8]) -> bool {
    let mut at = 0;
    while let (Some(name), Some(len), Some(kind)) =
        (word(notes, at), word(notes, at + 4), word(notes, at + 8))
    {
        let (name, len) = (name as usize, len as usize);
        let is = notes.get(at + 12..).is_some_and(|n| n.starts_with(b"Go\0"));
        if is && kind == NOTE_GO_BUILD {
            return true;
        }
        at += 12
            + name.next_multiple_of(4).min(notes.len())
            + len.next_multiple_of(4).min(notes.len());
    }
    false
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_can_be_served_and_other_files_cannot() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(check(&own), Ok(()));
        let dir = std::env::temp_dir().join(format!("terrace-program-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("program");
        let refused = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            check(&file).expect_err("refused")
        };
        assert!(refused(b"hello").contains("neither"));
        let mut elf = std::fs::read(&own).unwrap();
        elf[18] ^= 0xff;
        assert!(refused(&elf).contains("processor"));
        elf[18] ^= 0xff;
        elf[4] = 1;
        assert!(refused(&elf).contains("64 bits"));
        // Cut off at any length it ends in an answer.
        elf[4] = 2;
        for len in (0..elf.len().min(5000)).step_by(7) {
            std::fs::write(&file, &elf[..len]).unwrap();
            let _ = check(&file);
        }
        std::fs::write(&file, format!("#!/usr/bin/env -S x=1 {}\n", own.display())).unwrap();
        assert_eq!(check(&file), Ok(()));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn notes_of_go_are_known_and_others_are_not() {
        let note = |name: &[u8; 4], kind: u32| {
            let mut bytes = Vec::new();
            for word in [4u32, 8, kind] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(name);
            bytes.extend([7; 8]);
            bytes
        };
        let mut notes = note(b"GNU\0", 3);
        assert!(!is_go(&notes));
        notes.extend(note(b"Go\0\0", 4));
        assert!(is_go(&notes));
        assert!(!is_go(&[0xff; 30]));
    }

    #[test]
    fn a_name_is_found_as_a_shell_finds_it() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/etc/passwd")).is_err());
        assert!(find(OsStr::new("no-such-program-anywhere")).is_err());
    }
}
