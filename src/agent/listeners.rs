//! Binds the listeners of the settings, and logs their addresses. Does not use: what they serve.

use super::OnListening;
use super::settings::AgentSettings;
use crate::serve::web::{BindError, ListenAddress, Listener, Purpose};

/// The listeners of the agent.
pub struct Bound {
    pub listeners: Vec<Listener>,
    /// The admin socket while another process listens on it, such as the previous agent in a rolling update.
    pub awaited: Option<ListenAddress>,
}

pub async fn bind(settings: &AgentSettings) -> Result<Bound, BindError> {
    let (mut listeners, mut awaited) = (vec![], None);
    for address in &settings.listen {
        listeners.push(Listener::bind(address, Purpose::Public).await?);
    }
    if let Some(address) = &settings.probe_listen {
        listeners.push(Listener::bind(address, Purpose::Probes).await?);
    }
    if let Some(path) = &settings.admin_socket {
        let address = ListenAddress::Unix(path.clone());
        match Listener::bind(&address, Purpose::Admin).await {
            Ok(listener) => listeners.push(listener),
            Err(BindError::InUse { .. }) => {
                tracing::warn!(
                    path = %path.display(),
                    "another process listens on the admin socket; podmeter retries until that process has ended, and local \
                     commands reach that process until then"
                );
                awaited = Some(address);
            }
            Err(error) if settings.admin_socket_required => return Err(error),
            Err(error) => tracing::warn!(%error, "the admin socket is not served; local commands need --url"),
        }
    }
    Ok(Bound { listeners, awaited })
}

impl Bound {
    /// Logs each address and passes the first one to `opened`.
    pub fn announce(&self, encrypted: bool, opened: OnListening) {
        for listener in &self.listeners {
            match &listener.address {
                ListenAddress::Tcp(address) if listener.purpose != Purpose::Probes => {
                    let scheme = if encrypted { "https" } else { "http" };
                    tracing::info!(page = %format_args!("{scheme}://{address}/"), %address, "listening");
                }
                address => tracing::info!(%address, "listening"),
            }
        }
        if let Some(first) = self.listeners.first() {
            opened(&first.address);
        }
    }
}
