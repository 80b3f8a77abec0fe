//! `podmeter mark`, `unmark`, `release` and `resume` against a running agent.

use crate::support::agent::{self, ended};
use crate::support::demo::Demo;
use crate::support::polling::{until, until_true};

fn command(arguments: &[&str], demo: &Demo) -> (i32, String) {
    let socket = demo.admin_socket();
    ended(&[arguments, &["--admin-socket", socket.to_str().unwrap()]].concat())
}

/// Of GPU 3.
fn uuid(demo: &Demo) -> String {
    let node = demo.running.node();
    let gpus = node["hardware"]["inventory"]["gpus"].as_object().unwrap();
    gpus.iter().find(|(_, gpu)| gpu["index"] == 3).expect("eight GPUs").0.clone()
}

/// The reasons why GPU 3 is unhealthy.
fn causes(demo: &Demo) -> Vec<String> {
    let node = demo.running.node();
    let causes = node["health"]["gpus"][uuid(demo)]["whole"]["causes"].as_array().unwrap();
    causes.iter().map(|cause| cause["detail"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_device_is_marked_and_unmarked() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let (code, text) = command(&["unmark", "3"], &demo);
    assert!(code == 0 && text.contains("nothing changes"), "no mark: {text}");
    let (code, text) = command(&["mark", "3", "--reason", "in repair", "--for", "2h"], &demo);
    let marked = format!("Device {} is marked as unhealthy for 2h:", uuid(&demo));
    assert!(code == 0 && text.contains("so does a reboot of the node") && text.starts_with(&marked), "{text}");
    let marked = until("the mark", || Some(causes(&demo)).filter(|causes| !causes.is_empty()));
    assert!(marked[0].contains("in repair"), "{marked:?}");
    let (code, text) = command(&["unmark", "3"], &demo);
    assert!(code == 0 && text.contains(&uuid(&demo)), "{text}");
    until_true("the end of the mark", || causes(&demo).is_empty());

    let (code, text) = command(&["mark", "99", "--reason", "x"], &demo);
    assert!(code == 1 && text.starts_with("podmeter: the agent refused: no device 99"), "{text}");
    let (code, text) = command(&["mark", "3"], &demo);
    assert!(code == 2 && text.contains("--reason"), "{text}");
}

#[test]
fn the_driver_is_released_and_resumed() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let (code, text) = command(&["resume"], &demo);
    assert!(code == 0 && text.contains("nothing changes"), "no release: {text}");
    let (code, text) = command(&["release", "--for", "1h"], &demo);
    assert!(code == 0 && text.starts_with("The driver is closed until 2"), "{text}");
    demo.running.until("the release", |page| page.value("podmeter_released", &[]) == Some(1.0));
    let (code, text) = command(&["resume"], &demo);
    assert!(code == 0 && text.contains("opens the driver again"), "{text}");
    demo.running.until("the end of the release", |page| page.value("podmeter_released", &[]) == Some(0.0));
    let (code, text) = command(&["release", "--for", "30h"], &demo);
    assert!(code == 2 && text.contains("must be 1s to 24h"), "{text}");
}

#[test]
fn without_an_agent_or_a_driver_the_message_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("podmeter.sock");
    let at = ["--admin-socket", socket.to_str().unwrap()];
    let (code, text) = ended(&[&["resume"], &at[..]].concat());
    assert!(code == 1 && text.contains(&format!("unix:{} cannot be reached", socket.display())), "{text}");
    let root = directory.path().to_str().unwrap();
    let start = ["agent", "--listen=127.0.0.1:0", "--hardware=none", "--kubelet-root", root];
    let running = agent::Running::start(&[&start[..], &at[..]].concat(), &[], None);
    let (code, text) = ended(&[&["release"], &at[..]].concat());
    assert!(code == 1 && text.contains("there is no driver to release"), "{text}");
    drop(running);
}
