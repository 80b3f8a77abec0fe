//! The call `Register`, how long the kubelet may take, and why an attempt or a registration ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::tasks::within;
use crate::wire::channel_over;
use crate::wire::v1beta1::RegisterRequest;
use crate::wire::v1beta1::registration_client::RegistrationClient;
use crate::words;

const VERSION: &str = "v1beta1";

/// How long the kubelet may take to answer.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The limit of Register, within which the kubelet dials back for up to ten seconds.
    pub register: Duration,
    /// The limit for opening the list, which the kubelet does right after a registration, and only once.
    pub list: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { register: Duration::from_secs(15), list: Duration::from_secs(10) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RegistrationEnd {
    #[error("{0} is not there: the kubelet is not running, or --device-plugin-dir is not its directory")]
    NoKubelet(PathBuf),
    #[error("{path}: {error}; the directory must be there and writable, and the path have at most 107 bytes")]
    Socket { path: PathBuf, error: std::io::Error },
    #[error("the kubelet does not register the plugin: {0}")]
    Register(String),
    #[error("the kubelet registered the plugin but did not call ListAndWatch within {}", words::duration(*.0))]
    ListNotOpened(Duration),
    #[error("the kubelet ended the device list")]
    StreamLost,
    #[error("our socket file was removed")]
    SocketRemoved,
    #[error("kubelet.sock was removed: the kubelet is restarting, or its directory was cleared")]
    KubeletSocketRemoved,
    #[error("the kubelet was restarted: kubelet.sock is a new one")]
    KubeletRestarted,
    /// Another plugin took the resource, with `onConflict: takeover`: it is registered again.
    #[error("{0}")]
    TakenOver(String),
    #[error("another device plugin of the resource ended, and a kubelet up to 1.36 drops the resource with it")]
    OtherPluginEnded,
    #[error("the kubelet no longer lists our devices (another plugin of the resource may have ended)")]
    Unlisted,
}

/// Registers the resource under the socket `endpoint`. The error is text for the operator.
pub async fn register(kubelet: &Path, endpoint: String, resource: &str, deadline: Duration) -> Result<(), String> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint,
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
