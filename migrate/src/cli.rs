//! The command line: reads all files, rewrites them, and then replaces those that change.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use promql_parser::util::duration::YEAR_DURATION;
use promql_parser::util::parse_duration;

use crate::files::{Error, File, Format, format_of};
use crate::migration::{self, Migrated, Options};
use crate::promql::{self, Context, Target, UtilizationRatio};
use crate::report::{self, Summary};
use crate::{queries, store};

/// Nothing is left to a person.
const DONE: u8 = 0;
/// Something was left unchanged and is listed.
const LEFT: u8 = 1;
/// Wrong usage, or a file that cannot be read, parsed or written.
const FAILED: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  podmeter-migrate rules.yaml dashboards/*.json
      show how rules and dashboards read with podmeter's metrics; no file changes
  podmeter-migrate --write rules.yaml dashboards/*.json
      the same, and replace the files
  podmeter-migrate --to 4.9 rules.yaml
      from dcgm-exporter 4.8 or older to 4.9
  kubectl get prometheusrule -n monitoring gpu -o yaml | podmeter-migrate - > gpu.yaml
      from standard input to standard output

Exit codes:
  0  nothing is left to do
  1  something was left unchanged and is listed
  2  wrong usage, or a file cannot be read, parsed or written; no file was replaced, unless the
     message has how many were, each as a whole";

/// Rewrites the DCGM metrics in Prometheus rules, Grafana dashboards and KEDA scalers.
///
/// Reads rule files, PrometheusRule objects, dashboards, ConfigMaps that hold any of these, ScaledObjects, and files of plain
/// queries (.promql, with blank lines between). Prints a diff with the reason of every change. What is not proven equivalent
/// stays unchanged and is listed with a query to check.
#[derive(Parser)]
#[command(name = "podmeter-migrate", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    /// Names to rewrite to: dcgm-exporter up to 4.8, dcgm-exporter 4.9, or podmeter
    #[arg(long, value_name = "NAMES", default_value = "podmeter")]
    to: Names,
    /// Replace the files; without it nothing is written
    #[arg(long)]
    write: bool,
    /// Convert thresholds and panel units to base units instead of values back to the old unit, where that is exact
    #[arg(long)]
    base_units: bool,
    /// What DCGM_FI_DEV_GPU_UTIL_RATIO holds: 0 to 100 (DCGM 4.6) or 0 to 1 (DCGM 4.7)
    #[arg(long, value_name = "SCALE")]
    gpu_util_ratio: Option<Scale>,
    /// Rewrite readings of rates, such as PCIe throughput, to rate() of podmeter's counters over this range, for example 5m
    ///
    /// $__rate_interval is Grafana's variable and used in dashboards only. The result is the mean over the range, not the last
    /// reading; without this option such queries are left
    #[arg(long, value_name = "DURATION", value_parser = rate_interval)]
    rate_interval: Option<String>,
    /// Format of the report
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// Files, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Names {
    #[value(name = "4.8")]
    Old,
    #[value(name = "4.9")]
    New,
    Podmeter,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scale {
    Percent,
    Ratio,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
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
    let (mut files, mut errors, mut seen) = (vec![], vec![], BTreeSet::new());
    for path in &arguments.files {
        if path.canonicalize().is_ok_and(|path| !seen.insert(path)) {
            continue;
        }
        match parse(path) {
            Ok(file) => files.push((path.as_path(), file)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let options = Options {
        target: match arguments.to {
            Names::Old => Target::Old,
            Names::New => Target::New,
            Names::Podmeter => Target::Podmeter,
        },
        base_units: arguments.base_units,
        utilization_ratio: arguments.gpu_util_ratio.map(|scale| match scale {
            Scale::Percent => UtilizationRatio::Percent,
            Scale::Ratio => UtilizationRatio::Ratio,
        }),
        rate_interval: arguments.rate_interval.clone(),
    };
    let (paths, files): (Vec<&Path>, Vec<File>) = files.into_iter().unzip();
    let failed = |error: Error| vec![error.to_string()];
    let migrated = migration::migrate(&files, &options).map_err(failed)?;
    if arguments.write {
        let changed = paths.iter().zip(&migrated).filter(|(_, file)| file.changed);
        let changed: Vec<(&Path, &str)> = changed.map(|(path, file)| (*path, file.after.as_str())).collect();
        store::replace(&changed).map_err(failed)?;
    }
    let report = match arguments.output {
        Output::Text => report::text(&migrated),
        Output::Json => report::json(&migrated),
    };
    if stdin {
        migrated.iter().for_each(|file: &Migrated| print(&mut io::stdout().lock(), &file.after));
        print(&mut io::stderr().lock(), &report);
    } else {
        print(&mut io::stdout().lock(), &report);
    }
    Ok(Summary::of(&migrated).left)
}

/// A duration of Prometheus, or Grafana's variable.
fn rate_interval(text: &str) -> Result<String, String> {
    // The parser takes a number alone, also infinity, for seconds.
    let has_unit = text.parse::<f64>().is_err();
    let is_duration = has_unit && parse_duration(text).is_ok_and(|duration| duration <= YEAR_DURATION);
    if is_duration || text == "$__rate_interval" {
        return Ok(text.to_owned());
    }
    Err("not a duration such as 5m, of a year at most, and not $__rate_interval".into())
}

fn parse(path: &Path) -> Result<File, Error> {
    let text = store::read(path)?;
    let stdin = path == Path::new("-");
    let queries = path.extension().is_some_and(|extension| extension == "promql");
    let format = if queries || (stdin && is_query(&text)) { Format::Queries } else { format_of(&text) };
    let mut file = File::parse(&store::name(path), text, format)?;
    queries::embed(&mut file)?;
    Ok(file)
}

/// Whether standard input is one query instead of a file: no YAML collection, and no JSON.
fn is_query(text: &str) -> bool {
    let parsed = File::parse("", text.to_owned(), format_of(text));
    match (parsed, format_of(text)) {
        (_, Format::Yaml) if !text.contains([':', '\t']) => true,
        (Ok(file), _) => file.documents[0].roots.iter().all(|root| root.scalar().is_some()),
        // A selector can begin with a brace.
        (Err(_), Format::Json) => {
            queries::mentions(text) && promql::rewrite(text, &Context::new(Target::Podmeter)).is_ok()
        }
        (Err(_), _) => false,
    }
}

/// A reader that went away is no failure of this command.
fn print(output: &mut impl Write, text: &str) {
    if let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = writeln!(io::stderr().lock(), "podmeter-migrate: cannot print: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_intervals() {
        for text in ["5m", "1h30m", "500ms", "$__rate_interval"] {
            assert_eq!(rate_interval(text).as_deref(), Ok(text));
        }
        for text in ["", "5", "m", "5x", "0m", "5m)", "$interval", "5m ", "1m1h", "5m5m", "1000y", "inf", "-5m", "1e9"]
        {
            assert!(rate_interval(text).is_err(), "{text}");
        }
    }
}
