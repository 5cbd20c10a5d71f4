//! What COMMAND INFO and COMMAND DOCS say: the words of redis-server 7.0 about the commands that this server has, written down by
//! scripts/command-metadata.py (BSD licence, Redis Ltd.). One value a line, as in RESP3. Never: says something of its own.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::resp::encode;

type Records = HashMap<&'static str, &'static str>;

static INFO: LazyLock<Records> = LazyLock::new(|| records(include_str!("info.txt")));
static DOCS: LazyLock<Records> = LazyLock::new(|| records(include_str!("docs.txt")));

fn records(text: &'static str) -> Records {
    let parts = text.strip_prefix('=').unwrap_or(text).split("\n=");
    parts.filter_map(|part| part.split_once('\n')).collect()
}

/// Which of the two.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    /// COMMAND INFO.
    Info,
    /// COMMAND DOCS.
    Docs,
}

fn find(of: Of, name: &str) -> Option<&'static str> {
    let records = match of {
        Of::Info => &INFO,
        Of::Docs => &DOCS,
    };
    records.get(name.to_ascii_lowercase().as_str()).copied()
}

/// Whether there is something about a command, or a subcommand (`config|get`).
pub fn knows(name: &str) -> bool {
    find(Of::Info, name).is_some()
}

/// Writes what there is; answers whether there is something.
pub fn write(out: &mut Vec<u8>, resp3: bool, of: Of, name: &str) -> bool {
    let Some(record) = find(of, name) else {
        return false;
    };
    for line in record.lines() {
        let (kind, rest) = line.split_at(1);
        let number: i64 = rest.parse().unwrap_or(0);
        let len = usize::try_from(number).unwrap_or(0);
        match kind {
            "%" => encode::map(out, resp3, len),
            "~" => encode::set(out, resp3, len),
            "*" => encode::array(out, len),
            ":" => encode::int(out, number),
            "+" => encode::simple(out, rest),
            _ => encode::bulk(out, rest.as_bytes()),
        }
    }
    true
}

/// Whether a command is in one of the categories of access lists (without `@`).
pub fn is_in_category(name: &str, category: &str) -> bool {
    let wanted = format!("+@{}", category.to_ascii_lowercase());
    find(Of::Info, name).is_some_and(|record| record.lines().any(|line| line == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::COMMANDS;

    #[test]
    fn every_command_is_described_and_as_the_table_says() {
        for command in &COMMANDS {
            let record = find(Of::Info, command.name).unwrap_or_else(|| panic!("{}", command.name));
            assert!(find(Of::Docs, command.name).is_some(), "{}", command.name);
            let lines: Vec<&str> = record.lines().collect();
            assert_eq!(lines[2], format!(":{}", command.arity), "{}", command.name);
            if INFO
                .keys()
                .any(|k| k.split_once('|').is_some_and(|(of, _)| of == command.name))
            {
                // Its subcommands have the flags.
                continue;
            }
            let count: usize = lines[3][1..].parse().unwrap();
            let flags = &lines[4..4 + count];
            for flag in ["write", "readonly", "fast", "no_auth"] {
                let told = flags.contains(&format!("+{flag}").as_str());
                assert_eq!(
                    command.flags.contains(&flag),
                    told,
                    "{} {flag}",
                    command.name
                );
            }
        }
        assert!(is_in_category("GET", "string") && !is_in_category("get", "write"));
        assert!(knows("config|get") && !knows("config|foo"));
    }
}
