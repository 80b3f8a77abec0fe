//! What was typed, made into validated settings before anything is opened or bound.
//!
//! In: arguments, environment, a configuration file. Out: a command run and an exit code. Refuses to know: how any of it
//! is done.

mod arguments;
mod config_file;
mod logging;
mod settings;
mod usage;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::agent::{self, AgentError, DemoError};
use crate::metrics::catalogue;
use arguments::{AgentArguments, Arguments, Command, DemoArguments, MetricsFormat, ProbeArguments, ProbeFormat};

/// Ended as asked.
const ENDED: u8 = 0;
/// Failed while running.
const FAILED: u8 = 1;
/// Wrong usage or configuration; nothing was opened or bound.
const USAGE: u8 = 2;
/// A listener could not be bound.
const BIND: u8 = 3;

/// An exit code and what to say.
struct Failed(u8, String);

#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Arguments::try_parse() {
        Ok(arguments) => run(arguments.command),
        Err(error) => {
            // Help and version are not failures; clap prints each where it belongs.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { ENDED });
        }
    };
    match outcome {
        Ok(()) => ExitCode::from(ENDED),
        Err(Failed(code, message)) => {
            let _ = writeln!(std::io::stderr(), "podmeter: {message}");
            ExitCode::from(code)
        }
    }
}

fn run(command: Command) -> Result<(), Failed> {
    match command {
        Command::Agent(arguments) => run_agent(*arguments),
        Command::Demo(arguments) => run_demo(&arguments),
        Command::Metrics { output } => say(&match output {
            MetricsFormat::Markdown => catalogue::markdown(),
            MetricsFormat::Json => catalogue::json(),
        }),
        Command::CheckConfig { file } => {
            settings::check_file(&file).map_err(misused)?;
            say(&format!("{}: valid\n", file.display()))
        }
        Command::Usage(arguments) => usage::run(&arguments),
        Command::ProbeNvml(arguments) => run_probe(arguments),
    }
}

fn run_agent(arguments: AgentArguments) -> Result<(), Failed> {
    let settings = settings::resolve(arguments.clone()).map_err(misused)?;
    let log = logging::start(settings.log_format, &settings.reloadable.log_level);
    let started = settings.clone();
    let reload = Box::new(move || {
        let reread = settings::resolve(arguments.clone()).map_err(|error| error.to_string())?;
        let keys = started.restart_needed_for(&reread);
        if !keys.is_empty() {
            tracing::warn!(keys = keys.join(", "), "these have changed and take a restart of podmeter");
        }
        log.set_level(&reread.reloadable.log_level);
        Ok(reread.reloadable)
    });
    block_on(agent::run(settings, reload))?.map_err(|error| match error {
        AgentError::Bind(error) => Failed(BIND, error.to_string()),
        error => Failed(FAILED, error.to_string()),
    })
}

fn run_demo(arguments: &DemoArguments) -> Result<(), Failed> {
    let log = logging::start(agent::LogFormat::Text, "warn,podmeter=info");
    drop(log);
    block_on(agent::demo(arguments.settings()))?.map_err(|error| match error {
        DemoError::Agent(AgentError::Bind(error)) => Failed(BIND, error.to_string()),
        error => Failed(FAILED, error.to_string()),
    })
}

fn run_probe(arguments: ProbeArguments) -> Result<(), Failed> {
    let search = settings::library_search(arguments.nvml_library, arguments.driver_root);
    let probe = agent::probe_nvml(search, arguments.passes).map_err(|error| Failed(FAILED, error.to_string()))?;
    if let Some(file) = &arguments.record {
        std::fs::write(file, probe.recording()).map_err(|error| {
            Failed(FAILED, format!("{}: {error}; give --record a file that can be written", file.display()))
        })?;
    }
    say(&match arguments.output {
        ProbeFormat::Json => probe.json(),
        ProbeFormat::Text => probe.text(),
    })
}

fn misused(error: impl std::fmt::Display) -> Failed {
    Failed(USAGE, error.to_string())
}

/// Two threads: one page at a time is made, and a second request need not wait for it.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failed(FAILED, format!("the runtime could not be started: {error}")))?;
    let outcome = runtime.block_on(work);
    // Whoever still waits for a driver that does not answer is left behind.
    runtime.shutdown_background();
    Ok(outcome)
}

/// The one writer to standard output. A reader that has gone (`| head`) is not a failure.
fn say(text: &str) -> Result<(), Failed> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failed(FAILED, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
