//! Programs that fork under `terrace run`: each process sees its own memory, whatever the others write; what children held comes back.

mod support;

use support::{command, compiled, ended, group, judge, output, reported};

const CAP_MIB: u64 = 32;

#[test]
fn e2e_children_see_memory_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "fork.c", &[]);
    let group = group(CAP_MIB);
    let (well, said) = output(command(CAP_MIB, &["--ssd", "1G"], group.as_ref()).arg(program));
    assert!(well && said.contains("OK"), "{said}");
    assert!(reported(&said, "served_malloc_bytes") > 3 * (CAP_MIB << 20));
    judge("fork", group.as_ref());
}

#[test]
fn e2e_a_fork_without_room_for_its_memory_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = compiled(dir.path(), "fork.c", &[]);
    // Room for one version, and not for two.
    let (well, said) = output(command(CAP_MIB, &["--ssd", "170M"], None).arg(program));
    assert!(
        !well && said.contains("fork: Cannot allocate memory"),
        "{said}"
    );
}

#[test]
fn e2e_shells_and_what_they_start_run_as_ever() {
    let script = "x=$(seq 1 300000 | tail -n1); y=$(printf '%s' \"$x\" | (read -r a; echo \"$a\")); \
                  seq 1 200000 | sort -rn | head -n1; echo \"$x $y\"; exit 7";
    let mut command = command(CAP_MIB, &["--report", "none"], None);
    let ended = ended(command.args(["bash", "-c", script]));
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said.trim(), "200000\n300000 300000");
    assert_eq!(ended.status.code(), Some(7));
    assert!(
        ended.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}
