//! `terrace generate DIR`: the manual pages and shell completions, from the same description as `--help`, so that they cannot say
//! otherwise. `make install` and the Debian package call it. Never: writes outside of DIR.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// Writes all files.
///
/// # Errors
/// When one cannot be written.
pub fn run(mut command: Command, dir: &Path) -> Result<()> {
    let at = || format!("cannot write to {}", dir.display());
    fs::create_dir_all(dir).with_context(at)?;
    // Before the completions, which add it.
    let mut manual = without_help(command.clone());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "terrace", dir).with_context(at)?;
    }
    manual.build();
    clap_mangen::generate_to(manual, dir).with_context(at)
}

/// The command `help`, at each level, is no page of the manual: it only shows the others.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}
