//! `docs/cli.md` names every command.

use std::process::Command;

#[test]
fn the_document_has_every_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_podmeter")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let document = include_str!("../../docs/cli.md");
    let missing: Vec<&str> = names.filter(|name| !document.contains(&format!("`podmeter {name}"))).collect();
    assert!(missing.is_empty() && help.contains("  agent "), "not in docs/cli.md: {missing:?}\n{help}");
}
