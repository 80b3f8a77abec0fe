//! The command line. It validates settings before anything is opened or bound.
//!
//! In: arguments, environment, a configuration file. Out: a command's output and an exit code. Does not contain: the work
//! of `agent`, `demo`, `top` and `doctor`, which are modules of their own.

mod admin;
mod arguments;
mod completion;
mod demo;
mod doctor;
mod health;
mod log_line;
mod logging;
mod nvidia;
mod options;
mod settings;
#[cfg(test)]
mod tests;
mod usage;
mod value;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::agent::{self, AgentError};
use crate::commands::client;
use crate::commands::top::{self, TopSettings};
use crate::domain::periods::LAST_LINES;
use crate::serve::metrics::catalogue;
use crate::tasks;
use crate::terminal::harmless;
use arguments::{Arguments, CliCommand, RecordArguments, TopArguments};
use options::AgentOptions;
use settings::ResolvedOptions;

#[cfg(any(test, fuzzing))]
pub(crate) use nvidia::environment;
pub use settings::check_text;

/// Success.
const ENDED: u8 = 0;
/// Failed while running.
const FAILED: u8 = 1;
/// Wrong usage or configuration; nothing was opened or bound.
const USAGE: u8 = 2;
/// A listener could not be bound.
const BIND: u8 = 3;

/// Bytes that a writable pipe accepts without blocking (`limits.h`).
const PIPE_BUF: usize = 4096;

/// One thread for each operation that may hang. The agent has nine: processes, scans of the host, the kubelet's checkpoint, files of
/// claims, pod logs, the configuration, the files of faults and of the condition, and at the end the journal. The doctor has fewer.
const BLOCKING_THREADS: usize = 9;

/// The width of help: longer lines are hard to read.
const MOST_COLUMNS: usize = 100;

/// Exit code and message.
struct Failed(u8, String);

pub fn main() -> ExitCode {
    let outcome = match parse() {
        Ok(arguments) => run(arguments.command),
        Err(error) => {
            // Help and version are not failures; clap prints each where it belongs.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { ENDED });
        }
    };
    let code = match outcome {
        Ok(code) => code,
        Err(Failed(code, message)) => {
            let lines: Vec<String> = message.lines().map(harmless).collect();
            write_last_message(&format!("podmeter: {}\n", lines.join("\n")));
            code
        }
    };
    // A thread may still be inside the driver.
    let _ = std::io::stdout().flush();
    agent::end_process(code)
}

/// On standard error, if it is writable in time.
fn write_last_message(message: &str) {
    let mut stderr = std::io::stderr();
    let timeout = Timespec::try_from(LAST_LINES).ok();
    let is_ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], timeout.as_ref()).is_ok_and(|ready| ready > 0);
    if is_ready {
        let _ = stderr.write_all(&message.as_bytes()[..message.len().min(PIPE_BUF)]);
    }
}

fn parse() -> Result<Arguments, clap::Error> {
    // In a pipe lines are whole, for `grep`.
    let columns = terminal_columns().map_or(0, |columns| columns.min(MOST_COLUMNS));
    let matches = Arguments::command().term_width(columns).try_get_matches()?;
    Arguments::from_arg_matches(&matches)
}

/// The exit code.
fn run(command: CliCommand) -> Result<u8, Failed> {
    match command {
        CliCommand::Agent(arguments) => run_agent(*arguments),
        CliCommand::Demo(arguments) => demo::run(arguments),
        CliCommand::Top(arguments) => run_top(arguments),
        CliCommand::Metrics { output } => {
            print(&if output == "json" { catalogue::json() } else { catalogue::markdown() })
        }
        CliCommand::CheckConfig { file, web_config, nvidia_config, env_file } => {
            if nvidia_config.is_some() || env_file.is_some() {
                print(&nvidia::check(nvidia_config.as_deref(), env_file.as_deref()).map_err(misused)?)?;
            }
            check_config(file, web_config)
        }
        CliCommand::Doctor(arguments) => doctor::run(*arguments),
        CliCommand::Health(arguments) => return health::run(arguments),
        CliCommand::Mark(arguments) => admin::mark(arguments),
        CliCommand::Unmark(arguments) => admin::unmark(arguments),
        CliCommand::ClearFaults(arguments) => admin::clear_faults(arguments),
        CliCommand::Release(arguments) => admin::release(arguments),
        CliCommand::Resume(socket) => admin::resume(socket),
        CliCommand::Record(arguments) => run_record(arguments),
        CliCommand::Usage(arguments) => usage::run(arguments),
        CliCommand::Completion { shell } => completion::run(shell),
        CliCommand::Man { directory } => completion::write_man_pages(&directory),
    }
    .map(|()| ENDED)
}

