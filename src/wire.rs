//! The messages of the kubelet's gRPC services, generated from `proto/`, and the connection to a gRPC server on a unix
//! socket. Only `kubelet`, `plugin` and `simulation` use them: each converts them to or from types of the model.

#![allow(clippy::all, missing_docs, reason = "generated code")]

use std::io;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error};

/// A channel over one connection. It does not connect again by itself: its owner sees that the connection was lost.
pub async fn channel_over(stream: UnixStream) -> Result<Channel, Error> {
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        async move { stream }
    });
    // The authority that the kubelet's own clients send.
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}

pub mod v1 {
    tonic::include_proto!("v1");
}

/// Kubernetes' own types, as far as the Pods API carries them.
pub mod core_v1 {
    tonic::include_proto!("core.v1");
}

/// The Pods API.
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}
