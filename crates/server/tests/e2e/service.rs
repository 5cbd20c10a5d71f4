//! Terrace as a service: what the service manager is told, the unit, the manual and the completions, `make install`'s files and the
//! Debian package, which is taken apart and whose server is started from where it lies. Nothing is installed on this machine.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::resp::Client;
use crate::support::{TempDir, binary, free_addr, said};
use rustix::process::{Pid, Signal, kill_process};

const TOLD_MAX: Duration = Duration::from_secs(60);

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the project")
        .to_path_buf()
}

/// Runs a script of the project with settings, as somebody whose own files are for nobody else; what it printed.
fn script(args: &[&str], settings: &[(&str, &Path)]) -> String {
    let mut command = Command::new("bash");
    command.args(["-c", "umask 077; exec bash \"$@\"", "script"]);
    command.current_dir(project()).args(args);
    command.env("TERRACE_BIN", binary());
    for (name, value) in settings {
        command.env(name, value);
    }
    let output = command.output().expect("bash");
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All files below a directory, by their path from it.
fn files(dir: &Path) -> Vec<String> {
    let output = Command::new("find")
        .current_dir(dir)
        .args([".", "!", "-type", "d", "-printf", "%P\n"])
        .output();
    let text = String::from_utf8(output.expect("find").stdout).expect("UTF-8");
    let mut all: Vec<String> = text.lines().map(str::to_string).collect();
    all.sort();
    all
}

/// What below a directory not everybody may read.
fn closed(dir: &Path) -> String {
    let output = Command::new("find")
        .arg(dir)
        .args(["-mindepth", "1", "!", "-type", "l", "!", "-perm", "-o=r"])
        .output();
    String::from_utf8(output.expect("find").stdout).expect("UTF-8")
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn e2e_the_service_manager_is_told() {
    let dir = TempDir::new("notify");
    for name in ["@terrace-test", "path"] {
        let unique = format!("{name}-{}", std::process::id());
        let (socket, value) = match unique.strip_prefix('@') {
            Some(name) => {
                use std::os::linux::net::SocketAddrExt;
                let addr = std::os::unix::net::SocketAddr::from_abstract_name(name);
                let addr = addr.expect("an address");
                (
                    UnixDatagram::bind_addr(&addr).expect("bound"),
                    unique.clone(),
                )
            }
            None => {
                let path = dir.path().join(&unique);
                let value = path.to_str().expect("UTF-8").to_string();
                (UnixDatagram::bind(&path).expect("bound"), value)
            }
        };
        socket.set_read_timeout(Some(TOLD_MAX)).expect("a timeout");
        let addr = free_addr();
        let child = Command::new(binary())
            .args(["serve", "--dram", "64M", "--ssd", "256M", "--resp"])
            .arg(addr.to_string())
            .arg("--pool")
            .arg(dir.pool())
            .env("NOTIFY_SOCKET", &value)
            .stderr(Stdio::null())
            .spawn();
        let mut child = Running(child.expect("the server starts"));
        let told = || {
            let mut buf = [0; 500];
            let n = socket.recv(&mut buf).expect("the manager is told");
            String::from_utf8_lossy(&buf[..n]).into_owned()
        };
        assert_eq!(told(), "STATUS=opening the pool");
        let ready = told();
        assert!(ready.starts_with("READY=1\nSTATUS=serving on "), "{ready}");
        // Whoever connects now is served.
        Client::connect(addr).words("PING");
        kill_process(Pid::from_child(&child.0), Signal::TERM).expect("a signal");
        assert!(told().starts_with("STOPPING=1\n"));
        assert!(child.0.wait().expect("its end").success());
    }
}

/// What the server's part of an installation is, below a prefix.
const SERVER_FILES: &[&str] = &[
    "bin/terrace",
    "share/bash-completion/completions/terrace",
    "share/fish/vendor_completions.d/terrace.fish",
    "share/man/man1/terrace-serve.1",
    "share/man/man1/terrace.1",
];

#[test]
fn e2e_make_installs_the_server_and_removes_it() {
    let dir = TempDir::new("install");
    let settings = [
        ("DESTDIR", Path::new("")),
        ("PREFIX", &dir.path().join("there")),
    ];
    script(&["scripts/install.sh", "install-server"], &settings);
    let there = dir.path().join("there");
    let all = files(&there);
    for file in SERVER_FILES.iter().chain(&[
        "etc/terrace/terrace.toml",
        "lib/systemd/system/terrace.service",
        "share/zsh/site-functions/_terrace",
    ]) {
        assert!(all.iter().any(|f| f == file), "no {file} in {all:?}");
    }
    assert!(
        all.iter().any(|f| f.ends_with("/terrace-pool-check.1")),
        "{all:?}"
    );
    assert!(!all.iter().any(|f| f.contains("-help")), "{all:?}");
    let manual = std::fs::read_to_string(there.join("share/man/man1/terrace-serve.1"));
    let manual = manual.expect("a page");
    for flag in ["tls\\-cert", "requirepass\\-file", "memcached"] {
        assert!(manual.contains(flag), "no {flag} in the manual");
    }
    let unit = there.join("lib/systemd/system/terrace.service");
    let text = std::fs::read_to_string(&unit).expect("a unit");
    let start = format!("ExecStart={}/bin/terrace serve", there.display());
    assert!(text.contains(&start) && !text.contains("@PREFIX"), "{text}");
    // Wrong settings (exit code 2) stay wrong.
    assert!(text.contains("\nRestartPreventExitStatus=2\n"), "{text}");
    if let Ok(output) = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&unit)
        .output()
    {
        // It says more about this machine's other units, and about a manual that is not in its path.
        let bad: Vec<String> = said(&output)
            .lines()
            .filter(|l| l.contains("terrace.service") && !l.contains("Command 'man"))
            .map(str::to_string)
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
    // Settings that somebody changed stay, now and later.
    let toml = there.join("etc/terrace/terrace.toml");
    std::fs::write(&toml, "changed").expect("a file");
    script(&["scripts/install.sh", "install-server"], &settings);
    script(&["scripts/install.sh", "uninstall"], &settings);
    assert_eq!(files(&there), ["etc/terrace/terrace.toml"]);
    assert_eq!(std::fs::read_to_string(&toml).expect("settings"), "changed");
}

#[test]
fn e2e_the_debian_package_holds_a_server_that_starts() {
    let dir = TempDir::new("deb");
    let out = dir.path().to_str().expect("UTF-8");
    let said_by_it = script(&["scripts/deb.sh", out], &[]);
    let packages: Vec<&str> = said_by_it.lines().collect();
    let [library, development, package] = packages[..] else {
        panic!("not three packages: {said_by_it}");
    };
    for (package, parts) in [
        (library, ["usr/lib/libterrace.so.0", "DEBIAN/triggers"]),
        (
            development,
            ["usr/include/terrace.h", "usr/lib/pkgconfig/terrace.pc"],
        ),
    ] {
        let root = dir.path().join(package.replace('/', "-"));
        let taken = Command::new("dpkg-deb")
            .args(["-R", package])
            .arg(&root)
            .status();
        assert!(taken.expect("dpkg-deb").success());
        let all = files(&root);
        for file in parts {
            assert!(all.iter().any(|f| f == file), "no {file} in {all:?}");
        }
        assert_eq!(closed(&root), "");
    }
    let root = dir.path().join("root");
    let taken = Command::new("dpkg-deb")
        .args(["-R", package])
        .arg(&root)
        .output();
    let taken = taken.expect("dpkg-deb");
    assert!(taken.status.success(), "{}", said(&taken));
    let all = files(&root);
    for file in [
        "DEBIAN/conffiles",
        "DEBIAN/postinst",
        "DEBIAN/postrm",
        "DEBIAN/prerm",
        "etc/terrace/terrace.toml",
        "lib/systemd/system/terrace.service",
        "usr/bin/terrace",
        "usr/lib/libterrace_preload.so",
        "usr/share/doc/terrace/copyright",
        "usr/share/man/man1/terrace-serve.1.gz",
    ] {
        assert!(all.iter().any(|f| f == file), "no {file} in {all:?}");
    }
    assert_eq!(closed(&root), "");
    let control = std::fs::read_to_string(root.join("DEBIAN/control")).expect("control");
    assert!(control.contains("Depends: libc6 (>= 2."), "{control}");
    let maintainer = control.lines().find(|l| l.starts_with("Maintainer: "));
    assert!(
        maintainer.is_some_and(|l| l.contains(" <") && l.contains('@')),
        "{control}"
    );
    let sums = Command::new("md5sum")
        .args(["-c", "--quiet", "DEBIAN/md5sums"])
        .current_dir(&root)
        .status();
    assert!(sums.expect("md5sum").success());

    // Its server with its settings, moved to where this test may write.
    let toml = std::fs::read_to_string(root.join("etc/terrace/terrace.toml")).expect("settings");
    let state = root.join("var/lib/terrace");
    std::fs::create_dir_all(&state).expect("a directory");
    let addr = free_addr();
    let toml = toml
        .replace("/var/lib/terrace", state.to_str().expect("UTF-8"))
        .replace("127.0.0.1:6380", &addr.to_string());
    let settings = dir.path().join("terrace.toml");
    std::fs::write(&settings, toml).expect("a file");
    let child = Command::new(root.join("usr/bin/terrace"))
        .args(["serve", "--config"])
        .arg(&settings)
        .stderr(Stdio::null())
        .spawn();
    let mut child = Running(child.expect("the packaged server starts"));
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(addr).is_err() {
        assert!(begun.elapsed() < TOLD_MAX, "it does not serve");
        assert!(child.0.try_wait().expect("a child").is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Client::connect(addr).words("SET k v").is_ok());
    kill_process(Pid::from_child(&child.0), Signal::TERM).expect("a signal");
    assert!(child.0.wait().expect("its end").success());

    // A purge keeps data and names it; without data nothing stays.
    let purge = || {
        let script = root.join("DEBIAN/postrm");
        let ran = Command::new("sh")
            .arg(script)
            .arg("purge")
            .env("DPKG_ROOT", &root)
            .output();
        let ran = ran.expect("sh");
        assert!(ran.status.success(), "{}", said(&ran));
        said(&ran)
    };
    let settings = root.join("etc/terrace");
    std::fs::write(settings.join("server.key"), "somebody's").expect("a file");
    assert!(purge().contains("the data in"));
    assert!(state.join("pool").exists() && !settings.join("terrace.toml").exists());
    std::fs::remove_file(settings.join("server.key")).expect("the administrator's own");
    std::fs::remove_dir_all(state.join("pool")).expect("the administrator deletes it");
    assert_eq!(purge(), "");
    assert!(!state.exists() && !settings.exists());
}

/// The package's scripts on a machine made of files: what they ask of systemd is written down, and answered from there.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(TempDir::new("maintained"));
        for dir in ["bin", "run/systemd/system", "etc/terrace", "state"] {
            std::fs::create_dir_all(machine.path(dir)).expect("a directory");
        }
        let systemctl = r#"case "$1" in
            enable) echo enabled >"$STATE/enabled" ;;
            disable) echo disabled >"$STATE/enabled" ;;
            is-enabled) cat "$STATE/enabled" && grep -q enabled "$STATE/enabled" ;;
            start) echo active >"$STATE/active" ;;
            stop) echo inactive >"$STATE/active" ;;
            is-active) [ "$2" = --quiet ] || cat "$STATE/active"; grep -qx active "$STATE/active" ;;
            esac"#;
        let note = r#"echo "$0" >>"$STATE/called""#;
        for (name, text) in [
            ("systemctl", systemctl),
            ("adduser", ":"),
            ("getent", ":"),
            ("chgrp", ":"),
            ("deluser", note),
        ] {
            use std::os::unix::fs::PermissionsExt;
            let path = machine.path("bin").join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a file");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(path, mode).expect("a mode");
        }
        machine.set("enabled", "disabled");
        machine.set("active", "inactive");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set(&self, what: &str, to: &str) {
        std::fs::write(self.path("state").join(what), format!("{to}\n")).expect("a file");
    }

    fn is(&self, what: &str, state: &str) -> bool {
        let text = std::fs::read_to_string(self.path("state").join(what));
        text.expect("a file").trim() == state
    }

    /// Runs scripts with their arguments, as dpkg does.
    fn dpkg(&self, calls: &[&str]) {
        for call in calls {
            let mut words = call.split(' ');
            let script = project().join("packaging").join(words.next().expect("one"));
            let here = self.0.path().to_str().expect("UTF-8");
            let mut text = std::fs::read_to_string(script).expect("a script");
            for place in ["/run/", "/etc/terrace", "/var/lib/terrace"] {
                text = text.replace(place, &format!("{here}{place}"));
            }
            let path = std::env::var("PATH").unwrap_or_default();
            let ran = Command::new("sh")
                .args(["-c", &text, "script"])
                .args(words)
                .env("STATE", self.path("state"))
                .env("PATH", format!("{here}/bin:{path}"))
                .output();
            let ran = ran.expect("sh");
            assert!(ran.status.success(), "{call}: {}", said(&ran));
        }
        let left = std::fs::read_dir(self.path("run")).expect("it is there");
        assert_eq!(left.count(), 1, "{calls:?} leave something in /run");
    }
}

