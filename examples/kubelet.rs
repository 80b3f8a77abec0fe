//! The tests' simulated kubelet as a program of its own, for a podmeter that runs apart from it, such as one in its image.
//!
//! `kubelet ROOT RESOURCE` serves under ROOT. Once RESOURCE is offered, it admits the pod `default/asks`, whose container
//! `main` asks for one, writes what became of it, and goes on until its standard input ends.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use podmeter::simulation::kubelet::{Admission, ContainerSpec, FakeKubelet, Options, PodSpec};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (root, resource) = (arguments.next(), arguments.next());
    let (root, resource) = root.zip(resource).context("usage: kubelet ROOT RESOURCE")?;
    let kubelet = FakeKubelet::start(&PathBuf::from(root), Options::default()).await?;
    say("the kubelet serves")?;
    let is_offered = kubelet.node_status_becomes(|status| status.get(&resource).is_some_and(|is| is.allocatable > 0));
    ensure!(is_offered.await, "nobody offers {resource}");
    let container = ContainerSpec::new("main").asks(&resource, 1);
    match kubelet.add_pod(PodSpec::new("default", "asks").container(container)).await {
        Admission::Rejected { reason, message } => bail!("default/asks: {reason}: {message}"),
        Admission::Running => {}
    }
    for (resource, device) in kubelet.devices_of("default", "asks", "main") {
        say(&format!("default/asks holds {resource} {device}"))?;
    }
    tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
    Ok(())
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}
