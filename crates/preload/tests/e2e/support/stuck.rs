//! What a program that does not end is doing: said where a test gives up waiting for it, since such a thing may not
//! happen again for days.

use std::fmt::Write;
use std::fs::{read_dir, read_to_string};
use std::process::Command;

/// The processes of a group and their threads: names, states, system calls, and where there is a debugger, stacks.
pub fn state(group: u32) -> String {
    let mut text = String::new();
    for pid in numbers("/proc") {
        let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // pid (name) state parent group: the name may have anything in it.
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        if after.split(' ').nth(2) != Some(&group.to_string()) {
            continue;
        }
        for tid in numbers(&format!("/proc/{pid}/task")) {
            let of = |name: &str| {
                let text = read_to_string(format!("/proc/{pid}/task/{tid}/{name}"));
                text.unwrap_or_default().trim_end().to_owned()
            };
            let stat = of("stat");
            let state = stat.rsplit_once(") ").map_or("?", |(_, after)| &after[..1]);
            let (name, call, at) = (of("comm"), of("syscall"), of("wchan"));
            let _ = writeln!(text, "{pid}/{tid} {name} {state} in {at}, call {call}");
            let _ = writeln!(text, "{}", of("stack"));
        }
        let stacks = Command::new("timeout")
            .args(["20", "gdb", "-p", &pid.to_string(), "-batch"])
            .args(["-ex", "thread apply all bt 24"])
            .output();
        match stacks {
            Ok(stacks) => text.push_str(&String::from_utf8_lossy(&stacks.stdout)),
            Err(why) => {
                let _ = writeln!(text, "no stacks: gdb: {why}");
            }
        }
    }
    text
}

fn numbers(dir: &str) -> Vec<u32> {
    let entries = read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}
