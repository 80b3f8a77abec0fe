//! `docs/cli.md` has every command with its options, as the binary's own help lists them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

fn help(command: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_podmeter")).args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "podmeter {command:?} --help");
    String::from_utf8(output.stdout).unwrap()
}

/// Long options, such as `--url`.
fn options(help: &str) -> Vec<&str> {
    // An option's line begins with two or six blanks, wrapped help with more.
    let lines = help.lines().filter(|line| line.starts_with("  ") && !line.starts_with("       ")).map(str::trim_start);
    lines.filter(|line| line.starts_with('-')).filter_map(long_option).filter(|option| *option != "--help").collect()
}

/// `-o, --output <OUTPUT>  [default: json]` → `--output`.
fn long_option(line: &str) -> Option<&str> {
    let long = if line.starts_with("--") { line } else { line.split_once(", ")?.1 };
    long.split([' ', '[']).next()
}

/// Names of the commands, in the order of the help.
fn commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

fn table() -> String {
    let mut text = String::from("command | does | options\n---|---|---\n");
    let agent = help(&["agent"]);
    let of_agent: BTreeSet<&str> = options(&agent).into_iter().collect();
    for name in commands(&help(&[])) {
        let help = help(&[name]);
        let about = help.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let about = about.trim_end_matches('.');
        let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap();
        let operands = usage.split_once(&format!(" {name}")).unwrap().1.replace(" [OPTIONS]", "");
        let own = options(&help).into_iter().filter(|option| name != "doctor" || !of_agent.contains(option));
        let options = match name {
            "agent" => "[options.md](options.md)".to_owned(),
            _ => own.map(|option| format!("`{option}`")).collect::<Vec<_>>().join(", "),
        };
        let _ = writeln!(text, "`{name}{operands}` | {about} | {options}");
    }
    text
}

#[test]
fn the_document_has_every_command() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once("<!-- commands -->\n").expect("the table's beginning");
    let (_, after) = rest.split_once("<!-- end -->").expect("the table's end");
    let wanted = format!("{before}<!-- commands -->\n{}<!-- end -->{after}", table());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, wanted).unwrap();
    } else {
        assert_eq!(text, wanted, "UPDATE_GOLDEN=1 cargo nextest run --test it documentation:: writes it");
    }
}
