//! Examples at the end of each command's help, and the words with which the demo opens. Each line that begins with `podmeter`
//! after two blanks is parsed by a test.

use clap::Command;

use crate::agent::ListenAddress;

/// Command → examples. Every command that is shown has some.
const EXAMPLES: [(&str, &str); 10] = [
    (
        "agent",
        "Examples:
  podmeter agent
      on a node: metrics and page on port 9410, the kubelet under /var/lib/kubelet
  podmeter agent --config /etc/podmeter.yaml --log-level debug
      settings from a file (see podmeter check-config), and more to read
  podmeter agent --device-plugin off
      beside NVIDIA's device plugin: metrics alone
  podmeter agent --hardware none --listen 127.0.0.1:9410
      without a driver: who holds what, on this machine alone",
    ),
    (
        "demo",
        "Examples:
  podmeter demo
      then open http://127.0.0.1:9410/, or podmeter top in another terminal
  podmeter demo --faults --churn
      GPUs break and recover, pods come and go
  podmeter demo --profile 8xh100-mig --listen 127.0.0.1:9411
      partitioned GPUs, on another port",
    ),
    (
        "top",
        "Examples:
  podmeter top
      this machine's agent or demo; ? shows the keys
  podmeter top --url http://node-a:9410
      another node's
  podmeter top --once | grep unhealthy
      plain text, as also without a terminal
  kubectl exec -it -n podmeter ds/podmeter -- podmeter top
      a pod's own",
    ),
    (
        "doctor",
        "Examples:
  podmeter doctor
      this node, with or without an agent; every failed check says what to do
  podmeter doctor -o json
      the same for a script; exit code 1 when a check failed
  podmeter doctor --url http://127.0.0.1:9410
      and the agent there",
    ),
    (
        "record",
        "Examples:
  podmeter record
      what runs, what it offers, who holds what, as JSON
  podmeter record -o yaml
      the same for eyes
  podmeter record --url http://node-a:9410
      another node's, without serial numbers",
    ),
    (
        "usage",
        "Examples:
  podmeter usage --since 24h --by namespace
      who had how many GPU-hours, and used them
  podmeter usage --since 2026-01-01 --by pod -o csv
      for a spreadsheet
  podmeter usage --pod team-a/trainer-0 -o json
      which hardware produced that pod's output
  podmeter usage --state-dir /var/lib/podmeter
      where no agent runs",
    ),
    (
        "metrics",
        "Examples:
  podmeter metrics
      every metric with type, labels, unit and source
  podmeter metrics -o json",
    ),
    (
        "check-config",
        "Examples:
  podmeter check-config /etc/podmeter.yaml
  podmeter check-config --web-config /etc/podmeter/web/web-config.yaml
      a web configuration, with its certificates",
    ),
    (
        "probe-nvml",
        "Examples:
  podmeter probe-nvml -o text
      what this machine's driver supports, and how long it takes
  podmeter probe-nvml >probe.json
      the same as data, for a report",
    ),
    (
        "completions",
        "Examples:
  podmeter completions bash > ~/.local/share/bash-completion/completions/podmeter
  podmeter completions zsh > ~/.zfunc/_podmeter
      where ~/.zfunc is in $fpath before compinit
  podmeter completions fish > ~/.config/fish/completions/podmeter.fish",
    ),
];

const START: &str = "Start here:
  podmeter demo
      a simulated node: look at http://127.0.0.1:9410/, or podmeter top in another terminal
  podmeter agent
      on a real node
  podmeter COMMAND --help
      has examples of each";

pub fn with_examples(command: Command) -> Command {
    EXAMPLES.iter().fold(command.after_help(START), |command, (name, text)| {
        command.mut_subcommand(name, |subcommand| subcommand.after_help(*text))
    })
}

/// What to look at, once the demo listens there.
pub fn demo_text(page: &ListenAddress, faults: bool, churn: bool) -> String {
    let (url, scrape) = match page {
        ListenAddress::Tcp(address) => (format!("http://{address}/"), format!("curl -s http://{address}/metrics")),
        ListenAddress::Unix(path) => {
            let path = path.display();
            (format!("unix:{path}"), format!("curl -s --unix-socket {path} http://demo/metrics"))
        }
    };
    let top = match page {
        // What podmeter top tries by itself.
        ListenAddress::Tcp(address) if address.to_string() == "127.0.0.1:9410" => "podmeter top".to_owned(),
        ListenAddress::Tcp(address) => format!("podmeter top --url http://{address}"),
        ListenAddress::Unix(path) => format!("podmeter top --admin-socket {}", path.display()),
    };
    let next = match (faults, churn) {
        (true, _) => "this log          a day of faults: it says what breaks and where to look",
        (false, true) => "demo --faults     GPUs break and recover",
        (false, false) => "demo --churn      pods come and go; with --faults GPUs break and recover",
    };
    format!(
        "A simulated node: GPUs, a kubelet, and pods at work. Look at\n  \
         {url}\n      the page: who holds which GPU, and who leaves one idle\n  \
         {top}\n      the same in another terminal\n  \
         {scrape} | grep idle_seconds\n      what Prometheus gets: GPU-seconds held and not used, by container\n\
         Then: {next}\n\
         Ctrl-C ends it and leaves nothing behind.\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of each example, from `podmeter` on, without what a shell does with them.
    fn examples(text: &str) -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        lines
            .map(|line| {
                let end = line.find(['|', '>']).unwrap_or(line.len());
                let words: Vec<&str> = line[..end].split_whitespace().collect();
                let start = words.iter().rposition(|word| *word == "podmeter").expect("a command");
                words[start..].to_vec()
            })
            .collect()
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        let command = super::super::command();
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let name = subcommand.get_name();
            let text = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = examples(&text);
            assert!(!examples.is_empty(), "podmeter {name} has no examples: add some to EXAMPLES");
            for words in examples {
                assert_eq!(words.get(1), Some(&name), "an example of another command: {words:?}");
                let parsed = super::super::command().try_get_matches_from(&words);
                assert!(
                    parsed.is_ok(),
                    "{words:?}: {}",
                    parsed.err().map(|error| error.to_string()).unwrap_or_default()
                );
            }
        }
        assert!(super::super::command().try_get_matches_from(["podmeter", "top", "--nonsense"]).is_err());
    }

    #[test]
    fn the_demo_opens_with_what_to_look_at() {
        let text = |address: &str| demo_text(&address.parse().unwrap(), false, false);
        let usual = text("127.0.0.1:9410");
        assert!(usual.contains("  http://127.0.0.1:9410/\n") && usual.contains("  podmeter top\n"), "{usual}");
        assert!(text("127.0.0.1:9499").contains("  podmeter top --url http://127.0.0.1:9499\n"));
        assert!(text("unix:/tmp/x").contains("  podmeter top --admin-socket /tmp/x\n"));
        assert!(usual.lines().all(|line| line.chars().count() <= 80), "{usual}");
    }
}
