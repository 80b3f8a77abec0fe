//! The fake kubelet against the recorded answers of a real one.

mod support;

use support::captures;
use support::kubelet::{ContainerSpec, Options, PodSpec, node};

#[tokio::test]
async fn pods_placed_directly_are_listed_as_recorded() {
    let node = node(Options::default()).await;
    node.set_pods(vec![
        PodSpec::new("default", "nodev").from_manifest().container(ContainerSpec::new("main")),
        PodSpec::new("default", "basic").from_manifest().container(ContainerSpec::new("main").holds(
            "example.com/resource",
            "Dev-1",
            &[],
        )),
        PodSpec::new("team-a", "two-ctr")
            .from_manifest()
            .container(ContainerSpec::new("a").holds("lab.example.com/gpu", "gpu-0", &[0]))
            .container(ContainerSpec::new("b").holds("lab.example.com/gpu", "gpu-1", &[0])),
    ]);
    assert_eq!(captures::sorted_list(node.list().await), captures::list("02_two_containers"));
}
