//! `terrace run --processes N`: up to N processes of a program have memory at a time, forked or started by it, each under its part of the cap.

use crate::support::{
    ABOVE_CAP_BYTES, cgroup::Cgroup, command, compiled, ended, ended_within, judge, reported,
};
use std::path::Path;
use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(120);

/// A worker of numpy's that has `mib` MiB, goes over them, and knows what comes out.
const WORKER: &str = "import numpy as np\n\
    def work(job):\n    \
        seed, mib = job\n    \
        rng = np.random.default_rng(seed)\n    \
        a = rng.integers(0, 1 << 60, size=mib << 17, dtype=np.int64)\n    \
        at = rng.integers(0, len(a), size=20000)\n    \
        got = (int(a.sum()), int(a[at].sum()), int(a[::512].sum()))\n    \
        rng = np.random.default_rng(seed)\n    \
        again = [rng.integers(0, 1 << 60, size=1 << 17, dtype=np.int64) for _ in range(4)]\n    \
        assert all(np.array_equal(part, a[n << 17:(n + 1) << 17]) for n, part in enumerate(again))\n    \
        assert got == (int(a.sum()), int(a[at].sum()), int(a[::512].sum()))\n    \
        return len(a)\n";

/// A script in a directory of its own, which has the worker beside it.
fn script(dir: &Path, text: &str) -> String {
    std::fs::write(dir.join("worker.py"), WORKER).expect("a file");
    let script = dir.join("script.py");
    std::fs::write(&script, text).expect("a file");
    script.to_str().expect("a name").to_owned()
}

fn pool_of(how: &str, workers: u32) -> String {
    format!(
        "import multiprocessing as mp, worker\n\
         if __name__ == '__main__':\n    \
             with mp.get_context('{how}').Pool({workers}) as pool:\n        \
                 print(sum(pool.map(worker.work, [(n, 96) for n in range({workers})], chunksize=1)))\n"
    )
}

fn lacks(said: &str) -> usize {
    said.lines()
        .filter(|line| line.contains("is not served"))
        .count()
}

#[test]
fn e2e_several_processes_are_served_under_one_cap() {
    const CAP_MIB: u64 = 256;
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let report = dir.path().join("report");
    for how in ["spawn", "forkserver", "fork"] {
        let script = script(dir.path(), &pool_of(how, 3));
        let group = Cgroup::new((CAP_MIB << 20) + 4 * ABOVE_CAP_BYTES);
        let group = group.map_err(|why| println!("not judged: {why}")).ok();
        let more = [
            "--processes",
            "4",
            "--ssd",
            "4G",
            "--report",
            report.to_str().expect("a name"),
        ];
        let mut command = command(CAP_MIB, &more, group.as_ref());
        let ended = ended_within(command.args(["/usr/bin/python3", &script]), LONGEST);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(out.trim(), ((3 * 96u64) << 17).to_string(), "{how}: {said}");
        assert_eq!(lacks(&said), 0, "{how}: {said}");
        judge(how, group.as_ref());
    }
    // Workers are ended by a signal as a rule, without a report: the first process has one.
    let first = std::fs::read_to_string(&report).expect("a report");
    assert!(first.contains("at its end"), "{first}");
}

#[test]
fn e2e_one_process_more_is_not_served_and_says_so() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let script = script(dir.path(), &pool_of("spawn", 3));
    let more = ["--processes", "2", "--ssd", "4G", "--report", "none"];
    let ended = ended_within(
        command(256, &more, None).args(["/usr/bin/python3", &script]),
        LONGEST,
    );
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(out.trim(), ((3 * 96u64) << 17).to_string(), "{said}");
    assert!(lacks(&said) >= 1, "{said}");
}

