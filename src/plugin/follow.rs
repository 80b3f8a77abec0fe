//! A registration, for as long as the kubelet uses it. Where another plugin has replaced it, it is left as it is: up to
//! 1.36 the end of our stream would end the other plugin's registration.

use std::sync::Arc;

use super::OnConflict;
use super::check::{CheckInputs, RegistrationCheck, RegistrationState};
use super::lifecycle::{Ended, Lifecycle, displaced};
use super::live_sockets::LiveSockets;
use super::server::Server;
use super::sockets::{self, Identity};

impl Lifecycle {
    /// Until it ends. `harmless` are the sockets of plugins that this registration has replaced.
    pub(super) async fn follow(&mut self, server: &Server, kubelet: Option<Identity>, harmless: LiveSockets) -> Ended {
        let kubelet_socket = sockets::kubelet_socket(&self.directory);
        let resource = self.resource();
        let mut check = RegistrationCheck::new(resource, &self.live_sockets(), harmless, self.now());
        let listed = tokio::time::timeout(self.deadlines.list, server.watched());
        let (mut listed, mut is_listed) = (Box::pin(listed), false);
        let mut replaced = None;
        loop {
            if let Some(ended) = displaced(&kubelet_socket, kubelet, server) {
                return ended;
            }
            match self.examine(&mut check, server) {
                RegistrationState::Used => {
                    if replaced.take().is_some() {
                        self.in_use(server);
                    }
                }
                RegistrationState::Replaced(by) => {
                    if self.state.config.on_conflict() == OnConflict::Takeover {
                        return Ended::Replaced(by);
                    }
                    if replaced.as_ref() != Some(&by) {
                        self.replaced(server, &by);
                        replaced = Some(by);
                    }
                }
                RegistrationState::OtherEnded => return Ended::OtherGone,
                RegistrationState::Forgotten => return Ended::Forgotten,
            }
            let now = self.now();
            let scan_in = check.scan_at().map(|at| at.since(now));
            tokio::select! {
                // An error is the agent ending.
                changed = self.changes.changed() => if changed.is_err() { std::future::pending().await },
                changed = self.live.changed() => if changed.is_err() { std::future::pending().await },
                changed = self.kubelet.changed() => if changed.is_err() { std::future::pending().await },
                () = tokio::time::sleep(scan_in.unwrap_or_default()), if scan_in.is_some() => {
                    check.scanned(self.now());
                    self.state.look.notify_one();
                }
                () = server.stream_lost() => return Ended::StreamLost,
                outcome = &mut listed, if !is_listed => match outcome {
                    Ok(()) => {
                        is_listed = true;
                        check.sent(self.now());
                    }
                    Err(_) => return Ended::NotListed(self.deadlines.list),
                },
            }
        }
    }

    fn examine(&mut self, check: &mut RegistrationCheck, server: &Server) -> RegistrationState {
        let (live, now) = (self.live_sockets(), self.now());
        let kubelet = Arc::clone(&self.kubelet.borrow_and_update());
        let offer = Arc::clone(&self.state.offer.borrow());
        let mut grants = self.state.grants();
        let inputs = CheckInputs {
            live: &live,
            kubelet: &kubelet,
            offer: &offer,
            advertised: &self.advertised,
            grants: &mut grants,
            list_sent_at: server.list_sent_at(),
        };
        check.examine(inputs, now)
    }

    fn replaced(&self, server: &Server, by: &str) {
        server.hold_back(true);
        self.state.status.replaced(by);
        tracing::warn!(resource = %self.resource(), "waiting: {by}");
    }

    fn in_use(&self, server: &Server) {
        server.hold_back(false);
        self.state.status.in_use();
        tracing::info!(resource = %self.resource(), "the kubelet allocates through podmeter again");
    }
}
