//! The gRPC service of one resource. Every call is answered from memory: the kubelet's main loop waits for it.
//!
//! In: the offer, what the host has, the last readings and allocations. Out: the device list and the answers; a notice of
//! each granted allocation. Does not use: sockets, registrations.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use super::container_response::{AllocationRefusal, container_response, device_ids};
use super::pre_start;
use super::preferred_allocation::preferred_allocation;
use crate::clock::Clock;
use crate::domain::model::DeviceId;
use crate::domain::periods::{LIST_PROCESSED, LISTS_COALESCED};
use crate::plugin::config::EntryConfig;
use crate::plugin::host::HostFacts;
use crate::plugin::inputs::PluginInputs;
use crate::plugin::offer::{Offer, OfferedDevice};
use crate::plugin::status::{CallResult, ResourceStatus};
use crate::wire::v1beta1::device_plugin_server::DevicePlugin;
use crate::wire::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, TopologyInfo,
};

/// What a resource's servers answer from, across all its registrations, and the status that they publish.
#[derive(Clone, Debug)]
pub struct ServiceInputs {
    pub config: Arc<EntryConfig>,
    pub offer: watch::Receiver<Arc<Offer>>,
    pub facts: watch::Receiver<Arc<HostFacts>>,
    /// The inputs that all resources share.
    pub plugin: PluginInputs,
    pub status: ResourceStatus,
    pub clock: Clock,
}

/// How many streams of the list are open; `None` before the first.
pub type OpenStreams = Option<usize>;

/// The kubelet's calls of one server that show that it uses this plugin.
#[derive(Clone, Debug, Default)]
pub struct AnsweredCalls {
    /// The number of calls of Allocate and GetPreferredAllocation: its change is the signal.
    pub count: u64,
    /// How often each device was granted.
    pub granted: BTreeMap<DeviceId, u64>,
}

/// Counts a stream as open while it exists, also where its task panics.
struct CountedStream(watch::Sender<OpenStreams>);

impl CountedStream {
    fn open(streams: watch::Sender<OpenStreams>) -> Self {
        streams.send_modify(|open| *open = Some(open.unwrap_or(0) + 1));
        Self(streams)
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.map(|open| open - 1));
    }
}

/// Answers the calls of one server.
#[derive(Clone, Debug)]
pub struct PluginService {
    pub inputs: ServiceInputs,
    /// Ends the streams when it becomes true.
    pub closing: watch::Receiver<bool>,
    pub streams: watch::Sender<OpenStreams>,
    pub calls: watch::Sender<AnsweredCalls>,
}

