//! The kubelet's gRPC types, generated from `proto/`. Only `kubelet`, `plugin` and
//! `simulation` may look in here: wire types die at those doors.

#![allow(clippy::all, missing_docs, reason = "generated code")]

pub mod v1 {
    tonic::include_proto!("v1");
}

/// Kubernetes' own types, as far as the Pods API carries them.
pub mod core_v1 {
    tonic::include_proto!("core.v1");
}

/// PodResources v1alpha1 and the Pods API share this protobuf package.
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}
