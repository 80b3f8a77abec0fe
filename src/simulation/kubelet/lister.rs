//! The PodResources API.

use std::sync::Arc;

use tonic::{Request, Response, Status, async_trait};

use super::faults::{Method, stuck_pod};
use super::shared::SharedKubelet;
use crate::wire::v1;

#[derive(Clone, Debug)]
pub struct Lister(pub Arc<SharedKubelet>);

impl Lister {
    async fn admit(&self, method: Method) -> Result<(), Status> {
        let shared = &self.0;
        let now = shared.now();
        if !shared.limiter.lock().try_consume(now) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        shared.fault(method).await
    }
}

#[async_trait]
impl v1::pod_resources_lister_server::PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.admit(Method::List).await?;
        let mut response = self.0.state.lock().list();
        response.pod_resources.extend(self.0.faults.borrow().answer_bytes.map(stuck_pod));
        Ok(Response::new(response))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.admit(Method::GetAllocatableResources).await?;
        Ok(Response::new(self.0.state.lock().allocatable()))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.admit(Method::Get).await?;
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let state = self.0.state.lock();
        if !state.options.gates.get {
            return Err(Status::unknown("PodResources API Get method disabled"));
        }
        let Some(pod) = state.get(&pod_namespace, &pod_name) else {
            return Err(Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")));
        };
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources: Some(pod) }))
    }
}
