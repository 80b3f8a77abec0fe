use super::*;
use crate::simulation::random::Random;

const GPU: &str = "example.com/gpu";

fn list(devices: &[(&str, bool)]) -> Vec<ListedDevice> {
    let device =
        |(id, healthy): &(&str, bool)| ListedDevice { id: (*id).to_owned(), healthy: *healthy, numa_nodes: None };
    devices.iter().map(device).collect()
}

fn healthy(ids: &[&str]) -> Vec<ListedDevice> {
    list(&ids.iter().map(|id| (*id, true)).collect::<Vec<_>>())
}

fn offered(manager: &DeviceManager) -> Vec<&str> {
    manager.allocatable().map(|(_, device)| device.id.as_str()).collect()
}

fn key(pod: &str) -> AssignmentKey {
    (pod.to_owned(), "main".to_owned(), GPU.to_owned())
}

fn select(manager: &DeviceManager, wanted: usize, reusable: &[&str]) -> Result<DeviceSelection, String> {
    let reusable = reusable.iter().map(|id| (*id).to_owned()).collect();
    manager.select(&key("new"), wanted, &reusable, &mut Random::seeded(1))
}

fn count(manager: &DeviceManager) -> Option<(usize, usize)> {
    manager.counts().get(GPU).map(|count| (count.capacity, count.allocatable))
}

#[test]
fn selection_by_what_is_there() {
    let strings = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let mut manager = DeviceManager::new(KubeletVersion::UpTo136);
    assert_eq!(select(&manager, 1, &[]), Ok(DeviceSelection::Nothing), "no plugin serves the resource");
    manager.set_devices(GPU, list(&[("a", false)]));
    let error = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
    assert_eq!(select(&manager, 1, &[]), Err(error.to_owned()));

    manager.set_devices(GPU, healthy(&["a", "b", "c"]));
    manager.assign(key("old"), &strings(&["a"]), Vec::new());
    assert_eq!(select(&manager, 0, &[]), Ok(DeviceSelection::Nothing));
    let error = "requested number of devices unavailable for example.com/gpu. Requested: 3, Available: 2";
    assert_eq!(select(&manager, 3, &[]), Err(error.to_owned()));
    assert_eq!(select(&manager, 1, &["a"]), Ok(DeviceSelection::Take(strings(&["a"]))), "from the init container");
    assert!(matches!(select(&manager, 1, &[]), Ok(DeviceSelection::Choose { available, must })
        if available.len() == 2 && must.is_empty()));
    assert!(matches!(select(&manager, 2, &["a"]), Ok(DeviceSelection::Choose { available, must })
        if available.len() == 3 && must == ["a"]));
    assert!(matches!(select(&manager, 2, &[]), Ok(DeviceSelection::Take(devices)) if devices.len() == 2));
}

#[test]
fn preferences_are_intersected_and_filled_up() {
    let strings = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let available = strings(&["a", "b", "c", "d"]);
    for (must, preferred, wanted, expected) in [
        (vec![], vec!["c", "d"], 2, vec!["c", "d"]),
        (vec![], vec!["ghost", "d"], 2, vec!["d", "a"]),
        (vec!["b"], vec!["d", "c"], 2, vec!["b", "d"]),
        (vec![], vec!["d", "d", "c", "b"], 2, vec!["d", "c"]),
        (vec![], vec![], 3, vec!["a", "b", "c"]),
    ] {
        let settled = DeviceManager::choose(&available, &strings(&must), &strings(&preferred), wanted);
        assert_eq!(settled, expected, "must {must:?}, preferred {preferred:?}");
    }
}

#[test]
fn up_to_1_36_the_end_of_the_second_plugin_takes_the_resource_and_leaves_the_first_stream_open() {
    let mut manager = DeviceManager::new(KubeletVersion::UpTo136);
    let first = manager.connected(GPU, "/a.sock").unwrap();
    manager.listed(first, healthy(&["a"]));
    let second = manager.connected(GPU, "/b.sock").unwrap();
    manager.listed(second, healthy(&["b"]));
    assert_eq!(manager.stream_ended(second, Monotonic::default()), [] as [Serial; 0], "the first is not closed");
    assert_eq!((count(&manager), manager.connections(GPU)), (Some((1, 0)), 1));
    assert!(manager.listed(first, healthy(&["a"])));
    assert_eq!(offered(&manager), ["a"], "listed again");
    assert!(manager.is_stopped(GPU), "and not allocated");
}

#[test]
fn up_to_1_36_a_failed_registration_hides_the_end_of_the_plugin_before() {
    let mut manager = DeviceManager::new(KubeletVersion::UpTo136);
    let first = manager.connected(GPU, "/a.sock").unwrap();
    manager.listed(first, healthy(&["a"]));
    manager.registration_failed(GPU);
    assert_eq!(manager.plugin(GPU), Some(first));
    assert_eq!(manager.stream_ended(first, Monotonic::default()), [] as [Serial; 0]);
    assert_eq!(offered(&manager), ["a"]);
}
