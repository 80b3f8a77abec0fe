//! `podmeter top` without a terminal, and the introduction of the demo: with the real binary.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::support::agent::{Running, binary, ended};

fn demo() -> Running {
    Running::start(&["demo", "--listen", "127.0.0.1:0"], &[], None)
}

#[test]
fn in_a_pipe_the_table_is_printed_once() {
    let demo = demo();
    demo.until("containers hold GPUs", |page| page.count("podmeter_container_device_info", &[]) > 3);
    let (code, text) = ended(&["top", "--url", &format!("http://{}", demo.address)]);
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("demo, simulated driver "), "{text}");
    let gpus: Vec<&str> = text.lines().filter(|line| line.contains(" GPU-")).collect();
    assert_eq!(gpus.len(), 8, "{text}");
    assert!(gpus.iter().all(|line| line.contains(" healthy ")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("  team-vision/") && line.contains(" exclusive ")), "{text}");
    assert!(text.is_ascii(), "{text}");

    // The same over the admin socket.
    let log = demo.until_logged("address=unix:");
    let socket = log.split("address=unix:").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let (code, text) = ended(&["top", "--once", "--admin-socket", socket]);
    assert!(code == 0 && text.contains("LAST_ACTIVE"), "{text}");
}

#[test]
fn the_demo_prints_its_addresses_once_it_listens() {
    let mut child = Command::new(binary())
        .args(["demo", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let text: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text[1].starts_with("  http://127.0.0.1:") && !text[1].ends_with(":0/"), "{text:#?}");
    assert!(text.iter().any(|line| line.starts_with("  podmeter top --url http://127.0.0.1:")), "{text:#?}");
    assert!(text.last().unwrap().starts_with("Ctrl-C ends it"), "{text:#?}");
}