#[test]
fn the_packages_scripts_leave_the_server_as_they_found_it() {
    let first = "postinst configure";
    let removed = ["prerm remove", "postrm remove"];
    let upgraded = [
        "prerm upgrade 2",
        "postrm upgrade 2",
        "postinst configure 1",
    ];
    let machine = Machine::new();
    machine.dpkg(&[first]);
    assert!(machine.is("enabled", "enabled") && machine.is("active", "active"));
    machine.dpkg(&upgraded);
    assert!(machine.is("active", "active"), "after an upgrade");
    for aborted in [
        ["prerm upgrade 2", "postinst abort-upgrade 2"],
        ["prerm remove", "postinst abort-remove"],
        [
            "prerm deconfigure in-favour x 1",
            "postinst abort-deconfigure in-favour x 1",
        ],
    ] {
        machine.dpkg(&aborted);
        assert!(machine.is("active", "active"), "{aborted:?}");
    }
    // A start that reads a long log.
    machine.set("active", "activating");
    machine.dpkg(&upgraded);
    assert!(machine.is("active", "active"), "an upgrade during a start");
    machine.dpkg(&removed);
    assert!(machine.is("active", "inactive"));
    machine.dpkg(&["postinst configure 1"]);
    assert!(machine.is("enabled", "enabled") && machine.is("active", "active"));

    // What an administrator stopped stays so over an upgrade, and what is disabled for good.
    machine.set("active", "inactive");
    machine.dpkg(&upgraded);
    assert!(machine.is("active", "inactive"), "an upgrade started it");
    machine.set("enabled", "disabled");
    machine.dpkg(&removed);
    machine.dpkg(&["postinst configure 1"]);
    assert!(machine.is("active", "inactive") && machine.is("enabled", "disabled"));

    // There may be a pool of its user's elsewhere.
    machine.dpkg(&["prerm remove", "postrm remove", "postrm purge"]);
    assert!(!machine.path("state/called").exists(), "its user is gone");
    assert!(!machine.path("etc/terrace").exists());
}
