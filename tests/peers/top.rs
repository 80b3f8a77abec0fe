//! `podmeter top` in a real terminal: tmux, 80 by 24, against the demo.

use std::path::PathBuf;
use std::process::Command;

use crate::support::agent::{Running, binary};
use crate::support::polling::poll;
use tempfile::TempDir;

#[test]
fn the_table_fits_the_terminal_and_keys_work() {
    let (demo, terminal) = (demo("127.0.0.1:0"), Terminal::start());
    top(&terminal, &demo, "");
    let screen = terminal.until("the table", fresh);
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines.len(), 24, "{screen}");
    assert!(lines[1].starts_with("8 GPUs, ") && lines[23].starts_with("q: quit"), "{screen}");

    terminal.keys(&["j", "k", "Enter"]);
    terminal.until("details", |screen| screen.contains("Held by") && screen.contains("Unattributed"));
    terminal.keys(&["q"]);
    terminal.until("the table again", fresh);
    terminal.tmux(&["resize-window", "-x", "120", "-y", "30"]);
    terminal.until("a wide table", |screen| screen.lines().count() == 30 && screen.contains(" IDLE ") && fresh(screen));
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.until("a narrow table", |screen| screen.lines().count() == 24 && fresh(screen));
    terminal.keys(&["q"]);
    terminal.until("the shell again", |screen| screen.lines().last() == Some("ready>"));
    terminal.line("stty -a | grep -o ' icanon'; echo ended-$?");
    terminal.until("a terminal as it was", |screen| screen.contains("\nended-0") && screen.contains("\n icanon"));
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let (demo, terminal) = (demo("127.0.0.1:0"), Terminal::start());
    let file = terminal.directory.path().join("pid");
    terminal.line(&format!(
        "sh -c 'echo $$ >{}; exec {} top --url http://{}'; stty -a | grep -o ' icanon'; echo ended-$?",
        file.display(),
        binary().display(),
        demo.address
    ));
    terminal.until("the table", fresh);
    let pid = std::fs::read_to_string(&file).unwrap();
    assert!(Command::new("kill").args(["-s", "TERM", pid.trim()]).status().unwrap().success());
    terminal.until("a terminal as it was", |screen| screen.contains("\n icanon") && screen.contains("\nended-0"));
}

#[test]
fn no_colour_and_dumb_terminals_are_respected() {
    let (demo, terminal) = (demo("127.0.0.1:0"), Terminal::start());
    top(&terminal, &demo, "NO_COLOR=1");
    terminal.until("the table", fresh);
    // No colours of the terminal itself.
    let colours = terminal.tmux(&["capture-pane", "-p", "-e"]).replace("\x1b[39m", "").replace("\x1b[49m", "");
    assert!(!colours.contains("\x1b[3") && !colours.contains(";5;"), "{colours:?}");
    terminal.keys(&["q"]);
    terminal.until("the shell again", |screen| screen.lines().last() == Some("ready>"));
    terminal.line("clear");
    top(&terminal, &demo, "TERM=dumb");
    terminal.until("text", |screen| screen.contains("exclusive") && screen.lines().last() == Some("ready>"));
}

/// A shell in its own tmux server, which ends when this is dropped.
struct Terminal {
    directory: TempDir,
}

impl Terminal {
    fn start() -> Self {
        let terminal = Self { directory: tempfile::tempdir().unwrap() };
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "bash --norc --noprofile"]);
        terminal.line("PS1='ready> '; unset NO_COLOR");
        terminal.until("a prompt", |screen| screen.lines().last() == Some("ready>"));
        terminal
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("tmux")
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color")
            .arg("-u")
            .arg("-S")
            .arg(self.socket());
        let output = command.args(arguments).output().expect("tmux is installed");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.keys(&["Enter"]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).trim_end().to_owned()
    }

    fn until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let found = poll(|| Some(self.screen()).filter(|screen| condition(screen)));
        found.unwrap_or_else(|| panic!("never: {what}\n{}", self.screen()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(self.socket()).arg("kill-server").status();
    }
}

fn demo(address: &str) -> Running {
    Running::start(&["demo", "--listen", address], &[], None)
}

fn top(terminal: &Terminal, demo: &Running, before: &str) {
    terminal.line(&format!("{before} {} top --url http://{}", binary().display(), demo.address));
}

fn fresh(screen: &str) -> bool {
    screen.contains(" fresh, ") && screen.contains("0 H100 80GB HBM3") && screen.contains("  team-vision/")
}
