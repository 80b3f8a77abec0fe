//! Examples at the end of each command's help, and the text that `podmeter demo` prints at its start. A test parses each line
//! that begins with two blanks.

use clap::Command;

use crate::agent::ListenAddress;

/// Command → examples.
const EXAMPLES: [(&str, &str); 14] = [
    (
        "agent",
        "Examples:
  podmeter agent
      on a node: metrics and page on port 9410, kubelet in /var/lib/kubelet
  podmeter agent --config /etc/podmeter.yaml --log-level debug
      options from a file (see podmeter check-config), detailed log
  podmeter agent --device-plugin off
      beside NVIDIA's device plugin: metrics only
  podmeter agent --hardware none --listen 127.0.0.1:9410
      without a driver: allocations only, served on localhost",
    ),
    (
        "demo",
        "Examples:
  podmeter demo
      then open http://127.0.0.1:9410/, or run podmeter top in another terminal
  podmeter demo --faults --churn
      GPUs fail and recover, pods start and end
  podmeter demo --profile 8xh100-mig --listen 127.0.0.1:9411
      partitioned GPUs, on another port",
    ),
    (
        "top",
        "Examples:
  podmeter top
      the agent or demo on this machine; ? lists the keys
  podmeter top --url http://node-a:9410
      the agent on another node
  podmeter top --url https://node-a:9410 --ca-file ca.crt --user ops --password-file password
      the same where it has a web configuration with TLS and passwords
  podmeter top --once | grep unhealthy
      plain text, the default without a terminal
  kubectl exec -it -n podmeter ds/podmeter -- podmeter top
      the agent in a pod",
    ),
    (
        "doctor",
        "Examples:
  podmeter doctor
      this node, with or without an agent; each failed check names the remedy
  podmeter doctor -o json
      for scripts; exit code 1 when a check failed
  podmeter doctor --url http://node-a:9410
      the agent on another node, and nothing of this machine",
    ),
    (
        "health",
        "Exit code 0: every device is healthy, or only marked; 1: one is not; 2: unknown, such as without an agent.

Examples:
  podmeter health
      the agent on this node
  podmeter health -o npd --file /run/podmeter/health.json
      from the file that the agent's --condition-file names, for node-problem-detector
  podmeter health -o json --url http://node-a:9410
      the agent on another node",
    ),
    (
        "mark",
        "Examples:
  podmeter mark 3 --reason flickering --for 2h
      GPU 3 gets no new pods for two hours
  kubectl exec -n podmeter podmeter-x7k2p -- podmeter mark 3 --reason in-repair
      in the agent's pod on the node",
    ),
    (
        "unmark",
        "Examples:
  podmeter unmark 3
      after the repair, or for a device under recovery: manual",
    ),
    (
        "release",
        "Cordon the node and drain the pods that use GPUs first. Exit code 0: the library is unloaded and no device node
is open; 1: the message names the call that hangs.

Examples:
  podmeter release --for 30m
      then upgrade the driver, reset a GPU or change the MIG layout, and podmeter resume",
    ),
    (
        "resume",
        "Examples:
  podmeter resume
      after the work on the driver; without it the release ends by itself",
    ),
    (
        "record",
        "Examples:
  podmeter record
      software, hardware and allocations of this node, as JSON
  podmeter record -o yaml
      the same as YAML
  podmeter record --url http://node-a:9410
      of another node, without serial numbers",
    ),
    (
        "usage",
        "Examples:
  podmeter usage --since 24h --by namespace
      GPU-hours held and used
  podmeter usage --since 2026-01-01 --by pod -o csv
      for a spreadsheet
  podmeter usage --pod team-a/trainer-0 -o json
      the devices that this pod held
  podmeter usage --state-dir /var/lib/podmeter
      from the journal, if no agent runs",
    ),
    (
        "metrics",
        "Examples:
  podmeter metrics
      every metric with type, labels and meaning
  podmeter metrics -o json
      with unit and source",
    ),
    (
        "check-config",
        "Examples:
  podmeter check-config /etc/podmeter.yaml
  podmeter check-config --web-config /etc/podmeter/web/web-config.yaml
      a web configuration, with its certificates",
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
      a simulated node: open http://127.0.0.1:9410/, or run podmeter top in another terminal
  podmeter agent
      on a real node
  podmeter COMMAND --help
      options and examples of a command";

const MORE: &str = "All options, in groups: --help";

pub fn with_examples(command: Command) -> Command {
    EXAMPLES.iter().fold(command.after_help(START), |command, (name, text)| {
        command.mut_subcommand(name, |subcommand| {
            let short = if subcommand.get_arguments().any(clap::Arg::is_hide_short_help_set) {
                format!("{MORE}\n\n{text}")
            } else {
                (*text).to_owned()
            };
            subcommand.after_help(short).after_long_help(*text)
        })
    })
}

/// What `podmeter demo` prints once it listens on `page`.
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
        (true, _) => "this log          names each simulated fault and where it shows",
        (false, true) => "demo --faults     GPUs fail and recover",
        (false, false) => "demo --churn      pods start and end; with --faults GPUs fail and recover",
    };
    format!(
        "A simulated node with GPUs, a kubelet and pods. Open\n  \
         {url}\n      the page: which container holds which GPU, and which GPU is idle\n  \
         {top}\n      the same in another terminal\n  \
         {scrape} | grep idle_seconds\n      a metric: GPU-seconds held and not used, by container\n\
         Then: {next}\n\
         Ctrl-C ends it and removes its files.\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of each example, from `podmeter` on, without redirections.
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
    fn the_demo_prints_where_its_page_is() {
        let text = |address: &str| demo_text(&address.parse().unwrap(), false, false);
        let usual = text("127.0.0.1:9410");
        assert!(usual.contains("  http://127.0.0.1:9410/\n") && usual.contains("  podmeter top\n"), "{usual}");
        assert!(text("127.0.0.1:9499").contains("  podmeter top --url http://127.0.0.1:9499\n"));
        assert!(text("unix:/tmp/x").contains("  podmeter top --admin-socket /tmp/x\n"));
        assert!(usual.lines().all(|line| line.chars().count() <= 80), "{usual}");
    }
}