#[async_trait]
impl DevicePlugin for PluginService {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.inputs.config.pre_start_check().is_some(),
            get_preferred_allocation_available: self.inputs.config.nvidia().is_some(),
        }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let Self { inputs, closing, streams, .. } = self.clone();
        let counted = CountedStream::open(streams);
        tokio::spawn(async move {
            let _counted = counted;
            send_lists(inputs, closing, sender).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let inputs = &self.inputs;
        let began = inputs.clock.now().monotonic;
        let (offer, facts) = (Arc::clone(&inputs.offer.borrow()), Arc::clone(&inputs.facts.borrow()));
        let holders = Arc::clone(&inputs.plugin.holders.borrow());
        let (mut container_responses, mut fallbacks) = (vec![], vec![]);
        for request in request.into_inner().container_requests {
            let choose = |nvidia| preferred_allocation(nvidia, &offer, &facts.topology, &holders, &request);
            // A resource of another kind has no preferences.
            let choice = inputs.config.nvidia().map(choose).unwrap_or_default();
            fallbacks.extend(choice.fallback.map(<&str>::from));
            let device_i_ds = choice.ids.iter().map(ToString::to_string).collect();
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        self.calls.send_modify(|calls| calls.count += 1);
        inputs.status.preferred(&fallbacks, inputs.clock.now().monotonic.since(began));
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let inputs = &self.inputs;
        let began = inputs.clock.now().monotonic;
        let (offer, facts) = (Arc::clone(&inputs.offer.borrow()), Arc::clone(&inputs.facts.borrow()));
        let requests = request.into_inner().container_requests;
        let requested: Vec<Vec<DeviceId>> =
            requests.iter().map(|container| device_ids(&container.devices_ids)).collect();
        let answers: Result<_, _> =
            requested.iter().map(|ids| container_response(&inputs.config, &offer, ids, &facts.driver_files)).collect();
        let result = answers.as_ref().map_or_else(|refusal| refusal.result, |_| CallResult::Ok);
        let response = answers.map_err(|refusal| refused(&offer, "an allocation was refused", &refusal));
        inputs.status.allocated(result, inputs.clock.now().monotonic.since(began));
        self.calls.send_modify(|calls| {
            calls.count += 1;
            for id in requested.into_iter().flatten().filter(|_| response.is_ok()) {
                *calls.granted.entry(id).or_default() += 1;
            }
        });
        if response.is_ok() {
            inputs.plugin.allocated.notify_one();
        }
        response.map(|container_responses| Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let inputs = &self.inputs;
        let Some(rules) = inputs.config.pre_start_check() else {
            return Ok(Response::new(PreStartContainerResponse {}));
        };
        let (offer, holders) = (Arc::clone(&inputs.offer.borrow()), Arc::clone(&inputs.plugin.holders.borrow()));
        let checked =
            pre_start::check(rules, &offer, &holders.hardware, &device_ids(&request.into_inner().devices_ids));
        let result = checked.as_ref().map_or_else(|refusal| refusal.result, |()| CallResult::Ok);
        inputs.status.checked_before_start(result);
        let answer = checked.map(|()| Response::new(PreStartContainerResponse {}));
        answer.map_err(|refusal| refused(&offer, "a container start was refused", &refusal))
    }
}

/// Sends the list at once and after each change, until the client disconnects or the server closes.
async fn send_lists(
    inputs: ServiceInputs,
    mut closing: watch::Receiver<bool>,
    sender: mpsc::Sender<Result<ListAndWatchResponse, Status>>,
) {
    let (mut offers, mut sent) = (inputs.offer.clone(), None::<Arc<Offer>>);
    let send = async {
        loop {
            let offer = Arc::clone(&offers.borrow_and_update());
            let is_new = sent.as_ref().is_none_or(|sent| !is_same_list(sent, &offer));
            if is_new {
                if sender.send(Ok(list(&offer))).await.is_err() {
                    return;
                }
                sent = Some(offer);
            }
            // A change after the pause is sent at once; changes within it are sent together at its end.
            let pause = async {
                if is_new {
                    tokio::time::sleep(LIST_PROCESSED).await;
                    inputs.plugin.refresh_allocatable.notify_one();
                    tokio::time::sleep(LISTS_COALESCED - LIST_PROCESSED).await;
                }
            };
            tokio::select! {
                ((), changed) = async { tokio::join!(pause, offers.changed()) } => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    };
    tokio::select! {
        () = send => {}
        // An error means that the server is dropped.
        _ = closing.wait_for(|closing| *closing) => {}
    }
}

fn is_same_list(sent: &Offer, now: &Offer) -> bool {
    let is_same = |(sent, now): (&OfferedDevice, &OfferedDevice)| {
        (&sent.id, sent.health.is_ok(), &sent.numa_nodes) == (&now.id, now.health.is_ok(), &now.numa_nodes)
    };
    sent.devices.len() == now.devices.len() && sent.devices.iter().zip(&now.devices).all(is_same)
}

/// The list of every device, in the offer's order.
fn list(offer: &Offer) -> ListAndWatchResponse {
    ListAndWatchResponse { devices: offer.devices.iter().map(device).collect() }
}

fn device(device: &OfferedDevice) -> Device {
    let health = if device.health.is_ok() { "Healthy" } else { "Unhealthy" };
    let nodes: Vec<NumaNode> = device.numa_nodes.iter().map(|id| NumaNode { id: *id }).collect();
    // An empty topology would hide the device from GetAllocatableResources.
    let topology = (!nodes.is_empty()).then_some(TopologyInfo { nodes });
    Device { id: device.id.as_str().to_owned(), health: health.to_owned(), topology }
}

/// Logs a refusal and returns its gRPC status.
fn refused(offer: &Offer, what: &str, refusal: &AllocationRefusal) -> Status {
    tracing::warn!(resource = %offer.resource, %refusal, "{what}");
    let text = refusal.to_string();
    match refusal.result {
        CallResult::UnknownDevice => Status::invalid_argument(text),
        _ => Status::failed_precondition(text),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::domain::model::UnhealthyReason;
    use crate::plugin::offer::{OfferedHardware, PluginUnhealthy};
    use crate::plugin::test_data::service_inputs;
    use std::time::Duration;

    fn offer(devices: usize) -> Arc<Offer> {
        let device = |number| OfferedDevice::new(format!("simulated-{number}").as_str(), OfferedHardware::Nothing);
        Arc::new(Offer { resource: "example.com/toy".into(), devices: (0..devices).map(device).collect() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_after_a_pause_is_sent_at_once_and_those_that_follow_together() {
        let (publish_offer, inputs) = service_inputs(Offer::clone(&offer(1)));
        let refresh_allocatable = Arc::clone(&inputs.plugin.refresh_allocatable);
        let (_closing, closing) = watch::channel(false);
        let (sender, mut lists) = mpsc::channel(1);
        let task = tokio::spawn(send_lists(inputs, closing, sender));
        let mut began = Instant::now();
        // The number of devices in the next list, and the milliseconds since the last one.
        let mut next = async || {
            let list = lists.recv().await.unwrap().unwrap();
            let waited = began.elapsed().as_millis();
            began = Instant::now();
            (list.devices.len(), waited)
        };
        assert_eq!(next().await, (1, 0));
        tokio::time::sleep(Duration::from_secs(1)).await;
        publish_offer.send_replace(offer(2));
        assert_eq!(next().await, (2, 1000), "at once");
        publish_offer.send_replace(offer(3));
        tokio::time::sleep(Duration::from_millis(10)).await;
        publish_offer.send_replace(offer(4));
        assert_eq!(next().await, (4, 50), "both together");
        publish_offer.send_replace(offer(4));
        tokio::time::sleep(Duration::from_millis(500)).await;
        publish_offer.send_replace(offer(5));
        assert_eq!(next().await, (5, 500), "an equal list is not sent");
        refresh_allocatable.notified().await;
        drop(lists);
        task.await.unwrap();
    }

    #[test]
    fn an_unknown_topology_is_left_out_and_a_known_one_is_sent() {
        let device = |id: &str, nodes: &[i64], health| {
            let numa_nodes = nodes.iter().copied().collect();
            OfferedDevice { numa_nodes, health, ..OfferedDevice::new(id, OfferedHardware::Nothing) }
        };
        let devices = vec![
            device("a", &[], Ok(())),
            device("b", &[0, 1], Err(PluginUnhealthy::device(UnhealthyReason::Lost, "lost"))),
        ];
        let list = list(&Offer { resource: "example.com/x".into(), devices });
        assert_eq!((list.devices[0].health.as_str(), list.devices[0].topology.clone()), ("Healthy", None));
        assert_eq!(list.devices[1].health, "Unhealthy");
        let nodes = &list.devices[1].topology.as_ref().unwrap().nodes;
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
    }
}
