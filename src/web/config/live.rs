use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tracing::{error, info, warn};

use super::{WebConfig, WebConfigError};
use crate::clock::Clock;
use crate::model::{ConfigReload, Monotonic, UnixSeconds};

/// The files are looked at once in this time at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A file system that takes longer is not waited for; what was read last stands.
const LOOK_DEADLINE: Duration = Duration::from_secs(1);

/// The web configuration as it is now. Whoever asks has it read again when a file has changed; a bad file changes nothing
/// and is told once.
#[derive(Clone)]
pub struct LiveConfig {
    path: PathBuf,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

struct State {
    current: Arc<WebConfig>,
    last_success: UnixSeconds,
    looked: Monotonic,
    looking: bool,
    problem: Option<String>,
}

impl LiveConfig {
    pub fn load(path: &Path, clock: Clock) -> Result<Self, WebConfigError> {
        let current = Arc::new(WebConfig::load(path)?);
        tell(path, &current);
        let now = clock.now();
        let state = State { current, last_success: now.unix, looked: now.monotonic, looking: false, problem: None };
        Ok(Self { path: path.to_owned(), clock, state: Arc::new(Mutex::new(state)) })
    }

    /// The configuration, no older than half a second, or the last good one.
    pub async fn current(&self) -> Arc<WebConfig> {
        let now = self.clock.now().monotonic;
        {
            let mut state = self.state();
            if state.looking || now.since(state.looked) < LOOK_INTERVAL {
                return Arc::clone(&state.current);
            }
            state.looking = true;
        }
        let live = self.clone();
        let looking = tokio::task::spawn_blocking(move || live.look());
        if let Ok(Err(broken)) = tokio::time::timeout(LOOK_DEADLINE, looking).await {
            error!(%broken, "reading the web configuration broke; please report this");
            self.state().looking = false;
        }
        Arc::clone(&self.state().current)
    }

    /// Whether pages are served over TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.state().current.tls.is_some()
    }

    /// How the last reading went.
    #[must_use]
    pub fn reload(&self) -> ConfigReload {
        let state = self.state();
        ConfigReload { successful: state.problem.is_none(), last_success: state.last_success }
    }

    fn look(&self) {
        let (current, had_problem) = {
            let state = self.state();
            (Arc::clone(&state.current), state.problem.is_some())
        };
        let read = (had_problem || current.is_stale()).then(|| self.read_again(&current));
        let now = self.clock.now();
        let mut state = self.state();
        (state.looked, state.looking) = (now.monotonic, false);
        match read {
            None => {}
            Some(Ok(read)) => {
                info!(file = %self.path.display(), "web configuration re-read");
                tell(&self.path, &read);
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
            let problem = "tls_server_config is gone; only a restart of podmeter goes back to plain HTTP".to_owned();
            return Err(WebConfigError::Invalid { file: self.path.clone(), problem });
        }
        // Or it was read while it was being written.
        if !current.users.is_empty() && read.users.is_empty() {
            let problem = "basic_auth_users is gone; only a restart of podmeter does without passwords".to_owned();
            return Err(WebConfigError::Invalid { file: self.path.clone(), problem });
        }
        Ok(read)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn tell(path: &Path, config: &WebConfig) {
    for warning in &config.warnings {
        warn!(file = %path.display(), "{warning}");
    }
}
