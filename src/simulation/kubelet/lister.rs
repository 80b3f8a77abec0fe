//! The PodResources API.

use tonic::{Request, Response, Status, async_trait};

use super::faults::{Method, stuck_pod};
use super::shared::SharedKubelet;
use crate::wire::v1;

impl SharedKubelet {
    async fn admit(&self, method: Method) -> Result<(), Status> {
        let now = self.now();
        if !self.limiter.lock().try_consume(now) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        self.fault(method).await
    }
}

#[async_trait]
impl v1::pod_resources_lister_server::PodResourcesLister for SharedKubelet {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.admit(Method::List).await?;
        let mut response = self.state.lock().list();
        response.pod_resources.extend(self.faults.borrow().answer_bytes.map(stuck_pod));
        Ok(Response::new(response))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.admit(Method::GetAllocatableResources).await?;
        Ok(Response::new(self.state.lock().allocatable()))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.admit(Method::Get).await?;
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let state = self.state.lock();
        if !state.options.gates.get {
            return Err(Status::unknown("PodResources API Get method disabled"));
        }
        let Some(pod) = state.get(&pod_namespace, &pod_name) else {
            return Err(Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")));
        };
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources: Some(pod) }))
    }
}