/// One after the other, each has the part of one that ended, by itself or by SIGKILL; what stays with the program's own says nothing.
#[test]
fn e2e_who_ended_has_no_part_any_more() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let one = "/usr/bin/python3 -c 'import worker; print(worker.work((7, 64)), flush=True)'";
    let killed = "/usr/bin/python3 -c 'import worker, time; print(worker.work((8, 64)), flush=True); time.sleep(100)'";
    let text = format!(
        "cd {dir}; for n in 1 2 3; do {one} || exit 1; {killed} > out & \
         while ! [ -s out ]; do sleep 0.05; done; kill -9 $!; wait; cat out; : > out; done; ls > /dev/null; {one} | cat",
        dir = dir.path().display()
    );
    script(dir.path(), "");
    let report = dir.path().join("report");
    let more = [
        "--processes",
        "2",
        "--ssd",
        "2G",
        "--report",
        report.to_str().expect("a name"),
    ];
    let ended = ended_within(
        command(128, &more, None).args(["bash", "-c", &text]),
        LONGEST,
    );
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!(out.lines().count(), 7, "{out}{said}");
    assert_eq!(lacks(&said), 0, "{said}");
    // Those of the first, which is the shell, and of the four that ended by themselves; of ls there is none.
    let files = std::fs::read_dir(dir.path()).expect("a directory");
    let names = files.map(|file| {
        file.expect("a file")
            .file_name()
            .into_string()
            .expect("a name")
    });
    let reports: Vec<String> = names.filter(|name| name.starts_with("report.")).collect();
    assert_eq!(reports.len(), 4, "{reports:?}");
    for name in reports {
        let text = std::fs::read_to_string(dir.path().join(name)).expect("a report");
        assert!(reported(&text, "faults_first_touch") > 16_000, "{text}");
        assert_eq!(reported(&text, "dram_cap_bytes"), 64 << 20, "{text}");
    }
}

#[test]
fn e2e_what_is_started_and_cannot_be_served_is_said() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let program = compiled(dir.path(), "here.c", &["-static"]);
    let text = format!("{} > /dev/null; echo well", program.display());
    let run = |processes: &str| {
        let more = ["--processes", processes, "--report", "none"];
        let ended = ended(command(128, &more, None).args(["bash", "-c", &text]));
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(out.contains("well"), "{out}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let said = run("2");
    assert!(
        said.contains("runs without Terrace: it is statically linked"),
        "{said}"
    );
    // With one, nothing that is started is served.
    let said = run("1");
    assert!(!said.contains("runs without"), "{said}");
}

/// What is small is as without Terrace: what it says, its signals, its limits, and who waits for its output.
#[test]
fn e2e_small_programs_that_are_started_see_nothing_of_it() {
    let same = [
        (
            "sleep 5 & p=$!; sleep 0.3; kill -USR2 $p; wait $p; echo $?",
            "140\n",
        ),
        (
            "x=$(ls /no-such-file 2>&1 | wc -l); y=$(true 2>&1); echo $x $y",
            "1\n",
        ),
        ("sh -c 'ulimit -f 1000; echo well'; true", "well\n"),
        (
            "env -u TERRACE_RUN_NAME echo well; env -i /bin/echo well",
            "well\nwell\n",
        ),
        // One that goes on in the background keeps nothing of the caller's open.
        (
            "x=$(sh -c 'sleep 30 > /dev/null 2>&1 & echo well' 2>&1); echo $x",
            "well\n",
        ),
    ];
    for (script, expected) in same {
        // Three do not divide pages into whole ones.
        let mut command = command(256, &["--processes", "3"], None);
        let ended = ended_within(
            command.args(["bash", "-c", script]),
            Duration::from_secs(20),
        );
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            expected,
            "{script}: {said}"
        );
        // The first process has its report there.
        let lines = said
            .lines()
            .filter(|line| line.starts_with("terrace run: "))
            .count();
        assert_eq!(lines, 1, "{script}: {said}");
    }
    // What cannot be served goes on without, and says so.
    for limit in ["-v 8000000", "-n 9"] {
        let script = format!(
            "ulimit {limit}; ls /bin/true; /usr/bin/python3 -c 'print(len(bytearray(60 << 20)))'"
        );
        let mut command = command(256, &["--processes", "2", "--report", "none"], None);
        let ended = ended(command.args(["bash", "-c", &format!("({script}); true")]));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(out, "/bin/true\n62914560\n", "{said}");
        assert!(
            said.contains("are needed") || said.contains("is not served"),
            "{said}"
        );
    }
}

#[test]
fn e2e_parts_that_are_too_small_are_refused() {
    let ended = ended(command(64, &["--processes", "64"], None).arg("true"));
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("1048576 for each of 64 processes"), "{said}");
}
