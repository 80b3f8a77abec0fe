use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::agent::LogFormat;

/// Changes what is logged while running.
pub struct Log(reload::Handle<Targets, Registry>);

/// Logs go to standard error. `level` has been validated.
pub fn start(format: LogFormat, level: &str) -> Log {
    let (filter, handle) = reload::Layer::new(targets(level));
    let output = match format {
        LogFormat::Text => fmt::layer().with_writer(std::io::stderr).with_ansi(false).with_target(false).boxed(),
        LogFormat::Json => fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(output).init();
    Log(handle)
}

impl Log {
    pub fn set_level(&self, level: &str) {
        if let Err(error) = self.0.reload(targets(level)) {
            tracing::warn!(%error, "the log level stays as it was");
        }
    }
}

fn targets(level: &str) -> Targets {
    level.parse().expect("the settings hold only what can be read")
}
