//! One listening socket of a resource, from bind to removal, and the call `Register` that names it.
//!
//! In: the service. Out: whether the kubelet has the list open, and whether the socket file is still ours.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;

use crate::domain::periods::PLUGIN_STOP;
use crate::plugin::allocate::{AnsweredCalls, OpenStreams, PluginService, ServiceInputs};
use crate::plugin::host::sockets::{self, SocketIdentity};
use crate::tasks::within;
use crate::wire::channel_over;
use crate::wire::v1beta1::RegisterRequest;
use crate::wire::v1beta1::device_plugin_server::DevicePluginServer;
use crate::wire::v1beta1::registration_client::RegistrationClient;
use crate::words;

const VERSION: &str = "v1beta1";

/// One listening socket and its server. Dropping it ends both and removes the socket.
#[derive(Debug)]
pub struct PluginServer {
    path: PathBuf,
    file: Option<SocketIdentity>,
    close: watch::Sender<bool>,
    open_streams: watch::Receiver<OpenStreams>,
    calls: watch::Receiver<AnsweredCalls>,
    task: JoinHandle<()>,
}

impl PluginServer {
    pub fn start(directory: &Path, name: &str, inputs: ServiceInputs) -> io::Result<Self> {
        let path = directory.join(name);
        let listener = UnixListener::bind(&path)?;
        let file = sockets::identity(&path);
        let (close, mut closing) = watch::channel(false);
        let (streams, open_streams) = watch::channel(None);
        let (answered, calls) = watch::channel(AnsweredCalls::default());
        let service = PluginService { inputs, closing: closing.clone(), streams, calls: answered };
        let task = tokio::spawn(async move {
            let router = tonic::transport::Server::builder().add_service(DevicePluginServer::new(service));
            // An error of `wait_for` means that the server is dropped.
            let closed = async move { drop(closing.wait_for(|closing| *closing).await) };
            if let Err(error) = router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), closed).await {
                tracing::warn!(%error, "a device plugin server ended");
            }
        });
        Ok(Self { path, file, close, open_streams, calls, task })
    }

    pub fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub fn calls(&self) -> watch::Receiver<AnsweredCalls> {
        self.calls.clone()
    }

    pub fn socket_is_there(&self) -> bool {
        sockets::identity(&self.path) == self.file
    }

    /// Registers the resource under this socket. The error is text for the operator.
    pub async fn register(&self, kubelet: &Path, resource: &str, deadline: Duration) -> Result<(), String> {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.name(),
            resource_name: resource.to_owned(),
            // The kubelet queries the options from the plugin.
            options: None,
        };
        let call = async {
            let unreachable = |error| format!("{}: {error}", kubelet.display());
            let stream = UnixStream::connect(kubelet).await.map_err(unreachable)?;
            let channel = channel_over(stream).await.map_err(|error| error.to_string())?;
            let mut client = RegistrationClient::new(channel);
            client.register(request).await.map_err(|status| status.message().to_owned())
        };
        within(deadline, call)
            .await
            .unwrap_or_else(|| Err(format!("no answer within {}", words::duration(deadline))))
            .map(drop)
    }

    /// Waits until the kubelet has opened the list.
    pub async fn list_opened(&self) {
        let mut streams = self.open_streams.clone();
        if streams.wait_for(OpenStreams::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub fn list_was_opened(&self) -> bool {
        self.open_streams.borrow().is_some()
    }

    /// Waits until there was a stream and none is left, or the server has ended.
    pub async fn stream_lost(&self) {
        let mut streams = self.open_streams.clone();
        let _ = streams.wait_for(|streams| *streams == Some(0)).await;
    }

    /// Ends the streams, then the connections.
    pub async fn close(mut self) {
        self.close.send_replace(true);
        if tokio::time::timeout(PLUGIN_STOP, &mut self.task).await.is_err() {
            tracing::debug!(socket = %self.path.display(), "calls under way were cut off");
        }
    }
}

impl Drop for PluginServer {
    fn drop(&mut self) {
        self.task.abort();
        if self.socket_is_there()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::debug!(socket = %self.path.display(), %error, "our socket cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::offer::{Offer, OfferedDevice, OfferedHardware};
    use crate::plugin::test_data::service_inputs;

    #[tokio::test]
    async fn a_socket_whose_mode_was_changed_is_still_ours_and_is_removed_at_the_end() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let device = OfferedDevice::new("toy-0", OfferedHardware::Nothing);
        let offer = Offer { resource: "example.com/toy".into(), devices: vec![device] };
        let server = PluginServer::start(directory.path(), "ours.sock", service_inputs(offer).1).unwrap();
        let socket = directory.path().join("ours.sock");
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(server.socket_is_there());
        drop(server);
        assert!(!socket.exists());
    }
}
