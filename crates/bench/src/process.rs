//! Child processes: started pinned and inside a cgroup, and never left behind.
//!
//! Promises that a child enters its cgroup before its program starts (a shell writes its own id and then becomes the program), so
//! that every byte is charged there, and that it is killed and reaped when its guard is dropped or this process dies.

use crate::cgroup::Cgroup;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How much of a log's end an error message shows.
const LOG_TAIL_BYTES: usize = 600;

/// Builds the command `argv`, inside `cgroup` and on `cpu` if given. Children are in a process group of their own, so that
/// ctrl-c reaches only us, and we stop them in order.
pub fn command(argv: &[&str], cgroup: Option<&Cgroup>, cpu: Option<usize>) -> Command {
    let cpu = cpu
        .filter(|_| crate::machine::cpus() > 1)
        .map(|cpu| cpu.to_string());
    let procs = cgroup.map(|group| group.procs_file().display().to_string());
    let mut words: Vec<&str> = Vec::new();
    if let Some(procs) = &procs {
        words.extend(["sh", "-c", r#"echo $$ > "$0" && exec "$@""#, procs]);
    }
    if let Some(cpu) = &cpu {
        words.extend(["taskset", "-c", cpu]);
    }
    if installed("setpriv") {
        words.extend(["setpriv", "--pdeathsig", "KILL"]);
    }
    words.extend(argv);
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .process_group(0)
        .stdin(Stdio::null());
    command
}

/// Whether a program of this name is on the PATH (or in the sbin directories, which a user's PATH may lack).
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    std::env::split_paths(&path)
        .chain(extra)
        .any(|dir| dir.join(program).is_file())
}

/// Runs `argv` to its end and returns its output. Errors: it cannot be started or does not succeed; the message has its stderr.
pub fn run(argv: &[&str]) -> Result<String> {
    let out = command(argv, None, None)
        .output()
        .with_context(|| format!("starting {}", argv.join(" ")))?;
    if !out.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            argv.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A command line as a person would type it.
fn show(argv: &[&str]) -> String {
    let word = |word: &&str| {
        if word.is_empty() {
            "\"\"".to_owned()
        } else {
            (*word).to_owned()
        }
    };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A running child with its log.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    log: PathBuf,
    argv: String,
}

impl Guard {
    /// Starts `argv`; its output goes to the file `log`.
    pub fn start(
        argv: &[&str],
        cgroup: Option<&Cgroup>,
        cpu: Option<usize>,
        log: &Path,
    ) -> Result<Guard> {
        let file =
            File::create(log).with_context(|| format!("making the log {}", log.display()))?;
        let child = command(argv, cgroup, cpu)
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting {}", argv.join(" ")))?;
        Ok(Guard {
            child,
            log: log.to_owned(),
            argv: show(argv),
        })
    }

    /// The command line, for the record.
    pub fn argv(&self) -> &str {
        &self.argv
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of all its threads so far, user and system, seconds; the kernel counts it in hundredths.
    pub fn cpu_s(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        cpu_s(&stat)
    }

    /// Fails when the child has ended, with the end of its log.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("`{}` ended ({status}): {}", self.argv, self.log_tail()),
        }
    }

    /// Kills it with SIGKILL and reaps it.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Waits for it to end by itself.
    pub fn wait_max(&mut self, max_s: u64) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            crate::stop::check()?;
            if started.elapsed().as_secs() >= max_s {
                bail!(
                    "`{}` was asked to stop and did not within {max_s} s",
                    self.argv
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(LOG_TAIL_BYTES)..];
        String::from_utf8_lossy(tail).trim().to_owned()
    }
}

fn cpu_s(stat: &str) -> Option<f64> {
    const TICKS_PER_S: f64 = 100.0;
    // The name may hold anything, also spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut ticks = after_name.split_whitespace().skip(11);
    let user: f64 = ticks.next()?.parse().ok()?;
    let system: f64 = ticks.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_S)
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_and_system() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 9 9 20 0 1 0 5 1 1";
        assert_eq!(cpu_s(stat), Some(3.0));
        assert_eq!(cpu_s("7 (a"), None);
    }
}
