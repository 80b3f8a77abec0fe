//! The web configuration in force.
//!
//! In: the path of the file, and a check each second. Out: the last valid configuration, and the outcome of the last reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use super::{WebConfig, WebConfigError};
use crate::clock::Clock;
use crate::domain::model::{ConfigReload, UnixSeconds};
use crate::tasks;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The current web configuration, read again when a file has changed. An invalid file changes nothing and is logged
/// once.
#[derive(Clone)]
pub struct WatchedConfig {
    path: PathBuf,
    clock: Clock,
    /// Changes where a file has another content.
    current: watch::Sender<Arc<WebConfig>>,
    state: Arc<Mutex<LastReading>>,
}

struct LastReading {
    last_success: UnixSeconds,
    problem: Option<String>,
}

impl WatchedConfig {
    pub fn load(path: &Path, clock: Clock) -> Result<Self, WebConfigError> {
        let current = Arc::new(WebConfig::load(path)?);
        log_warning(path, &current);
        let state = Arc::new(Mutex::new(LastReading { last_success: clock.now().unix, problem: None }));
        Ok(Self { path: path.to_owned(), clock, current: watch::Sender::new(current), state })
    }

    /// The last valid configuration.
    pub fn current(&self) -> Arc<WebConfig> {
        Arc::clone(&self.current.borrow())
    }

    /// A receiver of the configuration, for what must end when it changes.
    pub(in crate::serve::web) fn changes(&self) -> watch::Receiver<Arc<WebConfig>> {
        self.current.subscribe()
    }

    /// Whether `Public` listeners use TLS.
    pub fn is_encrypted(&self) -> bool {
        self.current().tls.is_some()
    }

    /// Whether clients need TLS or a password; headers alone do not restrict access.
    pub fn is_guarded(&self) -> bool {
        let current = self.current();
        current.tls.is_some() || !current.users.is_empty()
    }

    /// The outcome of the last reading.
    pub fn last_reload(&self) -> ConfigReload {
        let state = self.state.lock();
        ConfigReload { successful: state.problem.is_none(), last_success: state.last_success }
    }

    /// Checks the files every second, on one of the web server's blocking threads. A file system that does not respond is a
    /// failure until it does.
    pub(in crate::serve::web) async fn follow(self) {
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            let this = self.clone();
            let late =
                || self.failed("its files cannot be read: their file system has not responded for 10 s".to_owned());
            if let Err(error) = tasks::blocking(move || this.check(), late).await {
                error!(%error, "reading the web configuration panicked; please report this");
            }
        }
    }

    fn check(&self) {
        let (current, had_problem) = (self.current(), self.state.lock().problem.is_some());
        if !had_problem && !current.files.changed() {
            return;
        }
        match self.read_again(&current) {
            Ok(read) => {
                info!(file = %self.path.display(), "web configuration re-read");
                log_warning(&self.path, &read);
                *self.state.lock() = LastReading { last_success: self.clock.now().unix, problem: None };
                self.current.send_if_modified(|current| {
                    let is_other = current.files.hashes != read.files.hashes;
                    *current = Arc::new(read);
                    is_other
                });
            }
            Err(problem) => self.failed(problem.to_string()),
        }
    }

    /// Logs each problem once.
    fn failed(&self, problem: String) {
        let mut state = self.state.lock();
        if state.problem.as_ref() != Some(&problem) {
            error!(%problem, "web configuration rejected: the previous one remains in use");
        }
        state.problem = Some(problem);
    }

    fn read_again(&self, current: &WebConfig) -> Result<WebConfig, WebConfigError> {
        let read = WebConfig::load(&self.path)?;
        // The file may have been read while it was written.
        let problem = if current.tls.is_some() && read.tls.is_none() {
            "tls_server_config is missing; restart podmeter to serve plain HTTP"
        } else if !current.users.is_empty() && read.users.is_empty() {
            "basic_auth_users is missing; restart podmeter to serve without passwords"
        } else if current.requires_certificates && !read.requires_certificates {
            "client_auth_type no longer requires certificates; restart podmeter to serve clients without them"
        } else {
            return Ok(read);
        };
        Err(WebConfigError::Invalid { file: self.path.clone(), problem: problem.to_owned() })
    }
}

fn log_warning(path: &Path, config: &WebConfig) {
    if let Some(warning) = config.warning() {
        warn!(file = %path.display(), "{warning}");
    }
}
