//! The start of a container: the device configuration that the runtime gets.

use std::time::Duration;

use super::FakeKubelet;
use super::registration::in_go;
use super::shared::Shared;
use crate::wire::v1beta1::{ContainerAllocateResponse, PreStartContainerRequest};
use prost::Message;

const PRE_START_DEADLINE: Duration = Duration::from_secs(30);

impl FakeKubelet {
    /// A start or restart of a container: the runtime's input, or why the container does not start. `None`: there is
    /// no such pod. Allocate is not called again; PreStartContainer is, where required.
    pub async fn start_container(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Option<Result<ContainerAllocateResponse, String>> {
        let uid = self.uid(namespace, pod)?;
        let answers = self.shared.state.lock().devices.answers_of(&uid, container);
        let mut options = ContainerAllocateResponse::default();
        for (resource, (devices, answer)) in answers {
            if let Err(error) = pre_start(&self.shared, &resource, devices).await {
                return Some(Err(error));
            }
            // A message followed by another is both, merged. A checkpoint may contain anything.
            let _ = options.merge(answer.as_slice());
        }
        Some(Ok(options))
    }
}

async fn pre_start(shared: &Shared, resource: &str, devices_ids: Vec<String>) -> Result<(), String> {
    let serial = shared.state.lock().devices.plugin(resource);
    let client = {
        let plugins = shared.plugins.lock();
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
