//! Python with packages of PyPI, in a virtual environment beside the tests' binaries, made once. Never: touches the system's Python.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::said;

/// Several tests may want the same packages at once.
static MAKES: Mutex<()> = Mutex::new(());

/// A Python with these packages, kept beside the tests' binaries.
pub fn python(packages: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let build_dir = test.ancestors().nth(3).expect("a build directory");
    let home = build_dir.join("python").join(packages.join("-"));
    let program = home.join("bin/python");
    let done = home.join("installed");
    let _makes = MAKES.lock().unwrap_or_else(PoisonError::into_inner);
    if !done.is_file() {
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(&home)
            .output();
        let made = made.expect("python3 (apt-get install python3-venv)");
        assert!(made.status.success(), "{}", said(&made));
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ];
        let got = Command::new(&program).args(pip).args(packages).output();
        let got = got.expect("pip runs");
        assert!(got.status.success(), "{}", said(&got));
        std::fs::write(&done, "").expect("a mark");
    }
    program
}

/// Runs a script, which must end well.
pub fn run_python(program: &Path, script: &str, args: &[String]) {
    let ran = Command::new(program)
        .args(["-c", script])
        .args(args)
        .output();
    let ran = ran.expect("python runs");
    assert!(ran.status.success(), "{}", said(&ran));
}
