//! Completions for shells and man pages, written by clap's own libraries.

use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::arguments::Arguments;
use super::{FAILED, Failed, print};

pub fn run(shell: Shell) -> Result<(), Failed> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut visible(&Arguments::command()), "podmeter", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// What the command has that help shows: bash would be offered the rest too.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let visible = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(arguments.cloned())
        .subcommands(commands.map(visible));
    match command.get_version() {
        Some(version) => visible.version(version.to_owned()),
        None => visible,
    }
}

/// A page for each visible command.
pub fn write_man_pages(directory: &Path) -> Result<(), Failed> {
    clap_mangen::generate_to(Arguments::command(), directory)
        .map_err(|error| Failed(FAILED, format!("{}: {error}", directory.display())))
}
