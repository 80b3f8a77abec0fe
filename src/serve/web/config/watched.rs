//! The web configuration in force.
//!
//! In: the path of the file, and a check each second. Out: the last valid configuration, and the outcome of the last reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use super::{WebConfig, WebConfigError};
use crate::clock::Clock;
use crate::domain::model::{ConfigReload, UnixSeconds};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The current web configuration, read again when a file has changed. An invalid file changes nothing and is logged
/// once.
#[derive(Clone)]
pub struct WatchedConfig {
    path: PathBuf,
    clock: Clock,
    state: Arc<Mutex<LoadedConfig>>,
}

struct LoadedConfig {
    current: Arc<WebConfig>,
    last_success: UnixSeconds,
    problem: Option<String>,
}

impl WatchedConfig {
    pub fn load(path: &Path, clock: Clock) -> Result<Self, WebConfigError> {
        let current = Arc::new(WebConfig::load(path)?);
        log_warning(path, &current);
        let state = LoadedConfig { current, last_success: clock.now().unix, problem: None };
        Ok(Self { path: path.to_owned(), clock, state: Arc::new(Mutex::new(state)) })
    }

    /// The last valid configuration.
    pub fn current(&self) -> Arc<WebConfig> {
        Arc::clone(&self.state.lock().current)
    }

    /// Whether `Public` listeners use TLS.
    pub fn is_encrypted(&self) -> bool {
        self.current().tls.is_some()
    }

    /// Whether clients need TLS or a password; headers alone keep out nobody.
    pub fn is_guarded(&self) -> bool {
        let current = self.current();
        current.tls.is_some() || !current.users.is_empty()
    }

    /// The outcome of the last reading.
    pub fn last_reload(&self) -> ConfigReload {
        let state = self.state.lock();
        ConfigReload { successful: state.problem.is_none(), last_success: state.last_success }
    }

    /// Checks the files every second. A file system that does not respond delays this, and holds one of the web server's
    /// blocking threads.
    pub(in crate::serve::web) async fn follow(self) {
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            let this = self.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || this.check()).await {
                error!(%error, "reading the web configuration panicked; please report this");
            }
        }
    }

    fn check(&self) {
        let (current, had_problem) = {
            let state = self.state.lock();
            (Arc::clone(&state.current), state.problem.is_some())
        };
        if !had_problem && !current.files.changed() {
            return;
        }
        let read = self.read_again(&current);
        let mut state = self.state.lock();
        match read {
            Ok(read) => {
                info!(file = %self.path.display(), "web configuration re-read");
                log_warning(&self.path, &read);
                *state = LoadedConfig { current: Arc::new(read), last_success: self.clock.now().unix, problem: None };
            }
            Err(problem) => {
                let problem = problem.to_string();
                if state.problem.as_ref() != Some(&problem) {
                    error!(%problem, "web configuration not re-read: the old one stays in force");
                }
                state.problem = Some(problem);
            }
        }
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
