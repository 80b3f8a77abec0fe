//! The start of a container: the device configuration that the runtime gets.

use std::time::Duration;

use super::registration::in_go;
use super::shared::Shared;
use crate::wire::v1beta1::{ContainerAllocateResponse, PreStartContainerRequest};
use prost::Message;

const PRE_START_DEADLINE: Duration = Duration::from_secs(30);

/// The cached answers to Allocate, as one. Allocate is not called again; PreStartContainer is, where required.
/// `None`: there is no such pod.
pub async fn start(
    shared: &Shared,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Option<Result<ContainerAllocateResponse, String>> {
    let answers = shared.state().answers_of(namespace, pod, container)?;
    let mut options = ContainerAllocateResponse::default();
    for (resource, (devices, answer)) in answers {
        if let Err(error) = pre_start(shared, &resource, devices).await {
            return Some(Err(error));
        }
        // A checkpoint from another writer may contain anything.
        add(&mut options, ContainerAllocateResponse::decode(answer.as_slice()).unwrap_or_default());
    }
    Some(Ok(options))
}

async fn pre_start(shared: &Shared, resource: &str, devices_ids: Vec<String>) -> Result<(), String> {
    let serial = shared.state().devices.plugin(resource);
    let client = {
        let plugins = shared.plugins();
        serial.and_then(|serial| plugins.get(&serial)).filter(|plugin| plugin.pre_start).map(|one| one.client.clone())
    };
    let Some(mut client) = client else { return Ok(()) };
    let call = client.pre_start_container(PreStartContainerRequest { devices_ids });
    let failed = |text| format!("device plugin PreStartContainer rpc failed with err: {text}");
    match tokio::time::timeout(PRE_START_DEADLINE, call).await {
        Ok(answer) => answer.map(drop).map_err(|status| failed(in_go(&status))),
        Err(_) => Err(failed("context deadline exceeded".to_owned())),
    }
}

/// Of two resources that set the same value the first applies; CDI names appear once.
fn add(options: &mut ContainerAllocateResponse, more: ContainerAllocateResponse) {
    for (name, value) in more.envs {
        options.envs.entry(name).or_insert(value);
    }
    for (key, value) in more.annotations {
        options.annotations.entry(key).or_insert(value);
    }
    for mount in more.mounts {
        if options.mounts.iter().all(|ours| ours.container_path != mount.container_path) {
            options.mounts.push(mount);
        }
    }
    for device in more.devices {
        if options.devices.iter().all(|ours| ours.container_path != device.container_path) {
            options.devices.push(device);
        }
    }
    for device in more.cdi_devices {
        if !options.cdi_devices.contains(&device) {
            options.cdi_devices.push(device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::v1beta1::{CdiDevice, DeviceSpec, Mount};

    #[test]
    fn the_first_resource_counts_where_two_disagree() {
        let answer = |value: &str| ContainerAllocateResponse {
            envs: [("A".to_owned(), value.to_owned()), (value.to_owned(), "1".to_owned())].into_iter().collect(),
            mounts: vec![Mount { container_path: "/m".into(), host_path: value.into(), read_only: true }],
            devices: vec![DeviceSpec {
                container_path: "/dev/x".into(),
                host_path: value.into(),
                ..Default::default()
            }],
            cdi_devices: vec![CdiDevice { name: "v/c=1".into() }],
            ..Default::default()
        };
        let mut options = ContainerAllocateResponse::default();
        add(&mut options, answer("first"));
        add(&mut options, answer("second"));
        assert_eq!(options.envs["A"], "first");
        assert_eq!(options.envs.len(), 3);
        assert_eq!((options.mounts.len(), options.mounts[0].host_path.as_str()), (1, "first"));
        assert_eq!((options.devices.len(), options.devices[0].host_path.as_str()), (1, "first"));
        assert_eq!(options.cdi_devices.len(), 1);
    }
}
