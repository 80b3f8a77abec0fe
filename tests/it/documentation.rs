//! `docs/cli.md`, completions and man pages have every command.

use std::fs;
use std::process::Command;

fn podmeter(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_podmeter")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Those that help shows.
fn commands() -> Vec<String> {
    let help = podmeter(&["--help"]);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let names: Vec<String> = names.map(str::to_owned).collect();
    assert!(names.iter().any(|name| name == "agent"), "{help}");
    names
}

#[test]
fn the_document_has_every_command() {
    let document = include_str!("../../docs/cli.md");
    let missing = |name: &String| !document.contains(&format!("`podmeter {name}"));
    assert_eq!(commands().into_iter().filter(missing).collect::<Vec<_>>(), [""; 0], "not in docs/cli.md");
}

#[test]
fn completions_have_every_command_and_nothing_hidden() {
    let scripts = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = podmeter(&["completion", shell]);
        assert!(commands().iter().all(|name| script.contains(name)) && script.contains("ground-truth"), "{shell}");
        assert!(script.contains(if shell == "fish" { "-l version" } else { "--version" }), "{shell}");
        let is_hidden = |line: &&str| {
            line.contains("fault-speed") || line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "man")
        };
        assert_eq!(script.lines().find(is_hidden), None, "{shell}");
        fs::write(scripts.path().join(shell), script).unwrap();
    }
    let parsed = Command::new("bash").arg("-n").arg(scripts.path().join("bash")).output().unwrap();
    assert!(parsed.status.success() && parsed.stderr.is_empty(), "{parsed:?}");
}

#[test]
fn each_command_has_a_man_page_without_hidden_options() {
    let directory = tempfile::tempdir().unwrap();
    podmeter(&["man", directory.path().to_str().unwrap()]);
    let page = |name: String| fs::read_to_string(directory.path().join(name)).unwrap();
    let main = page("podmeter.1".into());
    for name in commands() {
        let name = format!("podmeter-{name}");
        assert!(main.contains(&format!("{}(1)", name.replace('-', "\\-"))), "{name}: {main}");
        page(format!("{name}.1"));
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), commands().len() + 1);
    let demo = page("podmeter-demo.1".into());
    assert!(demo.contains("\\-\\-churn") && !demo.contains("fault\\-speed"), "{demo}");
}
