//! The command line: reads all files, rewrites them, and then replaces those that change.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde::de::IgnoredAny;
use tempfile::NamedTempFile;

use crate::files::{Error, File, is_json};
use crate::migration;
use crate::names::{Naming, Target, UtilizationRatio};
use crate::promql::is_promql;
use crate::queries;
use crate::report::{self, Summary};

/// Nothing is left to a person.
const DONE: u8 = 0;
/// Something was left unchanged and is listed.
const LEFT: u8 = 1;
/// Wrong usage, or a file that cannot be read, parsed or written.
const FAILED: u8 = 2;

/// Of a file. The largest dashboards have a few megabytes.
const MOST_BYTES: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  podmeter-migrate --to 4.9 rules.yaml dashboards/*.json
      show how rules and dashboards read with the names of dcgm-exporter 4.9; no file changes
  podmeter-migrate --to 4.9 --write rules.yaml dashboards/*.json
      the same, and replace the files
  kubectl get prometheusrule -n monitoring gpu -o yaml | podmeter-migrate --to 4.9 - > gpu.yaml
      from standard input to standard output

Exit codes:
  0  nothing is left to do
  1  something was left unchanged and is listed
  2  wrong usage, or a file cannot be read, parsed or written; no file was replaced, unless the
     message has how many were, each as a whole";

/// Rewrites DCGM metrics in Prometheus rules and Grafana dashboards to the names of another dcgm-exporter.
///
/// Reads rule files, PrometheusRule objects, dashboards, ConfigMaps that hold any of these, and files of plain queries (.promql,
/// with blank lines between). Prints a diff with the reason of every change. What is not proven equal stays unchanged and is
/// listed.
#[derive(Parser)]
#[command(name = "podmeter-migrate", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    /// Names to rewrite to
    #[arg(long, value_name = "NAMES")]
    to: Target,
    /// Replace the files; without it nothing is written
    #[arg(long)]
    write: bool,
    /// What DCGM_FI_DEV_GPU_UTIL_RATIO holds
    #[arg(long, value_name = "SCALE")]
    gpu_util_ratio: Option<UtilizationRatio>,
    /// Rename a label that the scrape adds, such as kubernetes_node=node; may be repeated
    #[arg(long = "label", value_name = "FROM=TO", value_parser = renaming)]
    labels: Vec<(String, String)>,
    /// Format of the report
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// Files, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn renaming(text: &str) -> Result<(String, String), &'static str> {
    let is_label = |name: &&str| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        name.starts_with(|first: char| !first.is_ascii_digit()) && name.chars().all(is_part)
    };
    let names = text.split_once('=').filter(|(from, to)| [from, to].iter().all(|name| is_label(name)));
    names.map(|(from, to)| (from.to_owned(), to.to_owned())).ok_or("must be FROM=TO, two names of labels")
}

#[must_use]
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os()))
}

fn run(arguments: impl Iterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are not failures; clap prints each where it belongs.
            let _ = error.print();
            return if error.use_stderr() { FAILED } else { DONE };
        }
    };
    match migrate(&arguments) {
        Ok(left) if left > 0 => LEFT,
        Ok(_) => DONE,
        Err(messages) => {
            for message in messages {
                print(&mut io::stderr().lock(), &format!("podmeter-migrate: {message}\n"));
            }
            FAILED
        }
    }
}

/// The number of places that are left, or what failed.
fn migrate(arguments: &Arguments) -> Result<usize, Vec<String>> {
    let stdin = arguments.files.iter().any(|path| path == Path::new("-"));
    if stdin && (arguments.files.len() > 1 || arguments.write) {
        return Err(vec!["- reads standard input and writes standard output: give it alone, without --write".into()]);
    }
    let (mut paths, mut files, mut errors, mut seen) = (vec![], vec![], vec![], BTreeSet::new());
    for path in &arguments.files {
        if path.canonicalize().is_ok_and(|path| !seen.insert(path)) {
            continue;
        }
        match parse(path) {
            Ok(file) => {
                paths.push(path.as_path());
                files.push(file);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let naming = Naming { target: arguments.to, ratio: arguments.gpu_util_ratio, labels: &arguments.labels };
    let failed = |error: Error| vec![error.to_string()];
    let migrated = migration::migrate(&files, naming).map_err(failed)?;
    if arguments.write {
        let changed = paths.iter().zip(&migrated).filter(|(_, file)| file.changed);
        let changed: Vec<(&Path, &str)> = changed.map(|(path, file)| (*path, file.after.as_str())).collect();
        replace(&changed).map_err(failed)?;
    }
    let report = match arguments.output {
        Output::Text => report::text(&migrated),
        Output::Json => report::json(&migrated),
    };
    if stdin {
        migrated.iter().for_each(|file| print(&mut io::stdout().lock(), &file.after));
        print(&mut io::stderr().lock(), &report);
    } else {
        print(&mut io::stdout().lock(), &report);
    }
    let Summary { left, places_left, .. } = Summary::of(&migrated);
    Ok(left + places_left)
}

/// The name of a file in messages.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn failed(path: &Path, message: impl Into<String>) -> Error {
    Error::File { file: name(path), message: message.into() }
}

fn parse(path: &Path) -> Result<File, Error> {
    let text = read(path)?;
    let is_yaml = || text.contains(": ") || text.contains(":\n");
    // Standard input may be one query, which can begin with a brace too.
    let is_query = path == Path::new("-")
        && if is_json(&text) {
            serde_json::from_str::<IgnoredAny>(&text).is_err() && is_promql(&text)
        } else {
            !is_yaml()
        };
    let is_queries = is_query || path.extension().is_some_and(|extension| extension == "promql");
    let mut file = File::parse(&name(path), text, is_queries)?;
    queries::embed(&mut file)?;
    Ok(file)
}

fn read(path: &Path) -> Result<String, Error> {
    let mut bytes = vec![];
    let length = if path == Path::new("-") {
        io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes)
    } else {
        if path.is_dir() {
            return Err(failed(path, format!("a directory: give its files, for example {}/*.yaml", path.display())));
        }
        fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
    };
    let length = length.map_err(|error| failed(path, format!("cannot be read: {error}")))?;
    if length as u64 > MOST_BYTES {
        return Err(failed(path, format!("larger than {} MiB", MOST_BYTES >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|error| failed(path, format!("not UTF-8: {}", error.utf8_error())))?;
    match text.trim_start_matches('\u{feff}').trim() {
        "" => Err(failed(path, "empty")),
        content if content.contains('\0') => Err(failed(path, "a NUL byte: not a text file")),
        _ => Ok(text),
    }
}

/// Replaces files, each as a whole, and the first after all are written beside.
fn replace(files: &[(&Path, &str)]) -> Result<(), Error> {
    let cannot = |path: &Path, error: io::Error| failed(path, format!("cannot be written: {error}"));
    let prepared: Vec<(PathBuf, NamedTempFile)> = files
        .iter()
        .map(|(path, text)| {
            // The file itself, where the name is a link.
            let target = path.canonicalize().map_err(|error| cannot(path, error))?;
            let written = write_beside(&target, text).map_err(|error| cannot(path, error))?;
            Ok((target, written))
        })
        .collect::<Result<_, Error>>()?;
    for (done, (target, written)) in prepared.into_iter().enumerate() {
        written.persist(&target).map_err(|error| {
            let message = format!("cannot be replaced: {}; {done} of {} files are replaced", error.error, files.len());
            failed(&target, message)
        })?;
    }
    Ok(())
}

fn write_beside(target: &Path, text: &str) -> io::Result<NamedTempFile> {
    let metadata = target.metadata()?;
    if !metadata.is_file() || metadata.permissions().readonly() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "read-only, or not a regular file"));
    }
    let directory = target.parent().unwrap_or(Path::new("/"));
    let mut written = tempfile::Builder::new().prefix(".podmeter-migrate-").tempfile_in(directory)?;
    written.write_all(text.as_bytes())?;
    // Only root may give files away.
    let _ = fchown(written.as_file(), Some(metadata.uid()), Some(metadata.gid()));
    written.as_file().set_permissions(metadata.permissions())?;
    written.as_file().sync_all()?;
    Ok(written)
}

/// A reader that went away is no failure of this command.
fn print(output: &mut impl Write, text: &str) {
    if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = writeln!(io::stderr().lock(), "podmeter-migrate: cannot print: {error}");
    }
}