fn check_config(file: Option<PathBuf>, web_config: Option<PathBuf>) -> Result<(), Failed> {
    let valid = |file: &Path, warnings: Vec<String>| {
        let lines = warnings.iter().map(String::as_str).chain(["valid"]);
        print(&lines.map(|line| format!("{}: {line}\n", file.display())).collect::<String>())
    };
    if let Some(file) = file {
        let file = if file.as_os_str() == "-" { PathBuf::from("/dev/stdin") } else { file };
        valid(&file, settings::check_file(&file).map_err(misused)?)?;
    }
    let Some(file) = web_config else { return Ok(()) };
    let warning = settings::check_web_config(&file).map_err(misused)?;
    valid(&file, warning.into_iter().map(str::to_owned).collect())
}

fn run_top(TopArguments { agent, once, interval }: TopArguments) -> Result<(), Failed> {
    let settings = TopSettings { target: agent.target()?, interval: *interval, once };
    let text = block_on(top::run(settings))?.map_err(failed)?;
    text.map_or(Ok(()), |text| print(&text))
}

fn run_agent(options: AgentOptions) -> Result<(), Failed> {
    let ResolvedOptions { options: started, settings } = settings::resolve(options.clone()).map_err(misused)?;
    let log = logging::start(settings.log_format, &settings.reloadable.log_level).map_err(failed)?;
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (variable, meant) in options::misspelt_variables(variables) {
        tracing::warn!(variable, "this environment variable has no effect: did you mean {meant}?");
    }
    let set_level = log.set_level();
    let reload = Box::new(move || {
        let reread = settings::resolve(options.clone()).map_err(|error| error.to_string())?;
        let keys = started.restart_needed_for(&reread.options);
        if !keys.is_empty() {
            tracing::warn!(keys = keys.join(", "), "changed options need a restart of podmeter");
        }
        set_level(&reread.settings.reloadable.log_level);
        Ok(reread.settings.reloadable)
    });
    let outcome = block_on(agent::run(settings, reload, log.dropped_lines()));
    log.finish();
    outcome?.map_err(|error| match error {
        AgentError::Bind(error) => Failed(BIND, error.to_string()),
        // It has changed since it was checked.
        AgentError::WebConfig(error) => Failed(USAGE, error.to_string()),
        error => failed(error),
    })
}

/// In a terminal, unless NO_COLOR is set (https://no-color.org).
fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The columns of standard output, where that is a terminal.
fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

fn run_record(arguments: RecordArguments) -> Result<(), Failed> {
    let RecordArguments { agent, output } = arguments;
    let path = format!("/api/v1/record?output={output}");
    let body = block_on(client::get(&agent.target()?, &path))?.map_err(failed)?;
    print(&String::from_utf8_lossy(&body))
}

fn misused(error: impl std::fmt::Display) -> Failed {
    Failed(USAGE, error.to_string())
}

fn failed(error: impl std::fmt::Display) -> Failed {
    Failed(FAILED, error.to_string())
}

/// On this thread alone: whatever takes long or may hang, such as a call of the driver, has a thread of its own.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failed> {
    let runtime = tasks::runtime("blocking", BLOCKING_THREADS).map_err(failed)?;
    let outcome = runtime.block_on(work);
    // Does not wait for threads inside a driver that does not answer.
    runtime.shutdown_background();
    Ok(outcome)
}

/// The only writer to standard output, except `top` in a terminal. A closed pipe (`| head`) is not a failure.
fn print(text: &str) -> Result<(), Failed> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failed(FAILED, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
