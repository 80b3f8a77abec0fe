//! The tests' simulated kubelet as a separate program, for a podmeter that runs elsewhere, such as in its image.
//!
//! `kubelet ROOT RESOURCE` serves under ROOT. Once RESOURCE is offered, it admits the pod `default/asks`, whose
//! container `main` requests one, writes the outcome, and runs until its standard input ends. Each line there is an
//! order, answered with lines of which the last is `done`: `admit POD` and `remove POD` (in `default`, with one
//! RESOURCE), `restart`, `lose` (the plugin's list of devices), `hang` (`List` stops answering), `heal`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use podmeter::simulation::kubelet::{AdmissionOutcome, ContainerSpec, FakeKubelet, Method, Options, PodSpec};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (root, resource) = (arguments.next(), arguments.next());
    let (root, resource) = root.zip(resource).context("usage: kubelet ROOT RESOURCE")?;
    let kubelet = FakeKubelet::start(&PathBuf::from(root), Options::default()).await?;
    say("the kubelet serves")?;
    let is_offered = kubelet.node_status_becomes(|status| status.get(&resource).is_some_and(|is| is.allocatable > 0));
    ensure!(is_offered.await, "nobody offers {resource}");
    ensure!(admit(&kubelet, &resource, "asks").await?, "the first pod is refused");
    while let Some(order) = tokio::task::spawn_blocking(|| io::stdin().lines().next().transpose()).await?? {
        match order.split_whitespace().collect::<Vec<_>>()[..] {
            ["admit", pod] => {
                if !admit(&kubelet, &resource, pod).await? {
                    kubelet.remove_pod("default", pod);
                }
            }
            ["remove", pod] => ensure!(kubelet.remove_pod("default", pod), "there is no default/{pod}"),
            ["restart"] => {
                kubelet.restart()?;
                kubelet.ready().await;
            }
            ["lose"] => ensure!(kubelet.lose_stream(&resource), "nobody lists {resource}"),
            ["hang"] => kubelet.hang(Method::List),
            ["heal"] => kubelet.heal(),
            _ => bail!("{order:?} is no order"),
        }
        say("done")?;
    }
    Ok(())
}

async fn admit(kubelet: &FakeKubelet, resource: &str, pod: &str) -> anyhow::Result<bool> {
    let container = ContainerSpec::new("main").asks(resource, 1);
    if let AdmissionOutcome::Rejected { reason, message } =
        kubelet.add_pod(PodSpec::new("default", pod).container(container)).await
    {
        say(&format!("default/{pod} is refused: {reason}: {message}"))?;
        return Ok(false);
    }
    for (resource, device) in kubelet.devices_of("default", pod, "main") {
        say(&format!("default/{pod} holds {resource} {device}"))?;
    }
    Ok(true)
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}
