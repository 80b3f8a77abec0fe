use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tracing::{error, info, warn};

use super::{WebConfig, WebConfigError};
use crate::clock::Clock;
use crate::model::{ConfigReload, Monotonic, UnixSeconds};

/// The files are checked at most this often.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// With a slower file system the last configuration is used.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);

/// The current web configuration, read again when a file has changed. An invalid file changes nothing and is logged
/// once.
#[derive(Clone)]
pub struct LiveConfig {
    path: PathBuf,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

struct State {
    current: Arc<WebConfig>,
    last_success: UnixSeconds,
    checked: Monotonic,
    checking: bool,
    problem: Option<String>,
}

impl LiveConfig {
    pub fn load(path: &Path, clock: Clock) -> Result<Self, WebConfigError> {
        let current = Arc::new(WebConfig::load(path)?);
        log_warnings(path, &current);
        let now = clock.now();
        let state = State { current, last_success: now.unix, checked: now.monotonic, checking: false, problem: None };
        Ok(Self { path: path.to_owned(), clock, state: Arc::new(Mutex::new(state)) })
    }

    /// The configuration, no older than half a second, or the last good one.
    pub async fn current(&self) -> Arc<WebConfig> {
        let now = self.clock.now().monotonic;
        {
            let mut state = self.state();
            if state.checking || now.since(state.checked) < CHECK_INTERVAL {
                return Arc::clone(&state.current);
            }
            state.checking = true;
        }
        let live = self.clone();
        let checking = tokio::task::spawn_blocking(move || live.check());
        if let Ok(Err(error)) = tokio::time::timeout(CHECK_DEADLINE, checking).await {
            error!(%error, "reading the web configuration panicked; please report this");
            self.state().checking = false;
        }
        Arc::clone(&self.state().current)
    }

    /// Whether pages are served over TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.state().current.tls.is_some()
    }

    /// The outcome of the last reading.
    #[must_use]
    pub fn reload(&self) -> ConfigReload {
        let state = self.state();
        ConfigReload { successful: state.problem.is_none(), last_success: state.last_success }
    }

    fn check(&self) {
        let (current, had_problem) = {
            let state = self.state();
            (Arc::clone(&state.current), state.problem.is_some())
        };
        let read = (had_problem || current.is_stale()).then(|| self.read_again(&current));
        let now = self.clock.now();
        let mut state = self.state();
        (state.checked, state.checking) = (now.monotonic, false);
        match read {
            None => {}
            Some(Ok(read)) => {
                info!(file = %self.path.display(), "web configuration re-read");
                log_warnings(&self.path, &read);
                (state.current, state.last_success, state.problem) = (Arc::new(read), now.unix, None);
            }
            Some(Err(problem)) => {
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
        if current.tls.is_some() && read.tls.is_none() {
            let problem = "tls_server_config is missing; restart podmeter to serve plain HTTP".to_owned();
            return Err(WebConfigError::Invalid { file: self.path.clone(), problem });
        }
        // The file may have been read while it was written.
        if !current.users.is_empty() && read.users.is_empty() {
            let problem = "basic_auth_users is missing; restart podmeter to serve without passwords".to_owned();
            return Err(WebConfigError::Invalid { file: self.path.clone(), problem });
        }
        Ok(read)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn log_warnings(path: &Path, config: &WebConfig) {
    for warning in &config.warnings {
        warn!(file = %path.display(), "{warning}");
    }
}
